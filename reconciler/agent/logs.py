"""The output of a shard's commands: read for people, bounded for the disk.

Children write by themselves with O_APPEND: a pipe would break with the supervisor, a rename would
leave the child writing to the old file. So a log is bounded by copying it away and truncating it.
"""

from __future__ import annotations

import os
import re
import stat
from typing import List, Optional, Tuple

from . import store
from .wire import AgentError, Json

MAX_BYTES = 16 * 1024 * 1024
READ_CHUNK = 256 * 1024
MAX_LINE = 4096
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}\Z")


def bound(path: str, limit: int = MAX_BYTES, *, keep: bool = True) -> bool:
    """Copy the log to `.1` and truncate it once it is larger than `limit`; whether it was done.

    What is written between copy and truncation is lost: a few lines, once every 16 MiB. Where the
    copy does not fit on the disk the log is truncated all the same: the disk comes first. Without
    `keep` nothing is copied: whoever fills a log in a second says the same again and again.
    """
    try:
        if os.stat(path).st_size <= limit:
            return False
        try:
            if keep:
                _copy_end(path, path + ".1", limit)
        except OSError:
            pass
        os.truncate(path, 0)
    except OSError:
        return False
    return True


def bound_removed(pid: int, limit: int = MAX_BYTES) -> bool:
    """As `bound`, of a log that was removed while `pid` writes on to it: it has no name any more,
    and fills the disk all the same."""
    path = "/proc/%d/fd/1" % pid
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink or found.st_size <= limit:
            return False
        os.truncate(path, 0)
    except OSError:
        return False
    return True


def _copy_end(source: str, target: str, limit: int) -> None:
    with open(source, "rb") as old:
        old.seek(max(0, os.fstat(old.fileno()).st_size - limit))
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb") as new:
            while True:
                chunk = old.read(1024 * 1024)
                if not chunk:
                    return
                new.write(chunk)


def tail(folder: str, spec: Optional[Json], lines: int, limit: int) -> List[str]:
    """The last lines of the command whose exit counts, oldest first; `limit` bytes at most."""
    command = _last_command(spec)
    if not command:
        return []
    found = _last_lines(os.path.join(folder, command + ".log"), lines, limit)
    while found and sum(len(line) + 1 for line in found) > limit:
        found.pop(0)
    return found


def _last_command(spec: Optional[Json]) -> str:
    commands = spec.get("commands") if spec else None
    if not isinstance(commands, list) or not commands or not isinstance(commands[-1], dict):
        return ""
    name = commands[-1].get("name")
    return name if isinstance(name, str) and _NAME.match(name) else ""


def _last_lines(path: str, lines: int, limit: int) -> List[str]:
    try:
        with store.open_plain(path, follow=True) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - limit))
            data = file.read(limit)
    except OSError:
        return []
    found = _decode(data)
    if size > limit and found:
        found = found[1:]
    return found[-lines:] if lines > 0 else []


def _decode(data: bytes) -> List[str]:
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    return [line[:MAX_LINE] for line in text.rstrip("\n").split("\n")] if text else []


def read(folder: str, spec: Optional[Json], command: str, lines: int, offset: int) -> Json:
    """A `logs` answer: the last `lines`, or, with an `offset`, what was written since.

    An offset beyond the end means that the log was truncated: it is then read from its start.
    """
    name = command or _last_command(spec)
    commands = sorted(n[:-4] for n in _names(folder) if n.endswith(".log"))
    if not name or not _NAME.match(name):
        raise AgentError("bad-request", "command %r: known are %s" % (name, ", ".join(commands)))
    path = os.path.join(folder, name + ".log")
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        return {"lines": [], "offset": 0, "commands": commands}
    except OSError as error:
        raise AgentError("io", "%s: %s" % (path, error.strerror)) from None
    if offset < 0:
        limit = min(READ_CHUNK * 8, max(READ_CHUNK, lines * 200))
        return {"lines": _last_lines(path, lines, limit), "offset": size, "commands": commands}
    try:
        found, end = _since(path, 0 if offset > size else offset)
    except OSError as error:
        raise AgentError("io", "%s: %s" % (path, error.strerror)) from None
    return {"lines": found, "offset": end, "commands": commands}


def _since(path: str, offset: int) -> Tuple[List[str], int]:
    with store.open_plain(path, follow=True) as file:
        file.seek(offset)
        data = file.read(READ_CHUNK)
    # A line that is still being written is left for the next time, unless it fills the chunk.
    end = data.rfind(b"\n") + 1
    if end == 0 and len(data) == READ_CHUNK:
        end = len(data)
    return _decode(data[:end]), offset + end


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
