"""GPUs as an answer shows them, put together from what the NVML probe told before its deadline.

A GPU that did not answer in time has an error of its own; it is there, and it is not free.
"""

from __future__ import annotations

from typing import Dict, List, Optional

from . import procs, xids
from .probes import Probe
from .wire import Json

DEADLINE_S = 5.0
"""NVML answers in milliseconds; a GPU that is about to fall off its bus takes seconds."""

UNLISTED = -1
"""Index of a GPU that NVML no longer lists."""


class GpuLooks:
    """Looks at the GPUs through the probe."""

    def __init__(self, probe: Probe, kernel_log: str) -> None:
        self._probe = probe
        self._ask: Json = {"kernel_log": kernel_log}

    def look(self, owners: Dict[int, str], deadline_s: float) -> Json:
        """`begin` and `finish` in one."""
        self.begin()
        return self.finish(owners, deadline_s)

    def begin(self) -> None:
        """Ask, and do something else meanwhile."""
        self._probe.begin(self._ask)

    def finish(self, owners: Dict[int, str], deadline_s: float) -> Json:
        """A `GpusPart`. `owners`: launch by pid of marked processes; all others are strangers."""
        reply = self._probe.finish(min(DEADLINE_S, deadline_s))
        head: Json = {}
        log: Json = {"error": reply.error or "not read"}
        items: Dict[int, Json] = {}
        for part in reply.parts:
            if "log" in part:
                log = part["log"]
            elif "gpu" in part:
                items[part["gpu"]] = _item(part)
            elif "state" in part:
                _add_state(items[part["state"]], part, owners)
            elif "links" in part:
                for index, group in enumerate(part["links"]):
                    items[index]["nvlink_group"] = group
            else:
                head = part
        identified = bool(head) and len(items) == head["count"]
        if reply.error and not identified:
            return {"error": reply.error}
        for item in items.values():
            if not item.pop("told") and not item["error"]:
                item["error"] = reply.error or "NVML told nothing of it"
        found: List[Json] = [items[i] for i in sorted(items)]
        part = {"items": found, "error": "", "driver": head["driver"], "cuda": head["cuda"]}
        if head["count"]:
            part["xid_error"] = log["error"]
            _add_faults(found, log, head["driver"])
        return part


def _item(part: Json) -> Json:
    item: Json = {"uuid": part["uuid"], "index": part["gpu"], "name": part["name"]}
    item.update(bus=part["bus"], numa_node=part.get("numa_node"))
    return {**item, "error": part.get("error", ""), "warnings": [], "told": False}


def _add_state(item: Json, part: Json, owners: Dict[int, str]) -> None:
    item["told"] = True
    for name in ("memory_mib", "used_mib", "capability", "error", "warnings", "recovery"):
        if name in part:
            item[name] = part[name]
    item["processes"] = [_process(p, owners) for p in part.get("processes", ())]


def _process(entry: Json, owners: Dict[int, str]) -> Json:
    pid: int = entry["pid"]
    launch: Optional[str] = owners.get(pid)
    return {
        "pid": pid,
        "used_mib": entry["used_mib"],
        "user": procs.user_of(pid),
        "name": procs.name_of(pid),
        "launch": launch or "",
    }


def _add_faults(items: List[Json], log: Json, driver: str) -> None:
    """What the kernel's log and the driver say of each GPU's faults, and which GPUs are gone."""
    read = not log["error"]
    faults: Dict[str, List[Json]] = log["xids"] if read else {}
    if read:
        _name_gone(items, faults, log["uuids"])
    for item in items:
        own = faults.get(xids.address(item["bus"]), [])
        why, shown = xids.judge(own, item.pop("recovery", None), driver)
        if why:
            item["error"] = "%s: %s" % (item["error"], why) if item["error"] else why
        if read:
            item["xids"] = shown
            item["warnings"] = item["warnings"] + [
                xids.in_words(fault) for fault in shown if not fault["fatal"]
            ]


def _name_gone(items: List[Json], faults: Dict[str, List[Json]], uuids: Dict[str, str]) -> None:
    """Names GPUs that fell off their bus: NVML gives no handle for one, or leaves it out.

    The driver writes a GPU's UUID into the kernel's log before its first Xid.
    """
    listed = {xids.address(item["bus"]) for item in items if item["bus"]}
    names = {item["uuid"] for item in items}
    gone = [
        bus
        for bus in sorted(faults)
        if bus not in listed
        and uuids.get(bus, "") not in names | {""}
        and any(fault["code"] in xids.FATAL and not fault["cleared"] for fault in faults[bus])
    ]
    nameless = [item for item in items if not item["uuid"]]
    if not nameless:
        for bus in gone:
            item = {"uuid": uuids[bus], "index": UNLISTED, "bus": bus, "warnings": []}
            items.append({**item, "error": "NVML no longer lists it"})
    elif len(nameless) == len(gone):
        # NVML numbers GPUs by their PCI address, and so is `gone` sorted.
        for place, bus in enumerate(gone):
            nameless[place].update(uuid=uuids[bus], bus=bus)
