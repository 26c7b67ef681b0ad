"""GPUs as an answer shows them, put together from what the NVML probe told before its deadline.

A GPU that did not answer in time has an error of its own; it is there, and it is not free.
"""

from __future__ import annotations

from typing import Dict, List, Optional

from . import procs
from .probes import Probe
from .wire import Json

DEADLINE_S = 5.0
"""NVML answers in milliseconds; a GPU that is about to fall off its bus takes seconds."""


class GpuLooks:
    """Looks at the GPUs through the probe."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    def look(self, owners: Dict[int, str], deadline_s: float) -> Json:
        """A `GpusPart`. `owners`: launch by pid of marked processes; all others are strangers."""
        reply = self._probe.ask({}, min(DEADLINE_S, deadline_s))
        head: Json = {}
        items: Dict[int, Json] = {}
        for part in reply.parts:
            if "gpu" in part:
                items[part["gpu"]] = self._item(part)
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
        return {"items": found, "error": "", "driver": head["driver"], "cuda": head["cuda"]}

    def _item(self, part: Json) -> Json:
        item: Json = {"uuid": part["uuid"], "index": part["gpu"], "name": part["name"]}
        item.update(bus=part["bus"], numa_node=part.get("numa_node"))
        return {**item, "error": part.get("error", ""), "told": False}


def _add_state(item: Json, part: Json, owners: Dict[int, str]) -> None:
    item["told"] = True
    for name in ("memory_mib", "used_mib", "capability", "error", "warnings"):
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
