"""What goes into a pass and what stands between its stages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reconciler.core.changes import Plan
from reconciler.core.model import Desired
from reconciler.core.observed import Observed
from reconciler.core.verdict import Diff
from reconciler.loop.leases import Book

if TYPE_CHECKING:
    from reconciler.nodes.apply import StepResult


def never() -> bool:
    """Nothing cancels this pass."""
    return False


@dataclass(frozen=True)
class Request:
    """What is asked of one pass."""

    ref: str | None = None
    worktree: bool = False
    """Look at the working tree instead of a commit."""
    act: bool = True
    """False: the line ends with the plan."""
    expect: str = ""
    """Digest of the plan that was reviewed, or its beginning; another one is stale."""
    reviewed: bool = False
    """A person has seen the plan of this revision, and what it takes back."""
    keep: Book | None = None
    """The daemon and --wait: where the leases are kept for the next pass; None: given back."""
    applied: str = ""
    """The revision last seen applied by this process."""
    on_plan: Callable[[Plan], None] | None = None
    """Told of the plan before it is applied."""
    on_step: Callable[[StepResult], None] | None = None
    """Told of each step on each node as it ends."""
    cancelled: Callable[[], bool] = never
    """Asked before each step: no new one is begun."""
    abrupt: Callable[[], AbstractContextManager[None]] = nullcontext
    """Stands around what may be ended at once, since nothing is being done: a fetch, a look."""


@dataclass(frozen=True)
class Decision:
    """Diff and plan of one look."""

    desired: Desired
    observed: Observed
    diff: Diff
    plan: Plan


@dataclass
class Stopwatch:
    """Seconds by stage."""

    clock_s: Callable[[], float]
    took_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._first_s = self._last_s = self.clock_s()

    def lap(self, stage: str) -> None:
        """All since the last lap was `stage`."""
        now = self.clock_s()
        self.took_s[stage] = self.took_s.get(stage, 0.0) + now - self._last_s
        self._last_s = now
        self.took_s["total"] = now - self._first_s
