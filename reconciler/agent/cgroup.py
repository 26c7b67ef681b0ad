"""A cgroup v2 of a shard's own, where one can be made: the only thing that ends every tree.

Nothing here depends on controllers; a plain child group of our own group is enough to list and to
kill. Where none can be made the shard is held together by subreaper and marks alone, and its
status says so.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import List

_PREFIX = "reconcile-"


def name_for(launch: str, rank: int, salt: str) -> str:
    """The group's name; `salt` (fleet and machine id) keeps nodes that share a kernel apart."""
    digest = hashlib.sha256(salt.encode("utf-8")).hexdigest()[:8]
    return "%s%s-%d-%s" % (_PREFIX, launch, rank, digest)


def create(name: str) -> str:
    """The path of a new group below our own; empty where that is not possible."""
    path = os.path.join(own_path(), name)
    if not os.path.isabs(path):
        return ""
    try:
        os.makedirs(path, exist_ok=True)
        if read_pids(path) or not os.access(os.path.join(path, "cgroup.procs"), os.W_OK):
            return ""
    except OSError:
        return ""
    return path


def own_path() -> str:
    """The folder of the group that this process is in; empty without cgroup v2."""
    point = mount_point()
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = [line.rstrip("\n") for line in file]
    except OSError:
        return ""
    for line in lines:
        if point and line.startswith("0::"):
            return point + line[3:].rstrip("/")
    return ""


def mount_point() -> str:
    """Where cgroup2 is mounted; empty where it is not."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                before, _, after = line.partition(" - ")
                if after.startswith("cgroup2 "):
                    return before.split()[4]
    except OSError:
        pass
    return ""


def enter(path: str) -> None:
    """Move this process into the group. For the moment between fork and exec: never raises."""
    try:
        fd = os.open(os.path.join(path, "cgroup.procs"), os.O_WRONLY)
        try:
            os.write(fd, b"0")
        finally:
            os.close(fd)
    except OSError:
        pass


def holds(path: str, pid: int) -> bool:
    """Whether the process is in the group."""
    return pid in read_pids(path)


def belongs(path: str, launch: str) -> bool:
    """Whether `path` (from a record) can be this launch's group: nothing else is ever killed."""
    pattern = r"/[^\0]*/%s%s-[0-9]+-[0-9a-f]{8}\Z" % (_PREFIX, re.escape(launch))
    return re.match(pattern, path) is not None and ".." not in path


def pids(path: str, launch: str) -> List[int]:
    """Processes in the launch's group as its record names it, groups below included."""
    return pids_below(path) if belongs(path, launch) else []


def pids_below(path: str) -> List[int]:
    """Processes in the group at `path`, groups below included; none where `path` is empty."""
    if not path:
        return []
    found: List[int] = []
    for folder, _, _ in os.walk(path):
        found += read_pids(folder)
    return found


def read_pids(path: str) -> List[int]:
    """cgroup.procs; empty where the group is gone."""
    try:
        with open(os.path.join(path, "cgroup.procs"), encoding="ascii") as file:
            return [int(line) for line in file if line.strip() != "0"]
    except (OSError, ValueError):
        return []


def kill(path: str) -> bool:
    """End all of the group at once; whether the kernel can (5.14 and newer)."""
    try:
        fd = os.open(os.path.join(path, "cgroup.kill"), os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(fd, b"1")
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def remove(path: str) -> None:
    """Take the empty group away, groups below first."""
    for folder, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            pass
