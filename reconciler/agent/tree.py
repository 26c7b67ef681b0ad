"""Everything that belongs to one shard, found by every means, and ended until nothing is left.

cgroup where there is one (the only means that ends every tree), descendants of the subreaper,
marks, and what was seen of them before: a walk of parents alone leaves most of a daemonised tree.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Callable, Dict, Iterable, List, Set, Tuple

from . import cgroup, procs
from .procs import Process, Stat

ROUND_S = 0.02
"""Pause between sweeps; a tree that keeps forking is overtaken by many short rounds."""


class Tree:
    """The shard's processes. `owns` says of a mark whether it is this shard's."""

    def __init__(
        self,
        group: str,
        owns: Callable[[str], bool],
        known: Iterable[Process],
        reap: Callable[[], None],
    ) -> None:
        self.group = group
        self._owns = owns
        self._reap = reap
        self._known: Set[Tuple[int, int]] = {(p.pid, p.start_time) for p in known}

    def know(self, process: Process) -> None:
        """A process that we started ourselves."""
        self._known.add((process.pid, process.start_time))

    def members(self) -> List[Stat]:
        """All living ones, this process itself left out. What is seen once stays known."""
        children = procs.children_of()
        by_pid: Dict[int, Stat] = {s.pid: s for siblings in children.values() for s in siblings}
        roots = [os.getpid(), *cgroup.pids_below(self.group)]
        roots += [pid for pid, start in self._known if _same(by_pid.get(pid), start)]
        roots += [pid for pid in by_pid if self._owns(procs.mark_of(pid))]
        found: Dict[int, Stat] = {}
        todo = list(roots)
        while todo:
            pid = todo.pop()
            entry = by_pid.get(pid)
            if entry is not None and pid != os.getpid() and not entry.dead and pid not in found:
                found[pid] = entry
            elif pid in found:
                continue
            todo.extend(child.pid for child in children.get(pid, ()))
        self._known = {(s.pid, s.start_time) for s in found.values()}
        return list(found.values())

    def unmarked(self, members: Iterable[Stat]) -> List[Process]:
        """Those that only we can find: a later supervisor must be told of them."""
        lost = [s for s in members if not self._owns(procs.mark_of(s.pid))]
        return [Process("stray", s.pid, s.start_time, s.pgid) for s in lost]

    def signal_all(self, signum: int) -> List[Stat]:
        """Signal all members once; gives those that were there."""
        members = self.members()
        for entry in members:
            _signal(entry, signum)
        return members

    def kill(self, deadline_s: float) -> List[Stat]:
        """KILL in rounds until nothing is left or the time is over; gives what is left."""
        until = time.monotonic() + deadline_s
        while True:
            if self.group:
                cgroup.kill(self.group)
            left = self.signal_all(signal.SIGKILL)
            # An orphan's zombie must be collected, or the group is never empty.
            self._reap()
            if not left or time.monotonic() >= until:
                return left
            time.sleep(ROUND_S)


def _same(entry: "Stat | None", start_time: int) -> bool:
    return entry is not None and entry.start_time == start_time


def _signal(entry: Stat, signum: int) -> None:
    try:
        procs.signal_process(entry.pid, entry.start_time, signum)
    except PermissionError:
        # A setuid program of the shard: it is shown as what is left.
        pass
