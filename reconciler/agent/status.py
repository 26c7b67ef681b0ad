"""A supervisor's account of its shard: status.json on changes, the heartbeat in between.

A disk that is full must not stop a supervisor: what could not be written is tried again, and the
heartbeat (in place, in blocks that are there) tells the essential meanwhile.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

from . import heartbeat, locks, procs, store
from .node import FORMAT, boottime
from .procs import Process
from .shm import Segment
from .wire import Json


class Status:
    """Everything in status.json; attributes are written by the supervisor alone."""

    def __init__(self, folder: str, lock_fd: int, boot_id: str) -> None:
        own = procs.stat(os.getpid())
        self._path = os.path.join(folder, "status.json")
        self._lock_fd = lock_fd
        self._saved: Optional[bytes] = None
        self._boot_id = boot_id
        self._supervisor = {"pid": os.getpid(), "start_time": own.start_time if own else 0}
        self.phase = "starting"
        self.processes: Dict[str, Process] = {}
        """Of the commands, by name."""
        self.strays: List[Process] = []
        """Without a mark: only their parents, or this list, tell that they are ours."""
        self.exit: Optional[Json] = None
        self.ok = False
        self.last_boottime: Optional[float] = None
        self.ready_since: Optional[float] = None
        self.failing_since: Optional[float] = None
        self.detail = ""
        self.ever_ready = False
        self.started_boottime = boottime()
        self.restarts = 0
        self.adopted = False
        self.cgroup = ""
        self.containment = ""
        self.remaining: List[int] = []
        """Pids that outlived KILL."""
        self.segments: List[Segment] = []
        """Shared memory that its processes were seen to use; removed with the shard."""

    def restore(self, told: Json) -> None:
        """Take over what the supervisor before this one knew."""
        self.adopted = True
        self.phase = "starting" if told.get("phase") == "starting" else "running"
        health = told.get("health") if isinstance(told.get("health"), dict) else {}
        assert isinstance(health, dict)
        self.ever_ready = told.get("ever_ready") is True
        self.started_boottime = _number(told.get("started_boottime")) or boottime()
        self.failing_since = _number(health.get("failing_since"))
        self.restarts = int(_number(told.get("restarts")) or 0)
        self.cgroup = str(told.get("cgroup") or "")
        segments = told.get("segments")
        read = [Segment.from_json(e) for e in segments] if isinstance(segments, list) else []
        self.segments = [segment for segment in read if segment is not None]
        entries = told.get("processes")
        known = [Process.from_json(e) for e in entries] if isinstance(entries, list) else []
        for process in known:
            if process is not None and process.name == "stray":
                self.strays.append(process)
            elif process is not None:
                self.processes[process.name] = process

    def to_json(self) -> Json:
        """As it stands in status.json."""
        processes = [*self.processes.values(), *self.strays]
        return {
            "format": FORMAT,
            "phase": self.phase,
            "boot_id": self._boot_id,
            "supervisor": self._supervisor,
            "processes": [p.to_json() for p in processes],
            "exit": self.exit,
            "health": self._health(),
            "ever_ready": self.ever_ready,
            "started_boottime": self.started_boottime,
            "restarts": self.restarts,
            "adopted": self.adopted,
            "cgroup": self.cgroup,
            "containment": self.containment,
            "remaining": self.remaining,
            "segments": [list(segment) for segment in self.segments],
        }

    def _health(self) -> Json:
        return {
            "ok": self.ok,
            "last_boottime": self.last_boottime,
            "ready_since": self.ready_since,
            "failing_since": self.failing_since,
            "detail": self.detail[:300],
        }

    def save(self) -> bool:
        """Write what changed; whether the disk has it. Never raises: it is tried at each turn."""
        record = self.to_json()
        heartbeat.write(self._lock_fd, heartbeat.of(record))
        # When it was last asked is the heartbeat's business; its wording alone is worth no write.
        stable = {**record, "health": {**record["health"], "last_boottime": None, "detail": ""}}
        compared = store.seal(stable)
        if compared == self._saved and os.path.exists(self._path):
            return True
        try:
            store.write(self._path, record)
        except OSError:
            return False
        self._saved = compared
        return True

    def keep_lock(self, path: str) -> None:
        """A lock file that somebody removed is made again: without it nobody sees that we live."""
        try:
            there, ours = os.stat(path), os.fstat(self._lock_fd)
            if os.path.samestat(there, ours):
                return
        except FileNotFoundError:
            pass
        except OSError:
            return
        try:
            fd = locks.try_lock(path)
        except OSError:
            return
        if fd is not None:
            # The one before stays open: whoever still waits for it must not get it.
            self._lock_fd = fd

    # --- What probes say ----------------------------------------------------------------------

    def healthy(self, now: float) -> None:
        """The health path answered well."""
        if not self.ok:
            self.ready_since, self.failing_since = now, None
        self.ok, self.last_boottime, self.detail, self.ever_ready = True, now, "", True

    def unhealthy(self, now: float, detail: str) -> None:
        """The health path did not answer well. Failing counts only after having been ready."""
        self.ok, self.last_boottime, self.detail, self.ready_since = False, now, detail, None
        if self.ever_ready and self.failing_since is None:
            self.failing_since = now

    def ended(self, now: float, ending: Json) -> None:
        """Nothing is left of the shard."""
        self.phase, self.exit = "ended", {**ending, "boottime": now}
        self.ok, self.ready_since, self.failing_since = False, None, None
        self.processes, self.strays, self.remaining = {}, [], []


def _number(value: Any) -> Optional[float]:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if good else None
