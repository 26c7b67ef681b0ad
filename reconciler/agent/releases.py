"""The agent's files of other releases on this node: which are in use, and which may go.

Each release leaves a file and its compiled copies. They may not go while anything was started from
them: a session starts supervisors from its file, a supervisor its probes. A session therefore holds
a shared lock on its file for its life; every other process names the file in its command line. What
is removed in error is sent again by the next session that wants it.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from typing import Dict, List, NamedTuple, Tuple

from . import procs, store

KEPT = 8
"""Others that are kept at most unless they are in use: about two megabytes each."""

UNUSED_S = 7 * 24 * 3600.0
"""A release that no session has used for so long goes. By the wall clock, which may jump: then a
file is sent once more."""

PART_S = 24 * 3600.0

_FILE = re.compile(r"([0-9a-f]{64})\.(?:[A-Za-z0-9_.-]+\.)?pyz")


class Release(NamedTuple):
    """All files of one release, by the hash of its content."""

    digest: str
    used: float
    paths: Tuple[str, ...]


def hold(agent: str) -> int:
    """Keep `agent` in place while this process lives, and note that it is used. The descriptor, or
    -1 where there is no such file (an agent that runs from memory)."""
    try:
        fd = os.open(agent, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return -1
    fcntl.flock(fd, fcntl.LOCK_SH)
    try:
        if os.fstat(fd).st_nlink == 0:
            # Removed since the bootstrap looked: what is started from here needs it.
            store.write_bytes(agent, _content(fd))
        os.utime(agent)
    except OSError:
        pass
    return fd


def tidy(folder: str, own: str, now: float) -> List[str]:
    """Remove from `folder` what nobody needs; the digests of the releases that went.

    `own`: the digest of the agent that runs; `now`: Unix time.
    """
    found = [r for r in _releases(folder) if r.digest != own]
    found.sort(key=lambda release: (release.used, release.digest), reverse=True)
    surplus = [r for n, r in enumerate(found) if n >= KEPT or now - r.used > UNUSED_S]
    running = _command_lines() if surplus else b""
    gone = []
    for release in surplus:
        prefix = os.path.join(folder, release.digest).encode()
        if prefix not in running and _remove(folder, release):
            gone.append(release.digest)
    for name in _names(folder):
        path = os.path.join(folder, name)
        if name.endswith(".part") and now - _modified(path) > PART_S:
            _unlink(path)
    return gone


def _releases(folder: str) -> List[Release]:
    by_digest: Dict[str, List[str]] = {}
    for name in _names(folder):
        match = _FILE.fullmatch(name)
        if match:
            by_digest.setdefault(match.group(1), []).append(os.path.join(folder, name))
    return [
        Release(digest, max(map(_modified, paths)), tuple(sorted(paths)))
        for digest, paths in by_digest.items()
    ]


def _remove(folder: str, release: Release) -> bool:
    """Whether it is gone; a release that a session holds stays."""
    original = os.path.join(folder, release.digest + ".pyz")
    fd = -1
    try:
        if original in release.paths:
            fd = os.open(original, os.O_RDONLY | os.O_NOFOLLOW)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The original last: without it a copy would be nobody's, and with it the next look goes on.
        for path in sorted(release.paths, key=lambda path: path == original):
            os.unlink(path)
        return True
    except OSError:
        return False
    finally:
        if fd >= 0:
            os.close(fd)


def _command_lines() -> bytes:
    found = []
    for pid in procs.all_pids():
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                found.append(file.read(65536))
        except OSError:
            continue
    return b"\0".join(found)


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _modified(path: str) -> float:
    """An unreadable one counts as used just now: it is left alone."""
    try:
        return os.stat(path, follow_symlinks=False).st_mtime
    except OSError:
        return time.time()


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _content(fd: int) -> bytes:
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()
