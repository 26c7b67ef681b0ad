"""What one pass saw, decided and did, as one frozen value: the last stage of the line.

Status, metrics, events and the daemon's page are all read off it, so they cannot disagree. It
prints as JSON and reads back (`core/codec.py`). Parts of the edge that report may not import
(findings, step results) are repeated here in the few fields that are told to people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from reconciler.core.changes import Plan, Reason
from reconciler.core.model import Revision
from reconciler.core.verdict import FieldChange

FORMAT_VERSION = "1.0"


class Sync(StrEnum):
    """Whether what runs is what the revision says."""

    SYNCED = "Synced"
    OUT_OF_SYNC = "OutOfSync"
    UNKNOWN = "Unknown"


class Health(StrEnum):
    """Whether what runs serves."""

    HEALTHY = "Healthy"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    SUSPENDED = "Suspended"
    MISSING = "Missing"
    UNKNOWN = "Unknown"


class ConditionKind(StrEnum):
    """What a placement's conditions say."""

    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    """It needs a person."""
    BLOCKED = "Blocked"
    """A guard, window, lease, freeze or lack of capacity holds it."""


@dataclass(frozen=True)
class Condition:
    """One condition; `reason` is from the closed list, or None where nothing needs explaining."""

    kind: ConditionKind
    status: bool
    reason: Reason | None = None
    message: str = ""


@dataclass(frozen=True)
class ReplicaStatus:
    """One replica as `status` shows it."""

    replica: str
    verdict: str
    reason: str
    ready: bool = False
    wanted: bool = True
    launch: str = ""
    """The launch that it is shown by: current, else kept, else the last."""
    nodes: tuple[str, ...] = ()
    endpoint: str = ""
    """`address:port` of its leader; empty where it serves nothing."""
    changes: tuple[FieldChange, ...] = ()
    started_age_s: float = 0.0
    ready_for_s: float = 0.0
    failed_launch: str = ""
    """The newest launch that ended by itself before it was ready; empty where none is known."""
    failed_why: str = ""
    """How that ended, with the last line of its log."""


@dataclass(frozen=True)
class PlacementStatus:
    """One placement on both axes, with its conditions."""

    placement: str
    model: str
    profile: str
    sync: Sync
    health: Health
    wanted: int
    ready: int
    conditions: tuple[Condition, ...] = ()
    replicas: tuple[ReplicaStatus, ...] = ()

    def condition(self, kind: ConditionKind) -> Condition:
        """The condition of this kind; false where it was not set."""
        found = (c for c in self.conditions if c.kind is kind)
        return next(found, Condition(kind, status=False))


@dataclass(frozen=True)
class NodeStatus:
    """One node as the pass saw it."""

    node: str
    state: str
    seen: bool
    error: str = ""
    """Reason from the closed list; empty where it answered."""
    detail: str = ""
    look_ms: float = 0.0
    held_by: str = ""
    """Who holds it by hand, and why; empty for nobody."""
    held_for_s: float = 0.0
    """Until the hold ends by itself; 0: it does not, or there is none."""
    held_launch: str = ""
    """The one launch that the hold means; empty: the whole node, or there is no hold."""
    lease_owner: str = ""
    lease_remaining_s: float = 0.0


@dataclass(frozen=True)
class Finding:
    """One finding in the fleet repo, as it is told to people."""

    file: str
    line: int
    subject: str
    message: str
    hint: str = ""
    reason: str = ""
    commit: str = ""
    """Which commit wrote the line, and who; empty where git does not say."""
    author: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        parts = (where, self.subject, self.message)
        text = ": ".join(part for part in parts if part)
        text = f"{text}; {self.hint}" if self.hint else text
        by = f" (commit {self.commit[:10]} by {self.author})" if self.commit else ""
        return text + by


WORKTREE = "the working tree"
"""In place of a commit's name."""


@dataclass(frozen=True)
class HeadError:
    """Why head could not be taken: git, or a revision that does not validate."""

    reason: str
    """From the closed list: FetchFailed, ParseFailed, …"""
    message: str
    revision: str = ""
    """Empty where not even the commit is known."""
    author: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class HistoryTurn:
    """Head is no successor of the revision in force: main was reset, or it is another branch."""

    before: str
    """The commit in force."""
    after: str
    """Head."""
    message: str
    """For people: what it takes back."""
    known: bool = True
    """Whether the repository has `before` at all."""


@dataclass(frozen=True)
class StepOutcome:
    """What became of one step on one node."""

    kind: str
    subject: str
    node: str
    result: str
    """done | refused | failed | lost | skipped."""
    code: str = ""
    message: str = ""
    took_s: float = 0.0


@dataclass(frozen=True)
class EndpointCount:
    """Published endpoints of one served name in one state."""

    name: str
    state: str
    """ready | unreachable | unknown."""
    count: int


@dataclass(frozen=True)
class EndpointsStatus:
    """What became of publishing the endpoints in this pass (docs/endpoints.md)."""

    folder: str
    changed: bool = False
    counts: tuple[EndpointCount, ...] = ()
    kept: tuple[str, ...] = ()
    """Entries that are not known to be ready and stay all the same, one line each."""
    error: str = ""
    """Why nothing could be written; the files are as they were."""
    hook_error: str = ""
    note: str = ""

    @property
    def problems(self) -> tuple[str, ...]:
        """For people; empty: all is well."""
        errors = (("endpoints", self.error), ("endpoints hook", self.hook_error))
        told = [f"{what}: {why}; tried again at the next pass" for what, why in errors if why]
        return (*told, *((f"endpoints: {self.note}",) if self.note else ()))


@dataclass(frozen=True)
class Revisions:
    """The three that are told apart everywhere; a commit each, empty where not known."""

    head: str = ""
    in_force: str = ""
    """The last that validated and passed the guard."""
    applied: str = ""
    """The last under which everything was ready; empty where this process never saw that."""
    ref: str = ""


@dataclass(frozen=True)
class PassReport:
    """One whole pass."""

    owner: str
    observed_at: str
    """RFC 3339, by the control machine's clock: for people only."""
    revisions: Revisions
    exit_code: int = 0
    working_on: Revision | None = None
    """The revision that the plan was made for: head, or the one in force where head is bad."""
    head_error: HeadError | None = None
    turned: HistoryTurn | None = None
    """None: head is what is in force, or goes on from it."""
    plan: Plan | None = None
    """None where there was nothing to plan with."""
    placements: tuple[PlacementStatus, ...] = ()
    nodes: tuple[NodeStatus, ...] = ()
    steps: tuple[StepOutcome, ...] = ()
    endpoints: EndpointsStatus | None = None
    """None: none are published by this process, or the pass got not so far."""
    unsettled: str = ""
    """Why a wait ended before everything was ready; empty: it did not, or nobody waited."""
    lease_held_by: str = ""
    """The other owner whose living lease kept this pass from acting."""
    notes: tuple[str, ...] = ()
    durations_s: Mapping[str, float] = field(default_factory=dict)
    """By stage: revision, look, plan, lease, apply; and `total`."""
    interval_s: float = 0.0
    """What fleet.yaml asks for between passes; 0: it was not read."""
    format_version: str = FORMAT_VERSION
