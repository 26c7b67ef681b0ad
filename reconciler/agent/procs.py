"""Processes by identity, never by number alone: pid with start time, and the mark they carry.

Reads /proc only; the one thing here that acts is `signal_process`, which holds a pidfd (where the
kernel has them) while it checks that the process is still the one that was meant.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from .wire import Json

MARK = "RECONCILE_MARK"
SUPERVISES = "RECONCILE_SUPERVISES"
"""The supervisor's own variable: it must be found by whoever cleans up, and must not count as
a process of the shard."""

_PREFIX = (MARK + "=").encode()
_SYS_PIDFD_OPEN = 434
_SYS_PIDFD_SEND_SIGNAL = 424
_YOUNG_TICKS = 200
"""A process younger than this (2 s) may yet become ours by exec: look at it again."""


class Stat(NamedTuple):
    """What /proc/PID/stat says, as far as it is needed."""

    pid: int
    state: str
    ppid: int
    pgid: int
    sid: int
    start_time: int
    """Clock ticks since boot."""

    @property
    def dead(self) -> bool:
        """A zombie: it holds nothing any more but its number."""
        return self.state in "ZX"


class Process(NamedTuple):
    """One process of a shard as the record names it."""

    name: str
    pid: int
    start_time: int
    pgid: int

    def to_json(self) -> Json:
        """As it stands in status.json."""
        return dict(self._asdict())

    @classmethod
    def from_json(cls, data: object) -> Optional["Process"]:
        """None where `data` is not of that shape."""
        if not isinstance(data, dict):
            return None
        numbers = [data.get("pid"), data.get("start_time"), data.get("pgid", 0)]
        if not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
            return None
        return cls(str(data.get("name", "")), data["pid"], data["start_time"], data.get("pgid", 0))


def stat(pid: int) -> Optional[Stat]:
    """None: no such process (or not readable, with hidepid: then it is no child of ours)."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            data = file.read(2048)
    except OSError:
        return None
    # The name may hold spaces and parentheses: fields start after the last one.
    fields = data[data.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    numbers = [int(f) for f in (fields[1], fields[2], fields[3], fields[19])]
    return Stat(pid, fields[0].decode(), numbers[0], numbers[1], numbers[2], numbers[3])


def is_same(pid: int, start_time: int) -> bool:
    """Whether `pid` is still the process that started then, and not a zombie."""
    found = stat(pid)
    return found is not None and found.start_time == start_time and not found.dead


def mark_of(pid: int) -> str:
    """The mark in the process's environment; empty where there is none or it cannot be read."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            data = file.read()
    except OSError:
        return ""
    if _PREFIX not in data:
        return ""
    for entry in data.split(b"\0"):
        if entry.startswith(_PREFIX):
            return entry[len(_PREFIX) :].decode("ascii", "replace")
    return ""


def all_pids() -> List[int]:
    """Every pid that /proc shows."""
    return [int(name) for name in os.listdir("/proc") if name[0] in "123456789" and name.isdigit()]


def children_of() -> Dict[int, List[Stat]]:
    """All processes by their parent."""
    found: Dict[int, List[Stat]] = {}
    for pid in all_pids():
        entry = stat(pid)
        if entry is not None:
            found.setdefault(entry.ppid, []).append(entry)
    return found


def descendants(root: int) -> List[Stat]:
    """Everything below `root` but zombies; complete for a subreaper, save what forks just now."""
    tree, found, todo = children_of(), [], [root]
    while todo:
        for child in tree.get(todo.pop(), ()):
            todo.append(child.pid)
            if not child.dead:
                found.append(child)
    return found


class Marks:
    """Which processes carry which mark, cheap to ask again: only what is new is looked at.

    An environment changes by exec alone, so a process seen without a mark is not read again once
    it is older than two seconds. `full` reads all anew (a pid may have been reused meanwhile).
    """

    def __init__(self) -> None:
        self._marked: Dict[int, Tuple[str, int]] = {}
        self._unmarked: Set[int] = set()

    def scan(self, uptime_s: float, *, full: bool) -> Dict[int, str]:
        """Living marked processes: pid to mark."""
        if full:
            self._unmarked.clear()
        pids = set(all_pids())
        self._unmarked &= pids
        for pid in list(self._marked):
            if pid not in pids or not is_same(pid, self._marked[pid][1]):
                del self._marked[pid]
        now_ticks = int(uptime_s * ticks_per_second())
        for pid in pids - self._unmarked - self._marked.keys():
            self._look(pid, now_ticks)
        return {pid: mark for pid, (mark, _) in self._marked.items()}

    def _look(self, pid: int, now_ticks: int) -> None:
        mark = mark_of(pid)
        entry = stat(pid)
        if entry is None or entry.dead:
            return
        if mark:
            self._marked[pid] = (mark, entry.start_time)
        elif now_ticks - entry.start_time > _YOUNG_TICKS:
            self._unmarked.add(pid)


def marked(matches: Callable[[str], bool]) -> List[Stat]:
    """Living processes whose mark `matches`; reads all of /proc."""
    found = []
    for pid in all_pids():
        mark = mark_of(pid)
        if mark and matches(mark):
            entry = stat(pid)
            if entry is not None and not entry.dead:
                found.append(entry)
    return found


def ticks_per_second() -> int:
    """Unit of start times."""
    return os.sysconf("SC_CLK_TCK")


def signal_process(pid: int, start_time: int, signum: int) -> bool:
    """Signal `pid` if it is still the process that started then; whether it was sent.

    With a pidfd the number cannot pass to another process between the check and the signal.
    """
    fd = pidfd_open(pid)
    try:
        if not is_same(pid, start_time):
            return False
        if fd is None:
            os.kill(pid, signum)
        else:
            _pidfd_send_signal(fd, signum)
        return True
    except ProcessLookupError:
        return False
    finally:
        if fd is not None:
            os.close(fd)


def pidfd_open(pid: int) -> Optional[int]:
    """A pidfd, readable once the process has ended; None where there is no such process or call."""
    if hasattr(os, "pidfd_open"):
        try:
            return os.pidfd_open(pid)  # novermin
        except OSError:
            return None
    fd = _syscall(_SYS_PIDFD_OPEN, pid, 0)
    return fd if fd >= 0 else None


def _pidfd_send_signal(fd: int, signum: int) -> None:
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(fd, signum)  # novermin
    elif _syscall(_SYS_PIDFD_SEND_SIGNAL, fd, signum, None, 0) < 0:
        raise ProcessLookupError(ctypes.get_errno(), "pidfd_send_signal")


def _syscall(*args: Optional[int]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(*[ctypes.c_void_p(a) if a is None else ctypes.c_long(a) for a in args]))


def become_subreaper() -> bool:
    """Whether orphans of our tree now come to us instead of to pid 1."""
    pr_set_child_subreaper = 36
    return bool(ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0) == 0)


def socket_inodes(pids: Iterable[int]) -> Tuple[Set[int], bool]:
    """Inodes of all sockets that these processes hold; whether every one could be read."""
    inodes, complete = set(), True
    for pid in pids:
        folder = "/proc/%d/fd" % pid
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            continue
        except OSError:
            complete = False
            continue
        for name in names:
            try:
                target = os.readlink("%s/%s" % (folder, name))
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(int(target[8:-1]))
    return inodes, complete


def user_of(pid: int) -> str:
    """The process's user by name, else by number; empty where it is gone."""
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return ""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def name_of(pid: int) -> str:
    """The process's short name; engines rename themselves, so it identifies nothing."""
    try:
        with open("/proc/%d/comm" % pid, encoding="utf-8", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""
