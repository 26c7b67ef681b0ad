"""Files that were parsed before, on disk: a command starts, reads ten thousand documents, and ends.

Kept is what the parser made of a file, by git's id of the file's content. It can change no result:

- only files without findings are in it, and schema, references and checks are asked anew each time;
- the stamp covers all that decides what a file means: the parser's own source, the versions of
  Python, PyYAML and libyaml, the limits. Under another stamp the cache is empty;
- a checksum covers every byte, the file must be ours and writable by nobody else, and whatever is
  wrong with it reads as empty. It is JSON: reading it runs nothing.

To delete it at any moment is safe. Writers replace it whole, by rename; the last one wins, and what
the others had is parsed again. A folder that cannot be written costs only time (docs/adr/0011).
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from reconciler.fleet.limits import Limits
from reconciler.fleet.strictyaml import Document, Parsed

FORMAT = "reconcile documents 1"
SUFFIX = ".documents"

PARSER = ("strictyaml", "plaintext", "scalars", "findings", "limits")
"""Modules of this package that decide what a file means."""

MOST_BYTES = 8 << 20
"""Of YAML in one cache: four times a fleet of 10,000 documents. Beyond it files are parsed anew."""

MOST_ON_DISK = 4 * MOST_BYTES
"""A file that is larger was not written by us."""

WORTH_WRITING = 0.1
"""The part of all values that must be new before the cache is written: writing a value costs about
a tenth of parsing it."""

MOST_REPOS = 50
"""Caches kept in one folder, the newest: CI clones into another folder each time."""

STALE_S = 3600
"""Age of a temporary file after which its writer is dead."""


@dataclass(frozen=True)
class Entry:
    """One file, parsed."""

    size: int
    """Bytes of YAML."""
    values: int
    documents: list[Any]
    """[line, column, data] of each."""

    @classmethod
    def of(cls, parsed: Parsed, size: int) -> Entry:
        """What there is to keep of a parsed file."""
        return cls(size, parsed.values, [[d.line, d.column, d.data] for d in parsed.documents])

    def parsed(self, path: str) -> Parsed:
        """As the parser would give it for a file at `path`."""
        return Parsed(
            [
                Document(path, index, line, column, data)
                for index, (line, column, data) in enumerate(self.documents)
            ],
            values=self.values,
        )


@dataclass
class DocumentCache:
    """The cache of one repository. In memory until `save`."""

    file: Path | None = None
    """None: nothing is written."""
    stamp: str = ""
    limits: Limits = field(default_factory=Limits)
    entries: dict[str, Entry] = field(default_factory=dict)
    """By id of the content."""
    _used: dict[str, Entry] = field(default_factory=dict)
    _values: int = 0
    _new_values: int = 0

    @classmethod
    def open(cls, file: Path, limits: Limits) -> DocumentCache:
        """What is kept in `file`; empty where that cannot be relied on. Never raises for it."""
        stamp = parser_stamp(limits)
        if not stamp:
            return cls(limits=limits)
        return cls(file, stamp, limits, _read(file, stamp))

    def get(self, oid: str, path: str) -> Parsed | None:
        """What was made of this content before, as a file at `path`; None: it is to be parsed."""
        entry = self._use(oid)
        return entry.parsed(path) if entry else None

    def put(self, oid: str, parsed: Parsed, size: int) -> None:
        """Keep a file of `size` bytes that was parsed, if it may be kept."""
        # Where an alias is used, one value in memory would be many on disk, without a bound.
        good = not parsed.findings and parsed.complete and not parsed.aliases
        if oid and good and self.stamp and not any(d.odd for d in parsed.documents):
            self._new_values += parsed.values
            self.entries[oid] = Entry.of(parsed, size)
            self._use(oid)

    def still_used(self, oid: str) -> None:
        """Of a file for which nobody had to ask: it is in memory."""
        self._use(oid)

    def _use(self, oid: str) -> Entry | None:
        entry = self.entries.get(oid)
        if entry is not None:
            self._values += entry.values
            self._used[oid] = entry
        return entry

    def save(self) -> None:
        """Write it, if enough is new; files that this revision does not have go first."""
        used, values, new = self._used, self._values, self._new_values
        self._used, self._values, self._new_values = {}, 0, 0
        self.entries = _newest({**used, **self.entries}, most=2 * len(used))
        if self.file is not None and new > WORTH_WRITING * values:
            with suppress(OSError):
                _write(self.file, self.stamp, self.entries)


def _newest(entries: dict[str, Entry], most: int) -> dict[str, Entry]:
    """The first of `entries` that fit the bounds."""
    kept: dict[str, Entry] = {}
    size = 0
    for oid, entry in entries.items():
        size += entry.size
        if len(kept) >= most or size > MOST_BYTES:
            break
        kept[oid] = entry
    return kept


@cache
def parser_stamp(limits: Limits) -> str:
    """Differs wherever a file could mean something else; empty where that cannot be told."""
    libyaml = yaml._yaml.get_version_string()
    known = [FORMAT, sys.version, yaml.__version__, libyaml, repr(limits)]
    told = hashlib.sha256("\0".join(known).encode())
    try:
        for name in PARSER:
            told.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    except OSError:
        return ""
    return told.hexdigest()


# --- On disk ------------------------------------------------------------------------------------


def _read(file: Path, stamp: str) -> dict[str, Entry]:
    try:
        raw = _read_own(file)
        head, _, body = raw.partition(b"\n")
        if head != _head(stamp, body):
            return {}
        data = json.loads(body)
        return {oid: Entry(size, values, docs) for oid, (size, values, docs) in data.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _head(stamp: str, body: bytes) -> bytes:
    return f"{FORMAT} {stamp} {hashlib.sha256(body).hexdigest()}".encode()


def _read_own(file: Path) -> bytes:
    """The bytes of a plain file that only we can write; OSError where it is something else."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        own = status.st_uid == os.geteuid() and not status.st_mode & 0o022
        if not (stat.S_ISREG(status.st_mode) and own and status.st_size <= MOST_ON_DISK):
            raise OSError(0, "not a cache of ours")
        return opened.read(MOST_ON_DISK + 1)


def _write(file: Path, stamp: str, entries: dict[str, Entry]) -> None:
    data = {oid: [entry.size, entry.values, entry.documents] for oid, entry in entries.items()}
    body = json.dumps(data, separators=(",", ":")).encode("ascii")
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _prune(file)
    temporary = file.with_name(f"{file.name}.{os.urandom(6).hex()}.tmp")
    try:
        # No fsync: what a power cut tears fails its checksum.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600), "wb") as opened:
            opened.write(_head(stamp, body) + b"\n" + body)
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _prune(file: Path) -> None:
    """Keep the folder small: the caches of the newest repositories, no remains of dead writers."""
    now_s = time.time()
    ages: list[tuple[float, Path]] = []
    for path in file.parent.glob(f"*{SUFFIX}*"):
        age_s = now_s - path.lstat().st_mtime
        if path.suffix == SUFFIX and path != file:
            ages.append((age_s, path))
        elif path.suffix == ".tmp" and age_s > STALE_S:
            path.unlink(missing_ok=True)
    for _, path in sorted(ages)[MOST_REPOS - 1 :]:
        path.unlink(missing_ok=True)
