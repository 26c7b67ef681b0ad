"""What `plan` says: every change with its reason, what is done now, and what is held and why.

A plan is complete: apply executes `steps` in order and never chooses. It is also honest: a change
that limits postpone is in it without steps and says what it waits for (`waits`), and what cannot
be done at all is a `Hold`. An idle reconciler and a stuck one must not look alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from reconciler.core.model import Revision
from reconciler.core.observed import ApprovedChange, Labels
from reconciler.core.verdict import FieldChange

FORMAT_VERSION = "1.0"


class Symbol(StrEnum):
    """Plan symbols, as Terraform users read them."""

    START = "+"
    STOP = "-"
    STOP_FIRST = "-/+"
    START_FIRST = "+/-"
    RELABEL = "~"
    UNKNOWN = "?"
    BLOCKED = "!"


class Reason(StrEnum):
    """Why something is held, or a condition holds: a closed list, documented in docs/reasons.md."""

    FETCH_FAILED = "FetchFailed"
    AUTHENTICATION_FAILED = "AuthenticationFailed"
    HOST_KEY_MISMATCH = "HostKeyMismatch"
    SIGNATURE_INVALID = "SignatureInvalid"
    HISTORY_REWRITTEN = "HistoryRewritten"
    PARSE_FAILED = "ParseFailed"
    SCHEMA_FAILED = "SchemaFailed"
    REFERENCE_FAILED = "ReferenceFailed"
    INFEASIBLE = "Infeasible"
    NO_CAPACITY = "NoCapacity"
    BLAST_RADIUS = "BlastRadius"
    WINDOW_CLOSED = "WindowClosed"
    FROZEN = "Frozen"
    LEASE_HELD = "LeaseHeld"
    FENCED = "Fenced"
    NODE_HELD = "NodeHeld"
    NODE_UNREACHABLE = "NodeUnreachable"
    NODE_UNSUITABLE = "NodeUnsuitable"
    NODE_NOT_EMPTY = "NodeNotEmpty"
    MACHINE_ID_CHANGED = "MachineIdChanged"
    DUPLICATE_NODE = "DuplicateNode"
    OBSERVATION_DAMAGED = "ObservationDamaged"
    STRANGER_ON_GPU = "StrangerOnGPU"
    UNKNOWN_FINGERPRINT = "UnknownFingerprint"
    PREFLIGHT_FAILED = "PreflightFailed"
    START_FAILED = "StartFailed"
    START_TIMEOUT = "StartTimeout"
    CRASH_LOOP = "CrashLoop"
    REJECTED = "ProfileRejected"
    CANARY = "CanaryRunning"
    MAX_UNAVAILABLE = "MaxUnavailable"
    MAX_PARALLEL = "MaxParallel"
    MAX_SURGE = "MaxSurge"
    SUSPENDED = "Suspended"
    MANUAL_UPDATE = "ManualUpdate"
    SICK_TOGETHER = "ManySick"
    QUARANTINED = "Quarantined"
    STUCK = "Stuck"
    BACKOFF = "BackOff"
    STOPPING = "Stopping"
    PERHAPS_RUNNING = "PerhapsRunning"


# --- Steps: what apply does -------------------------------------------------------------------


@dataclass(frozen=True)
class ShardSpec:
    """One rank of a start; `spec` becomes spec.json on the node (docs/agent-protocol.md)."""

    node: str
    spec: Mapping[str, Any]
    labels: Labels


@dataclass(frozen=True)
class StartStep:
    """Start one launch on all its nodes."""

    replica: str
    launch: str
    seq: int
    fingerprint: str
    shards: tuple[ShardSpec, ...]
    kind: str = "start"


@dataclass(frozen=True)
class StopStep:
    """Ask all nodes of a launch to stop it. Returns at once: the node carries the intent out."""

    replica: str
    launch: str
    nodes: tuple[str, ...]
    reason: str
    voluntary: bool = True
    """False: a repair, or the rest of something that has ended."""
    check: tuple[ShardSpec, ...] = ()
    """What its successor will be told, where it is stopped first: the nodes are asked whether they
    could start that, and only if all of them could is the stop sent. Its launch id is nobody's."""
    kind: str = "stop"


@dataclass(frozen=True)
class RelabelStep:
    """Replace labels.json of a launch."""

    replica: str
    launch: str
    nodes: tuple[str, ...]
    labels: Labels
    kind: str = "relabel"


@dataclass(frozen=True)
class AdoptStep:
    """Give a living launch without supervisor a new one. A repair; never shown as a change."""

    launch: str
    nodes: tuple[str, ...]
    kind: str = "adopt"


Step = StartStep | StopStep | RelabelStep | AdoptStep


# --- The plan ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seat:
    """Where one rank is or will be."""

    node: str
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Change:
    """One line of a plan."""

    address: str
    """The replica's id."""
    placement: str
    symbol: Symbol
    reason: str
    verdict: str = ""
    changes: tuple[FieldChange, ...] = ()
    before: str = ""
    """Fingerprint now; empty: nothing runs."""
    after: str = ""
    """Fingerprint to be; empty: stopped."""
    before_seats: tuple[Seat, ...] = ()
    after_seats: tuple[Seat, ...] = ()
    """Empty where the place is only chosen once the limits let it go on."""
    steps: tuple[Step, ...] = ()
    """What this pass does now."""
    waits: str = ""
    """Why this pass does not do (all of) it."""
    waits_for: Reason | None = None
    load_minutes: int = 0


@dataclass(frozen=True)
class Hold:
    """Something that is wanted and not done, and why."""

    subject: str
    """`replica llama-0`, `node gpu-a`, `placement chat`."""
    reason: Reason
    message: str
    placement: str = ""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Node → why it does not fit; summed up in `message`."""


@dataclass(frozen=True)
class GuardVerdict:
    """One guard over the whole revision."""

    name: str
    """removed | replaced | unseen."""
    scope: str
    limit: str
    value: str
    passed: bool
    message: str = ""
    changes: tuple[ApprovedChange, ...] = ()
    """The guarded set: what an approval stores."""
    approved: bool = False


@dataclass(frozen=True)
class Capacity:
    """What a plan costs one placement meanwhile."""

    placement: str
    model: str
    wanted: int
    ready: int
    lowest: int


@dataclass(frozen=True)
class Summary:
    """Counts over the plan's changes and holds."""

    start: int = 0
    stop: int = 0
    replace: int = 0
    relabel: int = 0
    unknown: int = 0
    held: int = 0
    unchanged: int = 0


@dataclass(frozen=True)
class Plan:
    """One pass's whole decision."""

    revision: Revision
    changes: tuple[Change, ...] = ()
    holds: tuple[Hold, ...] = ()
    guards: tuple[GuardVerdict, ...] = ()
    capacity: tuple[Capacity, ...] = ()
    warnings: tuple[str, ...] = ()
    repairs: tuple[Step, ...] = ()
    """Adoptions and the sweeping of what has ended: needs no budget, shows no line."""
    summary: Summary = field(default_factory=Summary)
    plan_digest: str = ""
    """Hash of the revision and the actions, without launch suffixes, ports and ages."""
    format_version: str = FORMAT_VERSION

    @property
    def steps(self) -> tuple[Step, ...]:
        """All that this pass does, in order: repairs first."""
        return self.repairs + tuple(step for change in self.changes for step in change.steps)
