"""What the loop needs of the edges, as structural types: tests pass small fakes, not patches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from reconciler.core.changes import Reason
from reconciler.core.ids import IdSource
from reconciler.core.model import Desired, Revision
from reconciler.core.observed import Lease, Observed
from reconciler.core.verdict import Diff
from reconciler.fleet.checked import Checked
from reconciler.report.passreport import EndpointsStatus


class SourceLike(Protocol):
    """The fleet repo (`reconciler/fleet/source.py`)."""

    @property
    def has_remote(self) -> bool:
        """Whether `fetch` asks somebody what is newest; a path is as new as its last pull."""

    def fetch(self) -> None:
        """Bring the mirror up to date; nothing to do for a path. GitError."""

    def renew(self) -> bool:
        """Fetch a damaged mirror anew; False where there is none to renew. GitError."""

    def resolve(self, ref: str | None) -> Revision:
        """The commit that `ref` names (None: HEAD). GitError."""

    def keep(self, ref: str | None, revision: Revision) -> None:
        """`revision`, found under `ref`, is in force: to be known when `ref` names nothing."""

    def kept(self, ref: str | None) -> Sequence[Revision]:
        """What was in force under `ref` at last; under others where `ref` was never followed."""

    def load(self, revision: Revision) -> Desired:
        """The whole revision. InvalidFleet with all findings, GitError."""

    def load_inventory(self, revision: Revision) -> Desired:
        """Its Fleet and Node documents only: enough to look, never to act. InvalidFleet."""

    def load_worktree(self) -> Desired:
        """The working tree; `revision.dirty` where it differs from HEAD. InvalidFleet."""

    def ancestors(self, commit: str) -> Iterator[Revision]:
        """The commit itself and those before it, newest first."""

    def raw(self, commit: str) -> bytes:
        """The commit object as it is stored. GitError."""

    def blame(self, revision: Revision, file: str, line: int) -> tuple[str, str] | None:
        """Commit and author of a line."""


class SignersLike(Protocol):
    """Whom this reconciler obeys (`reconciler/fleet/signatures.py`)."""

    def check(self, raw: bytes) -> Checked:
        """Judge a raw commit object. Never raises."""


class LeaseAnswer(Protocol):
    """One node's answer to a lease request (`reconciler/nodes/protocol.py`)."""

    @property
    def lease(self) -> Lease | None:
        """As stored now; None where it was refused or did not answer."""

    @property
    def reason(self) -> Reason | None:
        """Why there is none: LeaseHeld, Fenced, NodeUnreachable, …"""

    @property
    def message(self) -> str:
        """What the node said."""


class PoolLike(Protocol):
    """The nodes (`reconciler/nodes/pool.py`)."""

    def look(self, desired: Desired, *, remember: bool = True) -> Observed:
        """All nodes but lost ones, within the fleet's observe timeout. Never raises for a node."""

    def lease(
        self,
        desired: Desired,
        nodes: Sequence[str],
        action: str,
        *,
        epochs: Mapping[str, int] | None = None,
        **fields: Any,
    ) -> Mapping[str, LeaseAnswer]:
        """acquire, renew, release, update or take, in order of name."""

    @property
    def owner(self) -> str:
        """Under which name it looks and asks for leases."""

    def request(self, desired: Desired, node: str, op: str, **fields: Any) -> dict[str, Any]:
        """One request to one node. NodeError."""


class PublisherLike(Protocol):
    """Where endpoints are published (`reconciler/loop/publish.py`)."""

    def publish(
        self,
        desired: Desired,
        observed: Observed,
        judged: Diff,
        *,
        leaving: Collection[str] = (),
        now: str,
    ) -> EndpointsStatus:
        """Bring them up to date, without the launches that are `leaving`. Never raises."""


Apply = Callable[..., Any]
"""`apply(plan, desired, pool, *, epochs, on_step, cancelled)` (`reconciler/nodes/apply.py`)."""

Ask = Callable[..., Mapping[str, Mapping[str, str]]]
"""`ask(plan, desired, pool)`: launch → node → what it found (`reconciler/nodes/asking.py`)."""


@dataclass(frozen=True)
class Edges:
    """All that a pass touches beside its arguments."""

    source: SourceLike
    pool: PoolLike
    owner: str
    apply: Apply
    ids: IdSource
    clock_s: Callable[[], float]
    """Monotonic; durations only."""
    now: Callable[[], str]
    """RFC 3339, for people."""
    publisher: PublisherLike | None = None
    """None: endpoints are published nowhere."""
    signers: SignersLike | None = None
    """None: commits need no signature."""
    ask: Ask | None = None
    """None: there are no nodes that could be asked what a start would meet."""
