"""The documents of a fleet repo by kind and name, and where each of their values stands.

Built by load.py, read by every check. A check says *what* is wrong with which path of which
document; the place is looked up here, by reading that one file again with positions, because
almost every file of almost every revision is without findings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reconciler.core.changes import Reason
from reconciler.fleet.cache import DocumentCache
from reconciler.fleet.explain import place
from reconciler.fleet.findings import Finding, dotted, listed, nearest
from reconciler.fleet.limits import Limits
from reconciler.fleet.memory import Memory
from reconciler.fleet.plaintext import decode
from reconciler.fleet.strictyaml import Document, Path, parse_with_positions

EXAMPLE_FLEET_ID = "00000000-0000-4000-8000-00000000feed"
"""The id of fleet-repo-example/: two fleets with one id would act on each other's launches, so it
is refused as soon as a node is not on loopback."""


_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}").fullmatch


def safe_name(name: object) -> str:
    """`name` where a message may call a document by it; else empty."""
    return name if isinstance(name, str) and _SAFE_NAME(name) else ""


@dataclass(frozen=True)
class SourceFile:
    """One YAML file of a revision or a working tree."""

    path: str
    content: bytes | Callable[[], bytes]
    """The bytes, or how to get them: a file that is known need not be read."""
    id: str = ""
    """Git's id of the content; empty where it is not known."""

    @property
    def raw(self) -> bytes:
        """The bytes."""
        return self.content if isinstance(self.content, bytes) else self.content()


@dataclass
class Entry:
    """One document that fits its schema."""

    kind: str
    name: str
    document: Document
    value: Any
    """The `core/model` value; for an abstract profile None."""
    bases: tuple[Entry, ...] = ()
    """Profiles that this one extends, nearest first."""

    @property
    def subject(self) -> str:
        return f"{self.kind.lower()} {self.name}".rstrip()

    @property
    def where(self) -> str:
        return f"{self.document.file}:{self.document.line}"


@dataclass
class Repo:
    """What has been read so far. Mutable while load.py fills it; checks only read."""

    files: Mapping[str, SourceFile]
    limits: Limits
    memory: Memory = field(default_factory=Memory)
    cache: DocumentCache = field(default_factory=DocumentCache)
    entries: dict[str, dict[str, Entry]] = field(default_factory=dict)
    broken: dict[str, set[str]] = field(default_factory=dict)
    """Names by kind of documents that do not fit: a reference to them is not dangling."""
    misfits: list[tuple[str, Document]] = field(default_factory=list)
    """Documents of a known kind that do not fit: their references are checked all the same."""
    blind: bool = False
    """Some file could not be read to its end, so any name may be defined there."""
    guesses: int = 100_000
    """Names that may still be compared for "did you mean": each costs some microseconds, and a
    hostile repo has thousands of wrong ones among thousands of right ones."""
    _placed: dict[str, Sequence[Document]] = field(default_factory=dict)

    def of(self, kind: str) -> Mapping[str, Entry]:
        """The documents of a kind by name."""
        return self.entries.get(kind, {})

    def values(self, kind: str) -> dict[str, Any]:
        """The `core/model` values of a kind by name, without what is abstract."""
        return {n: e.value for n, e in self.of(kind).items() if e.value is not None}

    def maybe(self, kind: str, name: str) -> bool:
        """Whether `name` is or may be defined."""
        return self.blind or name in self.of(kind) or name in self.broken.get(kind, ())

    def choices(self, name: str, what: str, known: Collection[str]) -> str:
        """What to write instead of an unknown `name`: the nearest one, or which there are."""
        if not known:
            return f"there are no {what}"
        if self.guesses < len(known):
            return f"there are {len(known)} {what}"
        self.guesses -= len(known)
        return nearest(name, known) or f"{what} are {listed(known)}"

    def positioned(self, document: Document) -> Document:
        """The same document with positions."""
        if document.positions is not None:
            return document
        if document.file not in self._placed:
            text, _ = decode(document.file, self.files[document.file].raw, self.limits)
            parsed = parse_with_positions(document.file, text or "", self.limits)
            self._placed[document.file] = parsed.documents
        return self._placed[document.file][document.index]

    def finding(
        self,
        entry: Entry,
        path: Path,
        message: str,
        hint: str = "",
        *,
        reason: Reason = Reason.REFERENCE_FAILED,
        warning: bool = False,
        key: bool = False,
    ) -> Finding:
        """A finding about `path` of `entry`, at the line where that value is written."""
        document = self.positioned(entry.document)
        for base in entry.bases:
            if path and path in (document.positions or {}):
                break
            candidate = self.positioned(base.document)
            if path and path in (candidate.positions or {}):
                document = candidate
                break
        line, column = place(document, path, key=key)
        shown = dotted(path)
        return Finding(
            document.file, line, column, shown, entry.subject, message, hint, reason, warning
        )
