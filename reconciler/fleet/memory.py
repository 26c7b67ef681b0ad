"""What a daemon remembers of the revision before: files that are the same are not read again.

A file is known by its path and blob id, so nothing in here can be stale, and losing it costs only
time. Only files without findings are kept: whatever is wrong is found and told anew each time. In
this process only; what outlives it is cache.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from engines.base import Problem
from reconciler.core.model import Profile, ResolvedProfile
from reconciler.fleet.strictyaml import Document

T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True)
class Known:
    """A file that had no findings of its own."""

    id: str
    values: int
    """Values in it, for the limit on the whole repo."""
    documents: tuple[tuple[str, Document, Any], ...]
    """Kind, document, `core/model` value."""


@dataclass
class Memory:
    """Of one repository. What the newest load did not use is forgotten."""

    files: dict[str, Known] = field(default_factory=dict)
    profiles: dict[tuple[int, ...], tuple[Sequence[Document], Profile]] = field(
        default_factory=dict
    )
    """Profiles with their bases merged, by the identities of the documents (which it holds)."""
    checked: dict[tuple[int, int], tuple[ResolvedProfile, Checked]] = field(default_factory=dict)
    """What engines said, by the identities of profile and model (which it holds)."""
    facts: dict[tuple[Callable[[Any], Any], int], tuple[object, Any]] = field(default_factory=dict)
    """What was worked out of one value alone, by what did it and the value's identity."""

    def of(self, value: V, work: Callable[[V], T]) -> T:
        """`work(value)`, which depends on `value` alone; done once for as long as that is kept."""
        key = work, id(value)
        if key not in self.facts:
            self.facts[key] = value, work(value)
        made: T = self.facts[key][1]
        return made

    calm: tuple[object, dict[tuple[int, ...], object]] = (None, {})
    """Circumstances, and the values about which a check had nothing to say under these."""

    def calm_under(self, circumstances: object) -> dict[tuple[int, ...], object]:
        """Those values, by their identities (it holds them); none if the circumstances are new."""
        if self.calm[0] != circumstances or len(self.calm[1]) > 4 * MOST_KEPT:
            self.calm = circumstances, {}
        return self.calm[1]

    def keep(self, files: Mapping[str, Known]) -> None:
        """Forget every file but these, and what belonged to the others."""
        self.files = dict(files)
        alive = {id(doc) for known in self.files.values() for _, doc, _ in known.documents}
        self.profiles = {key: v for key, v in self.profiles.items() if alive.issuperset(key)}
        if len(self.checked) > 4 * MOST_KEPT:
            self.checked.clear()
        if len(self.facts) > 16 * MOST_KEPT:
            self.facts.clear()


@dataclass(frozen=True)
class Checked:
    """What engines say of a profile with its model, whatever the fleet around it."""

    problems: tuple[Problem, ...]
    loader_env: bool
    """Which rule on loader variables these were asked under."""
    ports: int
    """Ports of a launch."""


MOST_KEPT = 20_000
"""Profiles of a large fleet; beyond it the memory of what engines said starts anew."""
