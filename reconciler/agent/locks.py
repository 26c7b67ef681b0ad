"""flock, the truth about who acts and who supervises: it ends with its process, however that ended.

Descriptors are close-on-exec (Python's default), or a shard's process would keep the lock after its
supervisor died and "alive" would lie.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import contextmanager
from typing import Iterator, List, Optional

from .wire import AgentError

ACTING_WAIT_S = 15.0
"""Longer than the slowest holder: a start waits up to 10 s for its supervisor."""


def try_lock(path: str, wait_s: float = 0.0) -> Optional[int]:
    """The descriptor that holds the lock, or None where another holds it for longer than `wait_s`.

    A short wait is right even for "now or never": whoever only looks holds it for an instant.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                return None
            time.sleep(0.005)


def is_held(path: str) -> bool:
    """Whether anyone holds the lock exclusively; an absent file is held by nobody.

    Something else in its place may hide one that is held: then it counts as held.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return True
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


@contextmanager
def acting(path: str, *others: str) -> Iterator[None]:
    """The node's one lock for whoever writes a record or an intent.

    `others` are those of former roots, for an agent that may still be told to act there. One that
    cannot be opened keeps nobody out: nothing can be written beside it either.
    """
    held: List[int] = []
    try:
        # In one order for all, whichever of them is whose root today: no two wait for each other.
        for real in sorted({os.path.realpath(p) for p in (path, *others)}):
            fd = _acting_lock(real, must=real == os.path.realpath(path))
            if fd is not None:
                held.append(fd)
        yield
    finally:
        for fd in held:
            os.close(fd)


def _acting_lock(path: str, *, must: bool) -> Optional[int]:
    try:
        fd = try_lock(path, ACTING_WAIT_S)
    except OSError as error:
        if not must:
            return None
        raise AgentError("io", "%s: %s" % (path, error.strerror)) from None
    if fd is None:
        raise AgentError("io", "%s is held by another for %d s" % (path, ACTING_WAIT_S))
    return fd
