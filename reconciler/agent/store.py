"""Records on disk: whole or absent, at any kill and on a full disk; damaged is not absent.

Temp file, fsync, rename. Every record carries a check value over its own content, because a flipped
digit is still good JSON; a record written without one (by hand, by an older agent) is believed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from typing import Any, BinaryIO, Callable, Dict, NamedTuple, Tuple

from .wire import Json

MAX_RECORD = 4 * 1024 * 1024
MAX_DEPTH = 64
MAX_DIGITS = 18
CHECK = "check"


class Damaged(Exception):
    """The file is there and cannot be believed."""


class Unreadable(Damaged):
    """What is there, if anything is, could not be read just now: the disk fails, or this process
    has no descriptor left. It says nothing about the content."""


def write_bytes(path: str, data: bytes) -> None:
    """Replace `path` atomically, mode 0600. OSError leaves the old content in place."""
    folder, name = os.path.split(path)
    part = os.path.join(folder, ".%s.%d.part" % (name, os.getpid()))
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        fd = os.open(part, flags, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(part, path)
    except OSError:
        _remove(part)
        raise
    sync_folder(folder)


def sync_folder(folder: str) -> None:
    """Make a rename in `folder` outlast a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write(path: str, record: Json) -> None:
    """Replace the record at `path`."""
    write_bytes(path, seal(record))


def seal(record: Json) -> bytes:
    """The record's bytes, its check value last."""
    body = {key: value for key, value in record.items() if key != CHECK}
    body[CHECK] = _check(body)
    return (json.dumps(body, ensure_ascii=True, indent=1) + "\n").encode("ascii")


def open_plain(path: str, *, follow: bool = False) -> BinaryIO:
    """A regular file, for reading. OSError for anything else: a pipe would be waited for, a link
    leads to a file that nobody of us wrote (`follow`: people put logs elsewhere)."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    fd = os.open(path, flags)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    raise OSError(errno.EINVAL, "it is no plain file", path)


def read(path: str) -> Json:
    """The record at `path`. FileNotFoundError: absent; Damaged: anything else that is wrong."""
    try:
        with open_plain(path) as file:
            data = file.read(MAX_RECORD + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(
            "%s cannot be read: %s" % (os.path.basename(path), error.strerror)
        ) from None
    return parse(data, os.path.basename(path))


def parse(data: bytes, name: str) -> Json:
    """The record in `data`, checked. Raises Damaged."""
    if len(data) > MAX_RECORD:
        raise Damaged("%s has more than %d bytes" % (name, MAX_RECORD))
    try:
        record = json.loads(
            data.decode("utf-8"), parse_int=_whole, parse_float=_finite, parse_constant=_finite
        )
    except (ValueError, RecursionError) as error:
        raise Damaged("%s is damaged: %s" % (name, error)) from None
    if not isinstance(record, dict):
        raise Damaged("%s is damaged: no object" % name)
    if depth(record) > MAX_DEPTH:
        raise Damaged("%s is nested deeper than %d" % (name, MAX_DEPTH))
    check = record.pop(CHECK, None)
    if check is not None and check != _check(record):
        raise Damaged("%s is damaged: its content does not match its check value" % name)
    return record


def _whole(text: str) -> int:
    """No record holds such a number, and arithmetic with it would end in an error elsewhere."""
    if len(text) > MAX_DIGITS:
        raise ValueError("a number of %d digits" % len(text))
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not abs(number) < 10.0**MAX_DIGITS:
        raise ValueError("the number %s" % text[:40])
    return number


def depth(value: object) -> int:
    """How deep `value` nests; without recursion, since hostile data is deep."""
    deepest, todo = 0, [(value, 1)]
    while todo:
        item, level = todo.pop()
        deepest = max(deepest, level)
        if level > MAX_DEPTH:
            return level
        if isinstance(item, dict):
            todo.extend((child, level + 1) for child in item.values())
        elif isinstance(item, list):
            todo.extend((child, level + 1) for child in item)
    return deepest


def _check(record: Json) -> str:
    text = json.dumps(record, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


class Signature(NamedTuple):
    """What tells two contents of a path apart: every write of ours makes a new file by rename."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class Cache:
    """Records by path, parsed again only when their file is another one.

    Keeps damage as well, so that a damaged record costs no more than a good one. Holds at most the
    paths asked for since the last `forget`.
    """

    def __init__(self) -> None:
        self._known: Dict[str, Tuple[Signature, Any, str]] = {}
        self._parsed: Dict[str, Tuple[bytes, Any]] = {}

    def read(self, path: str, shape: Callable[[Json], Any] = lambda record: record) -> Any:
        """What `shape` makes of the record (it may raise Damaged); one shape for each path.

        The returned object is shared and must not be changed. Raises as `read`.
        """
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            self._known.pop(path, None)
            raise
        except OSError as error:
            raise Unreadable(
                "%s cannot be read: %s" % (os.path.basename(path), error.strerror)
            ) from None
        signature = Signature(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        known = self._known.get(path)
        if known is None or known[0] != signature:
            known = self._load(path, signature, shape)
            self._known[path] = known
        if known[1] is None:
            raise Damaged(known[2])
        return known[1]

    def parse(self, path: str, data: bytes, make: Callable[[bytes], Any]) -> Any:
        """What `make` makes of `data`, made again only when `path` has other bytes than before."""
        known = self._parsed.get(path)
        if known is None or known[0] != data:
            known = (data, make(data))
            self._parsed[path] = known
        return known[1]

    def forget(self, keep_prefixes: Tuple[str, ...]) -> None:
        """Drop what lies under none of the prefixes."""
        self._known = {p: v for p, v in self._known.items() if p.startswith(keep_prefixes)}
        self._parsed = {p: v for p, v in self._parsed.items() if p.startswith(keep_prefixes)}

    @staticmethod
    def _load(
        path: str, signature: Signature, shape: Callable[[Json], Any]
    ) -> Tuple[Signature, Any, str]:
        try:
            return signature, shape(read(path)), ""
        except Unreadable:
            raise  # not kept: the next look may well be able to
        except Damaged as error:
            return signature, None, str(error)
