"""Shared memory that a shard left behind: gigabytes after a crash of NCCL, and then no start fits.

Removed is only what the shard's own processes were seen to map or hold open, by device and inode,
under names that communication libraries use, and what nobody uses now. A name alone proves nothing:
other programs of the same user make the same ones, and glibc maps a semaphore under another name
than its file's. What was made and left within the second between two looks stays.
"""

from __future__ import annotations

import os
import re
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from . import procs

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
        self, since_ns: float, known: Iterable[Segment] = (), folder: str = FOLDER
    ) -> None:
        """`since_ns`: when the launch's record was written, by the file system's own clock: what
        is older is nobody's of the shard."""
        self._folder = folder
        self._since_ns = since_ns
        self._next_old = float("-inf")
        self._first_seen: Dict[Segment, float] = {}
        self.known: Set[Segment] = set(known)

    def look(self, pids: Callable[[], Iterable[int]], now: float) -> None:
        """Remember which new segments are ours; `pids` is asked only where there is a new one."""
        fresh = [segment for segment in self._candidates() if segment not in self.known]
        self._first_seen = {s: self._first_seen.get(s, now) for s in fresh}
        due = bool(fresh) and now >= self._next_old
        young = any(now - first < YOUNG_S for first in self._first_seen.values())
        if not (due or young) or len(self.known) >= MOST:
            return
        if due:
            self._next_old = now + OLD_S
        used: Set[Inode] = set()
        for pid in pids():
            used |= used_by(pid)
        self.known.update(s for s in fresh if (s.device, s.inode) in used)

    def remove(self) -> List[str]:
        """Remove what is still there and used by nobody; gives the names."""
        left = [segment for segment in self._present() if segment in self.known]
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

    def _candidates(self) -> List[Segment]:
        """Those that were made since the shard's record was."""
        # Two times of files: a wall clock that was put forward meanwhile put forward neither.
        return [segment for segment, ns in self._present().items() if ns >= self._since_ns]

    def _present(self) -> Dict[Segment, int]:
        """Files of this user under such names, and when each was made."""
        found: Dict[Segment, int] = {}
        try:
            names = [n for n in os.listdir(self._folder) if _NAMES.match(n)]
        except OSError:
            return found
        for name in names:
            try:
                stat = os.lstat(os.path.join(self._folder, name))
            except OSError:
                continue
            if stat.st_uid == os.getuid():
                found[Segment(name, stat.st_dev, stat.st_ino)] = stat.st_ctime_ns
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
