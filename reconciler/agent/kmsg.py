"""Reads the kernel's log as it grows, without ever waiting for it; runs in a probe child.

/dev/kmsg hands out one record a read and keeps the place of each open descriptor, so a look after
the first costs one read. It starts after the last `dmesg --clear`: that is how a person says that
what stood there is dealt with (the kernel's Documentation/ABI/testing/dev-kmsg).
"""

from __future__ import annotations

import errno
import os
import stat
import time

from . import xids
from .wire import Json

DEVICE = os.makedev(1, 11)
RECORD = 8192
"""The kernel's largest record; it refuses a read with less room."""

READ_S = 0.3
"""How long one look may read: the log of a large machine holds some ten thousand records."""

AGAIN_S = 60.0
"""How often the whole log is read anew while a fault stands in it: somebody may have cleared it."""


class KernelLog:
    """One open descriptor of the kernel's log and what was found through it."""

    def __init__(self) -> None:
        self._fd = -1
        self._rest = b""
        self._log = xids.Log()
        self._opened = 0.0

    def look(self, path: str) -> Json:
        """`xids` and `uuids` by PCI address; `error`: why they are not known. Never raises."""
        try:
            if self._fd < 0:
                self._fd, self._rest, self._log = _open(path), b"", xids.Log()
                self._opened = time.monotonic()
            elif self._log.told() and time.monotonic() - self._opened > AGAIN_S:
                self._again(path)
            whole = self._read(time.monotonic() + READ_S)
        except OSError as error:
            self.close()
            return {"error": "%s: %s" % (path, error.strerror or error)}
        if not whole:
            return {"error": "%s: not read to its end yet" % path}
        return {"error": "", "xids": self._log.told(), "uuids": dict(self._log.uuids)}

    def _read(self, until: float) -> bool:
        """Whether the end was reached."""
        while time.monotonic() < until:
            try:
                data = os.read(self._fd, RECORD)
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                # Overwritten before it was read; the next read goes on with what is left.
                continue
            if not data:
                return True
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                if b"NVRM: " in line:
                    self._log.feed(line.decode("utf-8", "replace"))
        return False

    def _again(self, path: str) -> None:
        """Go on with a new descriptor once all of it is read: a fault does not vanish meanwhile."""
        fresh = KernelLog()
        if fresh.look(path)["error"]:
            fresh.close()
            self._opened = time.monotonic()
        else:
            self.close()
            self.__dict__.update(fresh.__dict__)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _open(path: str) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if stat.S_ISCHR(found.st_mode) and found.st_rdev == DEVICE:
            os.lseek(fd, 0, os.SEEK_DATA)
        elif not stat.S_ISREG(found.st_mode):
            # Containers have a pipe there that nobody writes to: silence would read as "no Xid".
            raise OSError(errno.ENODEV, "is not the kernel's log")
    except OSError:
        os.close(fd)
        raise
    return fd
