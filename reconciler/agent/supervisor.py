"""Holds one shard for its whole life: starts its commands, asks its health, ends all of it.

One process per shard, one thread, one loop that never waits for anything but its next turn. It owes
nothing to the session that started it, and has imported all it needs before it says `ready`: the
file it came from may be replaced. It writes status.json; nobody else does while it lives.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import Any, Dict, List, Mapping, Optional

from . import (
    cgroup,
    children,
    containers,
    environment,
    locks,
    logs,
    node,
    procs,
    records,
    shm,
    spec,
    store,
)
from .ending import Ending
from .health import Probe
from .node import boottime
from .procs import Process
from .running import Running
from .spec import Spec
from .status import Status
from .store import Damaged
from .tree import Tree
from .wire import Json

TURN_S = 1.0
"""The longest pause: an intent that nobody announced is seen within it."""

LOG_CHECK_S = 1.0
FLOOD_CHECK_S = 0.1
"""After a log had to be cut: an engine can write half a gigabyte in a second."""

STRAYS_S = 30.0
SEGMENTS_S = 1.0
OOM_SCORE = -900
"""An engine that runs out of memory must not take its supervisor with it (root only)."""

TOLD_TO_END = "the supervisor was told to end"
"""By TERM, without a stop that was asked for: the machine goes down, or a person did it."""

SAVE_END_S = 60.0
"""How long the end is tried to be written on a full disk; then the heartbeat alone tells of it."""


def main(argv: List[str], env: Mapping[str, str]) -> int:
    """`supervise DIR [--adopt FLEET]`: hold the launch in DIR until nothing is left of it."""
    folder = argv[0]
    options = {argv[i]: argv[i + 1] for i in range(1, len(argv) - 1, 2)}
    ready_fd = int(options.get("--ready-fd", "-1"))
    if "--ready-path" in options:
        ready_fd = os.open(options["--ready-path"], os.O_WRONLY | os.O_NONBLOCK)
    lock_fd = locks.try_lock(os.path.join(folder, "lock"), 1.0)
    if lock_fd is None:
        return _tell(ready_fd, "another supervisor holds the lock")
    try:
        supervisor = _make(folder, lock_fd, env, options.get("--adopt"))
    except (OSError, Damaged) as error:
        return _tell(ready_fd, "%s" % error)
    _prepare()
    _give_back_reserve(folder)
    if not supervisor.status.save():
        return _tell(ready_fd, "status.json cannot be written")
    _tell(ready_fd, "ready")
    supervisor.run()
    return 0


def _tell(fd: int, word: str) -> int:
    if fd >= 0:
        os.write(fd, (word + "\n").encode("utf-8", "replace"))
        os.close(fd)
    return 0 if word == "ready" else 1


def _give_back_reserve(folder: str) -> None:
    try:
        os.unlink(os.path.join(folder, "reserve"))
    except OSError:
        pass


def _prepare() -> None:
    procs.become_subreaper()
    children.set_oom_score(OOM_SCORE)
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _make(folder: str, lock_fd: int, env: Mapping[str, str], adopt: Optional[str]) -> "Supervisor":
    identity = node.identity(env)
    name = os.path.basename(folder)
    told, _ = records.read_status(store.Cache(), folder, identity.boot_id)
    if adopt is None and told:
        raise Damaged("launch %s was started before" % name)
    if told.get("phase") == records.ENDED:
        raise Damaged("launch %s has ended" % name)
    parsed: Optional[Spec] = None
    try:
        parsed = spec.parse(store.read(os.path.join(folder, "spec.json")))
    except (FileNotFoundError, Damaged):
        if adopt is None:
            raise
    if parsed is not None and parsed.launch != name:
        # A copy: the processes that it names are another launch's.
        if adopt is None:
            raise Damaged("launch %s: its record is of launch %s" % (name, parsed.launch))
        parsed, told = None, {}
    status = Status(folder, lock_fd, identity.boot_id)
    if adopt is not None:
        status.restore(told)
    owns = _owner(name, identity.machine_id, parsed, adopt or "")
    return Supervisor(folder, parsed, status, owns, env)


def _owner(name: str, machine_id: str, parsed: Optional[Spec], fleet: str) -> Any:
    """Says of a mark whether it is this shard's; without a record, by fleet and launch alone."""
    if parsed is not None:
        return lambda mark: mark == parsed.mark
    head, tail = "%s/%s/" % (fleet, name), "@" + machine_id
    return lambda mark: mark.startswith(head) and mark.endswith(tail)


class Supervisor:
    """The loop."""

    def __init__(
        self, folder: str, parsed: Optional[Spec], status: Status, owns: Any, env: Mapping[str, str]
    ) -> None:
        self.folder = folder
        self.spec = parsed
        self.status = status
        self.env = env
        self.tool_failed = False
        """The container tool ended with a failure of its own: there is no container."""
        self._container_asked = float("-inf")
        self._container_left = False
        self.exits: Dict[int, int] = {}
        """Wait statuses of ended children that nobody has asked about yet."""
        self._group(owns)
        self.running = Running(self) if parsed is not None else None
        self.ending: Optional[Ending] = None
        self.probe: Optional[Probe] = None
        self._next_probe = 0.0
        self._owner_checked = float("-inf")
        self._next_log_check = 0.0
        self._flooded = False
        self._next_strays = boottime() + STRAYS_S
        self._next_segments = 0.0
        self.segments = shm.Segments(_written_ns(folder), status.segments)
        self.told_to_stop = False
        self._wake_reader, self._wake_writer = os.pipe()

    def _group(self, owns: Any) -> None:
        status, parsed = self.status, self.spec
        if not status.adopted and parsed is not None:
            salt = parsed.fleet + parsed.machine_id
            status.cgroup = cgroup.create(cgroup.name_for(parsed.launch, parsed.rank, salt))
        elif not cgroup.belongs(status.cgroup, os.path.basename(self.folder)):
            status.cgroup = ""
        status.containment = "cgroup" if status.cgroup else "subreaper and marks"
        known = [*status.processes.values(), *status.strays]
        self.tree = Tree(status.cgroup, owns, known, self.reap)

    # --- The loop -----------------------------------------------------------------------------

    def run(self) -> None:
        """Until nothing is left of the shard and its end is written."""
        self._listen()
        while self.status.phase != records.ENDED:
            now = boottime()
            self.reap()
            self._look_for_intent()
            if self.ending is not None:
                self.ending.step(now)
            elif self.running is not None:
                self.running.step(now)
                self._step_probe(now)
            else:
                # Without a record there is nothing to start or ask, only something to end.
                self.end({"kind": "stopped", "message": "its record cannot be read"}, 30.0)
            self._housekeeping(now)
            self.status.save()
            if self.status.phase != records.ENDED:
                self._wait()
        self._finish()

    def _listen(self) -> None:
        os.set_blocking(self._wake_writer, False)
        os.set_blocking(self._wake_reader, False)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, *_: object) -> None:
        self.told_to_stop = True

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self._wake_reader, select.POLLIN)
        if self.probe is not None and self.probe.result is None:
            poller.register(*self.probe.events)
        watched = self.running.watched() if self.running is not None else []
        for fd in watched:
            poller.register(fd, select.POLLIN)
        poller.poll(max(1, int(self._pause() * 1000)))
        try:
            os.read(self._wake_reader, 4096)
        except BlockingIOError:
            pass

    def _pause(self) -> float:
        now = boottime()
        if self.ending is not None:
            return self.ending.pause()
        pauses = [FLOOD_CHECK_S if self._flooded else TURN_S]
        if self.running is not None:
            pauses.append(self.running.pause(now))
            asked = self.spec is not None and self.spec.health is not None
            if self.probe is None and asked and self.running.serving:
                pauses.append(self._next_probe - now)
        return max(0.001, min(pauses))

    def reap(self) -> None:
        """Collect every ended child, orphans of the tree among them."""
        while True:
            found = children.reap()
            if found is None:
                return
            self.exits[found[0]] = found[1]

    # --- Health -------------------------------------------------------------------------------

    def _step_probe(self, now: float) -> None:
        if self.spec is None or self.running is None or self.ending is not None:
            return
        if self.spec.health is None or not self.running.serving:
            return
        if self.probe is None:
            if now < self._next_probe:
                return
            whose = self._own_pids if now - self._owner_checked > 60 else None
            self.probe = Probe(
                self.spec.health, now, None if self.spec.container is not None else whose
            )
        elif self.probe.result is None:
            self.probe.step()
            self.probe.expire(now)
        if self.probe.result is not None:
            self._heed(self.probe, now)
            self.probe = None

    def _own_pids(self) -> List[int]:
        return [entry.pid for entry in self.tree.members()]

    def _heed(self, probe: Probe, now: float) -> None:
        result, status = probe.result, self.status
        assert result is not None
        interval = probe.check.interval_s
        if result.ok:
            if probe.checked_owner:
                self._owner_checked = now
            status.healthy(now)
            status.phase = records.RUNNING
        else:
            self._owner_checked = float("-inf")
            status.unhealthy(now, result.detail)
            starting_s = now - status.started_boottime
            # Quick at first, so that a small engine is not kept waiting; then a second apart.
            interval = min(interval, 0.25 if starting_s < 30 and not status.ever_ready else 1.0)
        self._next_probe = now + interval

    # --- The end ------------------------------------------------------------------------------

    def _look_for_intent(self) -> None:
        """A stop that was asked for; one that is asked again may shorten the grace."""
        try:
            intent: Json = store.read(os.path.join(self.folder, "intent.json"))
        except FileNotFoundError:
            if self.told_to_stop:
                self._stop(None, 0.0, TOLD_TO_END)
            return
        except store.Unreadable:
            return  # whether there is one is not known, and nothing is ended by guess
        except Damaged:
            intent = {}
        grace = intent.get("grace_s")
        good = isinstance(grace, (int, float)) and not isinstance(grace, bool)
        # What was never ready has nothing in flight; ranks that serve nothing ask those that do.
        serves = self.spec is not None and self.spec.health is not None
        idle = self.spec is None or (serves and not self.status.ever_ready)
        drain = 0.0 if idle or self.spec is None else self.spec.drain_s
        self._stop(float(grace) if good and grace is not None else None, drain, "")

    def _stop(self, grace_s: Optional[float], drain_s: float, message: str) -> None:
        default = self.spec.stop_grace_s if self.spec is not None else 30.0
        grace = default if grace_s is None else grace_s
        if self.ending is not None:
            self.ending.hurry(grace)
            return
        self.end({"kind": "stopped", "message": message}, grace, drain_s=drain_s, gently=True)

    def end(
        self, ending: Json, grace_s: float, *, drain_s: float = 0.0, gently: bool = False
    ) -> None:
        """Begin to end the shard; `ending` is what its record will say once nothing is left."""
        if self.ending is None:
            if self.probe is not None:
                self.probe.cancel()
                self.probe = None
            self.status.phase = records.STOPPING
            self._note_strays()
            self.ending = Ending(self, ending, grace_s, drain_s, gently)

    def _housekeeping(self, now: float) -> None:
        if now >= self._next_segments:
            self._next_segments = now + SEGMENTS_S
            self.segments.look(self._own_pids, now)
            self.status.segments = sorted(self.segments.known)
        self.status.keep_lock(os.path.join(self.folder, "lock"))
        if now >= self._next_log_check and self.spec is not None:
            self._flooded = self._bound_logs(keep=not self._flooded)
            self._next_log_check = now + (FLOOD_CHECK_S if self._flooded else LOG_CHECK_S)
        if now >= self._next_strays and self.ending is None:
            self._next_strays = now + STRAYS_S
            self._note_strays()

    def _note_strays(self) -> None:
        """Who takes over from us must find those as well that carry no mark."""
        if not self.status.cgroup:
            self.note_left(self.tree.unmarked(self.tree.members()))

    def note_left(self, left: List[Process]) -> None:
        """Record processes beside the commands' own: what lives of them is the shard's."""
        mains = {p.pid for p in self.status.processes.values()}
        self.status.strays = [p for p in left if p.pid not in mains]

    def _bound_logs(self, *, keep: bool) -> bool:
        """Whether one was too long."""
        assert self.spec is not None
        cut = False
        for name in [c.name for c in self.spec.commands] + ["supervisor"]:
            cut |= logs.bound(os.path.join(self.folder, name + ".log"), keep=keep)
        for process in self.status.processes.values():
            cut |= logs.bound_removed(process.pid)
        return cut

    def _finish(self) -> None:
        """Write the end, for as long as it makes sense to try."""
        self.segments.remove()
        if self.status.cgroup:
            cgroup.remove(self.status.cgroup)
        until = time.monotonic() + SAVE_END_S
        while not self.status.save() and time.monotonic() < until:
            time.sleep(TURN_S)

    def container_left(self, *, anew: bool = False) -> bool:
        """Whether the shard's container may still run; the tool is asked once a second at most."""
        if self.spec is None or self.spec.container is None:
            return False
        now = boottime()
        if anew or now - self._container_asked >= TURN_S:
            told = containers.is_running(self.spec.container, environment.base(self.env))
            # Not seen is not ended, unless the tool itself said that it made none.
            self._container_left = not self.tool_failed if told is None else told
            self._container_asked = now
        return self._container_left


def _written_ns(folder: str) -> float:
    """When the record was written; without one nothing can be told to be of this launch."""
    try:
        return os.stat(os.path.join(folder, "spec.json")).st_ctime_ns
    except OSError:
        return float("inf")


def note(text: str) -> None:
    """A line in supervisor.log."""
    sys.stderr.write("%.3f %s\n" % (boottime(), text))
    sys.stderr.flush()
