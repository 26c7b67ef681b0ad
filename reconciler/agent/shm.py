"""Shared memory that a shard left behind: gigabytes after a crash of NCCL, and then no start fits.

Only names that communication libraries use, of this user, made since the shard's start, and open in
no process: anything else may be somebody's data.
"""

from __future__ import annotations

import glob
import os
import re
import time
from typing import List, Set

from . import procs
from .node import boottime

FOLDER = "/dev/shm"
_NAMES = re.compile(r"(nccl-|psm_|sem\.mp-|torch_)[A-Za-z0-9_.-]+\Z")


def remove_leftovers(since_boottime: float, folder: str = FOLDER) -> List[str]:
    """Remove leftovers made after `since_boottime`; gives their names."""
    candidates = _candidates(since_boottime, folder)
    if not candidates:
        return []
    used = _in_use(folder)
    removed = []
    for path in candidates:
        if path in used:
            continue
        try:
            os.unlink(path)
        except OSError:
            continue
        removed.append(os.path.basename(path))
    return removed


def _candidates(since_boottime: float, folder: str) -> List[str]:
    # An age by the wall clock: one that was set meanwhile makes a file look too old, and it stays.
    age_s = boottime() - since_boottime
    found = []
    for path in glob.glob(os.path.join(folder, "*")):
        try:
            stat = os.lstat(path)
        except OSError:
            continue
        young = time.time() - stat.st_ctime < age_s
        if _NAMES.match(os.path.basename(path)) and stat.st_uid == os.getuid() and young:
            found.append(path)
    return found


def _in_use(folder: str) -> Set[str]:
    """Paths under `folder` that any process has open or mapped."""
    used: Set[str] = set()
    for pid in procs.all_pids():
        base = "/proc/%d" % pid
        try:
            for fd in os.listdir(base + "/fd"):
                try:
                    used.add(os.readlink("%s/fd/%s" % (base, fd)))
                except OSError:
                    continue
            with open(base + "/maps", encoding="utf-8", errors="replace") as file:
                for line in file:
                    at = line.find(folder)
                    if at >= 0:
                        used.add(line[at:].rstrip("\n").replace(" (deleted)", ""))
        except OSError:
            continue
    return used
