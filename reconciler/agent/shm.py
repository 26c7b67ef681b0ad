"""Shared memory that a shard left behind: gigabytes after a crash of NCCL, and then no start fits.

Removed is only what the shard's own processes were seen to map or hold open, by device and inode,
under names that communication libraries use, and what nobody uses now. A name alone proves nothing:
other programs of the same user make the same ones, and glibc maps a semaphore under another name
than its file's. What was made and left within the second between two looks stays.
"""

from __future__ import annotations

import os
import re
import time
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from . import procs
from .node import boottime

FOLDER = "/dev/shm"
_NAMES = re.compile(r"(nccl-|psm_|sem\.mp-|torch_)[A-Za-z0-9_.-]+\Z")

YOUNG_S = 60.0
"""Something new is looked for in our processes at each look for so long, then each `OLD_S`: to read
the maps of an engine costs milliseconds, and a stranger's segment is never found in them."""

OLD_S = 30.0
MOST = 4096
"""Segments that are remembered."""

Inode = Tuple[int, int]
"""Device and inode number."""


class Segment(NamedTuple):
    """One file that a process of the shard had mapped or open."""

    name: str
    device: int
    inode: int

    @classmethod
    def from_json(cls, data: object) -> "Optional[Segment]":
        """None where `data` is not of that shape."""
        if not isinstance(data, list) or len(data) != 3 or not isinstance(data[0], str):
            return None
        good = all(isinstance(n, int) and not isinstance(n, bool) for n in data[1:])
        return cls(*data) if good and _NAMES.match(data[0]) else None


class Segments:
    """Which segments are the shard's: `look` while it lives, `remove` once nothing is left."""

    def __init__(
        self, since_boottime: float, known: Iterable[Segment] = (), folder: str = FOLDER
    ) -> None:
        self._folder = folder
        self._since = since_boottime
        self._next_old = float("-inf")
        self.known: Set[Segment] = set(known)

    def look(self, pids: Callable[[], Iterable[int]], now: float) -> None:
        """Remember which new segments are ours; `pids` is asked only where there is a new one."""
        fresh = [(s, age) for s, age in self._candidates() if s not in self.known]
        due = now >= self._next_old
        if not any(due or age < YOUNG_S for _, age in fresh) or len(self.known) >= MOST:
            return
        if due:
            self._next_old = now + OLD_S
        used: Set[Inode] = set()
        for pid in pids():
            used |= used_by(pid)
        self.known.update(s for s, _ in fresh if (s.device, s.inode) in used)

    def remove(self) -> List[str]:
        """Remove what is still there and used by nobody; gives the names."""
        left = [s for s, _ in self._candidates() if s in self.known]
        if not left:
            return []
        used: Set[Inode] = set()
        for pid in procs.all_pids():
            used |= used_by(pid)
        removed = []
        for segment in left:
            if (segment.device, segment.inode) in used:
                continue
            try:
                os.unlink(os.path.join(self._folder, segment.name))
            except OSError:
                continue
            removed.append(segment.name)
        return removed

    def _candidates(self) -> List[Tuple[Segment, float]]:
        """Files of this user that were made since the shard's start, each with its age."""
        # An age by the wall clock: one that was set meanwhile makes a file look too old: it stays.
        most_s, found = boottime() - self._since, []
        try:
            names = [n for n in os.listdir(self._folder) if _NAMES.match(n)]
        except OSError:
            return []
        for name in names:
            try:
                stat = os.lstat(os.path.join(self._folder, name))
            except OSError:
                continue
            age_s = time.time() - stat.st_ctime
            if stat.st_uid == os.getuid() and age_s < most_s:
                found.append((Segment(name, stat.st_dev, stat.st_ino), age_s))
        return found


def used_by(pid: int) -> Set[Inode]:
    """Everything that the process has mapped or open; empty where it is gone or not ours to see."""
    base, used = "/proc/%d" % pid, set()
    try:
        with open(base + "/maps", encoding="utf-8", errors="replace") as file:
            mapped: Dict[Tuple[str, str], None] = {}
            for line in file:
                fields = line.split(None, 5)
                if len(fields) > 4 and fields[4] != "0":
                    mapped[fields[3], fields[4]] = None
        for device, inode in mapped:
            major, _, minor = device.partition(":")
            used.add((os.makedev(int(major, 16), int(minor, 16)), int(inode)))
        for fd in os.listdir(base + "/fd"):
            try:
                stat = os.stat("%s/fd/%s" % (base, fd))
            except OSError:
                continue
            used.add((stat.st_dev, stat.st_ino))
    except OSError:
        pass
    return used
