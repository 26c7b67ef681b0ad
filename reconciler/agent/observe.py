"""One look at this node: everything that is known, and for the rest that it is not known.

Never hangs (whatever may is asked in probe children with deadlines) and never leaves out what it
could not see: a part that failed carries `error`. `reconciler/core/observed.py` has the types.
"""

from __future__ import annotations

import os
import platform
import pwd
import sys
import time
from typing import Dict, List, Optional, Tuple

from . import VERSION, hold, lease, logs, procs, records, store, units
from .gpus import GpuLooks
from .node import FORMAT, Node, acting_lock, boottime
from .observe_host import HostLooks
from .probes import Probes
from .records import Seen
from .spec import LAUNCH
from .store import Damaged
from .wire import AgentError, Json

PARTS = ("shards", "gpus", "network", "resources")
NOT_ASKED = "not asked for"
FULL_SCAN_S = 30.0
"""How often all of /proc is read anew; between, only what is new. A pid that was reused by a marked
process within this time is then found, and the lock has told of a supervised launch all along."""

CONTAINERS_S = 60.0
CONTAINER_ASK_S = 12.0

LOG_TAIL_LINES = 20
LOG_TAIL_BYTES = 4096


class Observer:
    """Looks again and again, and keeps what cannot have changed since the last look."""

    def __init__(self, node: Node, probes: Probes) -> None:
        self.node = node
        self.cache = store.Cache()
        self.gpus = GpuLooks(probes.nvml, node.kernel_log)
        self._probes = probes
        self._marks = procs.Marks()
        self._last_full = float("-inf")
        self._host = HostLooks(probes.system, node.root)
        self._constant = _constants(node)
        self._last_containers = float("-inf")
        self._strays: List[str] = []

    def answer(self, parts: List[str], deadline_s: float, fleet: str) -> Json:
        """A `NodeAnswer`. Parts that were not asked for say so: they are unknown, not empty."""
        unknown = [p for p in parts if p not in PARTS]
        if unknown:
            raise AgentError("bad-request", "parts: %s is none of %s" % (unknown, ", ".join(PARTS)))
        until = time.monotonic() + deadline_s
        answer = dict(self._constant)
        answer["uptime_s"] = round(boottime(), 1)
        answer["clock_s"] = round(time.time(), 3)
        for part in ("gpus", "network", "resources"):
            answer[part] = {"error": NOT_ASKED}
        if "gpus" in parts:
            # The child asks NVML while this process reads records.
            self.gpus.begin()
        marks = self.marks()
        if "shards" in parts:
            answer.update(self._shards(marks))
        else:
            answer["shards_error"] = NOT_ASKED
        self._host.begin(parts)
        if "gpus" in parts:
            mine, _ = records.by_launch(self.node, marks)
            owners = {pid: launch for launch, pids in mine.items() for pid in pids}
            answer["gpus"] = self.gpus.finish(owners, _share(until, 0.6))
        answer.update(self._host.finish(parts, _share(until, 0.8)))
        answer.update(self._lease(fleet))
        answer["hold"] = hold.read_hold(self.node)
        return answer

    # --- Shards -------------------------------------------------------------------------------

    def marks(self) -> Dict[int, str]:
        """Marked processes of this machine id and of others."""
        now = boottime()
        full = now - self._last_full >= FULL_SCAN_S
        if full:
            self._last_full = now
        return self._marks.scan(now, full=full)

    def launches(self, marks: Dict[int, str]) -> List[Seen]:
        """Every launch, by folder or by mark alone. OSError: the folders cannot be listed."""
        pids, _ = records.by_launch(self.node, marks)
        names = records.launch_names(self.node)
        names += sorted(set(pids) - set(names))
        seen = [records.see(self.node, self.cache, name, pids) for name in names]
        self.cache.forget(tuple(s.folder + "/" for s in seen) or ("/\0",))
        return self._with_containers(seen)

    def _with_containers(self, seen: List[Seen]) -> List[Seen]:
        """Containers of launches without supervisor; once a minute, those without a record as well.

        The tool takes a twentieth of a second, so it is only asked where the answer may matter.
        """
        now = boottime()
        unsure = any(s.may_be_contained for s in seen)
        if not unsure and now - self._last_containers < CONTAINERS_S:
            return self._add_contained(seen, self._strays)
        self._last_containers = now
        reply = self._probes.system.ask({"containers": None}, CONTAINER_ASK_S)
        told: Dict[str, Optional[List[Json]]] = {}
        for part in reply.parts:
            told.update(part["containers"])
        running = [entry for entries in told.values() for entry in entries or ()]
        silent = {tool for tool, entries in told.items() if entries is None}
        found = {entry["launch"] for entry in running if LAUNCH.match(str(entry["launch"]))}
        for s in seen:
            tool = ((s.spec or {}).get("container") or {}).get("tool")
            if s.may_be_contained and (reply.error or tool in silent):
                # Not seen is not the same as ended.
                found.add(s.name)
        known = {s.name for s in seen}
        self._strays = sorted(found - known)
        return self._add_contained(
            # Without a record its container's label alone tells.
            [
                s._replace(contained=s.name in found and (s.may_be_contained or s.spec is None))
                for s in seen
            ],
            self._strays,
        )

    def _add_contained(self, seen: List[Seen], names: List[str]) -> List[Seen]:
        known = {s.name for s in seen}
        fresh = [n for n in names if n not in known]
        strays = [records.see(self.node, self.cache, n, {})._replace(contained=True) for n in fresh]
        return seen + strays

    def _shards(self, marks: Dict[int, str]) -> Json:
        try:
            seen = self.launches(marks)
        except OSError as error:
            return {"shards_error": "%s: %s" % (error.filename, error.strerror)}
        return {"shards": [self._shard(s) for s in seen]}

    def _shard(self, seen: Seen) -> Json:
        now = boottime()
        status, record = seen.status, seen.record
        phase, ended = _phase(seen)
        root = records.root_of(seen.folder)
        supervised = seen.supervised and seen.same_boot
        health = _health(status, now, supervised, phase)
        interval = _number((seen.spec or {}).get("health") or {}, "interval_s", 5.0)
        serves = seen.spec is None or seen.spec.get("health") is not None
        age = health["age_s"]
        failing = ended is not None or health["failing_for_s"] > 0
        return {
            "launch": seen.name,
            "rank": record["rank"] if record else _rank_of(seen, self._marks_of(seen)),
            "record": record,
            "record_error": seen.spec_error,
            "labels": seen.labels,
            "phase": phase,
            "stop_asked": seen.intent is not None,
            "stop_age_s": _age(seen.intent or {}, "boottime", now) if seen.same_boot else 0.0,
            "alive": seen.alive or (ended is None and seen.never_began),
            "supervised": supervised,
            "serves": serves,
            "health": health,
            "fresh": supervised and (not serves or (age is not None and age <= 3 * interval + 1)),
            "ever_ready": status.get("ever_ready") is True,
            "started_age_s": _age(status, "started_boottime", now) if seen.same_boot else now,
            "start_timeout_s": _number(seen.spec or {}, "start_timeout_s", 1800.0),
            "stop_grace_s": _number(seen.spec or {}, "stop_grace_s", 30.0),
            "exit": ended,
            "pids": list(seen.pids),
            "boot_id": str(status.get("boot_id") or (seen.spec or {}).get("boot_id") or ""),
            "log_tail": logs.tail(seen.folder, seen.spec, LOG_TAIL_LINES, LOG_TAIL_BYTES)
            if failing
            else [],
            "restarts": int(_number(status, "restarts", 0)),
            **({"former_root": root} if root != self.node.root else {}),
        }

    def _marks_of(self, seen: Seen) -> List[str]:
        return [procs.mark_of(pid) for pid in seen.pids] if seen.spec is None else []

    # --- The node -----------------------------------------------------------------------------

    def _lease(self, fleet: str) -> Json:
        try:
            name = fleet or self._only_fleet()
            stored = lease.read_lease(self.node, name) if name else None
        except Damaged as error:
            return {"lease": None, "lease_error": str(error)}
        except OSError as error:
            return {"lease": None, "lease_error": "leases: %s" % error}
        return {"lease": lease.shown(self.node, stored) if stored else None, "lease_error": ""}

    def _only_fleet(self) -> str:
        names = {n for r in self.node.roots if os.path.isdir(r) for n in os.listdir(r)}
        mine = [n for n in names if n.startswith("lease-") and n.endswith(".json")]
        fleets = [n[len("lease-") : -len(".json")] for n in mine]
        return fleets[0] if len(fleets) == 1 else ""


def _share(until: float, share: float) -> float:
    """A part of the time that is left; never nothing: a late part may still answer at once."""
    return max(0.1, (until - time.monotonic()) * share)


def _constants(node: Node) -> Json:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return {
        "format": FORMAT,
        "machine_id": node.identity.machine_id,
        "boot_id": node.identity.boot_id,
        "hostname": platform.node(),
        "agent": node.agent,
        "agent_version": VERSION,
        "python": sys.executable or "python3",
        "python_version": "%d.%d.%d" % sys.version_info[:3],
        "os": _os_name(),
        "no_system": units.unavailable(),
        "root": node.root,
        "user": user,
    }


def _os_name() -> str:
    """As os-release(5) has it for people; the kernel's name where there is no such file."""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = file.read(8192).splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith("PRETTY_NAME="):
                return line.partition("=")[2].strip().strip("\"'")[:100]
    return "%s %s" % (platform.system(), platform.release())


def _rank_of(seen: Seen, marks: List[str]) -> int:
    """The rank by the mark, for a launch whose record cannot be read."""
    for mark in marks:
        text = mark.rpartition("@")[0].rpartition("/")[2]
        if text.isdigit():
            return int(text)
    return 0


def _phase(seen: Seen) -> Tuple[str, Optional[Json]]:
    """Phase and exit, with what the supervisor could not write down itself."""
    now = boottime()
    if not seen.same_boot:
        told = _exit(seen.status, 0.0) if seen.phase == records.ENDED else None
        if told is not None and told["kind"] == "stopped" and seen.intent is None:
            # Nobody asked for it: it was ended in good order by the machine going down.
            told = None
        rebooted = {"kind": "reboot", "message": "the node was rebooted", "age_s": round(now, 1)}
        return records.ENDED, {**told, "age_s": round(now, 1)} if told else rebooted
    if seen.alive:
        asked = records.STOPPING if seen.intent is not None else records.RUNNING
        return (seen.phase if seen.phase not in ("", records.ENDED) else asked), None
    if seen.phase == records.ENDED:
        return records.ENDED, _exit(seen.status, now)
    if seen.never_began:
        from .locks import is_held

        if is_held(acting_lock(records.root_of(seen.folder))):
            return records.STARTING, None
        message = "the start was cut off before anything was executed"
        return records.ENDED, {"kind": "preflight", "message": message}
    message = "it is gone and its supervisor was killed, so nobody saw how"
    if seen.intent is not None:
        return records.ENDED, {"kind": "stopped", "message": message}
    return records.ENDED, {"kind": "unknown", "message": message}


def _exit(status: Json, now: float) -> Optional[Json]:
    told = status.get("exit")
    if not isinstance(told, dict):
        return {"kind": "unknown", "message": "the record of the end names no exit"}
    code, kind = told.get("code"), told.get("kind")
    kinds = ("exited", "signal", "timeout", "stopped", "reboot", "sidecar", "preflight", "unknown")
    return {
        "kind": kind if kind in kinds else "unknown",
        "code": code if isinstance(code, int) else None,
        "signal": str(told.get("signal") or ""),
        "command": str(told.get("command") or ""),
        "message": str(told.get("message") or ""),
        "age_s": _age(told, "boottime", now),
    }


def _health(status: Json, now: float, supervised: bool, phase: str) -> Json:
    told = status.get("health")
    health: Json = told if isinstance(told, dict) else {}
    last = health.get("last_boottime")
    known = isinstance(last, (int, float)) and phase != records.ENDED
    ok = health.get("ok") is True and known and supervised
    ready, failing = health.get("ready_since"), health.get("failing_since")
    return {
        "ok": ok,
        "age_s": round(max(0.0, now - float(last)), 3) if known and last is not None else None,
        "ready_for_s": _age(health, "ready_since", now) if ok and ready is not None else 0.0,
        "failing_for_s": _age(health, "failing_since", now)
        if failing is not None and phase != records.ENDED
        else 0.0,
        "detail": str(health.get("detail") or ""),
    }


def _age(data: Json, name: str, now: float) -> float:
    value = data.get(name)
    return round(max(0.0, now - value), 3) if isinstance(value, (int, float)) else 0.0


def _number(data: Json, name: str, default: float) -> float:
    value = data.get(name)
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if good and value is not None else default
