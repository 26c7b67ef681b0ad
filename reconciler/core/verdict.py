"""What `diff` says: exactly one verdict per launch, each with its reason; and one per replica.

These are the values between diff and plan. Nothing in here decides; `diff.py` fills them in and
`plan.py` acts on them, so a situation can be saved and replayed at this seam too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from reconciler.core.model import ResolvedProfile
from reconciler.core.observed import Place, Shard


class Verdict(StrEnum):
    """DESIGN, "Verdicts": an ordered table, the first rule that matches wins."""

    UNREACHABLE = "unreachable"
    STOPPING = "stopping"
    UNKNOWN = "unknown"
    SURPLUS = "surplus"
    SUSPENDED = "suspended"
    EXITED = "exited"
    TIMED_OUT = "timed out"
    STALE = "stale"
    MISPLACED = "misplaced"
    STARTING = "starting"
    UNHEALTHY = "unhealthy"
    MATCHING = "matching"
    MISSING = "missing"
    """Of replicas only: wanted, without any launch but such as were stopped on request."""


@dataclass(frozen=True)
class FieldChange:
    """One field of the profile that differs from the record's (`profile.args[2]`)."""

    path: str
    before: str
    after: str


@dataclass(frozen=True)
class LaunchView:
    """One launch, put together from what all its nodes said."""

    launch: str
    replica: str
    """The replica it belongs to today (labels first, then the record, then the launch's name)."""
    placement: str
    seq: int
    places: tuple[Place, ...]
    """From any readable record; empty where none can be read."""
    shards: Mapping[int, Shard] = field(default_factory=dict)
    """By rank: what answering nodes showed."""
    silent_nodes: tuple[str, ...] = ()
    """Nodes of it that did not answer (and are not lost)."""
    fingerprint: str = ""
    restart: str = ""
    profile: ResolvedProfile | None = None
    """From the record; None where it cannot be read."""
    alive: bool = False
    """Something of it is alive, as far as can be seen."""
    ready: bool = False
    """Every rank is alive, and a fresh answer of the health path says so where one is served."""
    ever_ready: bool = False
    stop_asked: bool = False
    seen_nodes: tuple[str, ...] = ()
    """Nodes on which a shard of it (record, mark or container) was seen."""


@dataclass(frozen=True)
class JudgedLaunch:
    """A launch and its verdict."""

    view: LaunchView
    verdict: Verdict
    reason: str
    changes: tuple[FieldChange, ...] = ()
    """Why stale, field by field."""
    failed: bool = False
    """Counts as a failure (a launch that is merely incomplete does not)."""
    stuck: bool = False
    """Stopping for longer than its grace allows."""
    not_wanted: bool = False
    """Surplus of the first kind: its replica is not wanted (the guard and the limits apply)."""
    repair: bool = False
    """Ended, or not worth keeping: replacing it needs no budget."""


@dataclass(frozen=True)
class Effective:
    """Which profile a replica is to run, and why (DESIGN, "Profiles that fail")."""

    profile: ResolvedProfile | None
    """None: nothing may be started (Hold with `reason`)."""
    fingerprint: str = ""
    rejected: bool = False
    """Today's profile is rejected in this placement."""
    canary: bool = False
    """This replica is the one that tries today's profile."""
    waiting: bool = False
    """Keeps (or restarts with) the last ready profile while another replica is the canary, or for
    as long as people hold the change (`held`)."""
    held: str = ""
    """Frozen | ManualUpdate: today's profile waits for a person, also where it restarts."""
    reason: str = ""


@dataclass(frozen=True)
class Backoff:
    """How long a failed replica still waits before its next launch."""

    failures: int = 0
    remaining_s: float = 0.0


@dataclass(frozen=True)
class JudgedReplica:
    """One replica: wanted by a placement, or only seen on the nodes."""

    replica: str
    placement: str
    ordinal: int
    wanted: bool
    verdict: Verdict
    reason: str
    launches: tuple[JudgedLaunch, ...] = ()
    """Newest first."""
    current: str = ""
    """The live launch of highest seq that is of the effective profile and in an allowed place."""
    kept: str = ""
    """The last ready launch, kept until the current one is ready."""
    ready: bool = False
    model: str = ""
    pool: str = ""
    effective: Effective | None = None
    backoff: Backoff = field(default_factory=Backoff)
    renamed_from: str = ""
    """The replica id that its launches carry now: relabel them."""
    pinned_node: str = ""
    """per-node placements: the node that the ordinal belongs to."""
    blocked: str = ""
    """Why it must not be started although nothing of it is seen ("perhaps on gpu-a")."""


@dataclass(frozen=True)
class Brake:
    """Many sick at once: a cause outside. Unhealthy ones are left alone."""

    scope: str
    """`model llama` or `node gpu-a`."""
    reason: str
    sick: int
    total: int
    probe: str = ""
    """The one replica that may be restarted as a probe now; empty: none."""


@dataclass(frozen=True)
class Quarantine:
    """A node or GPU that gets nothing new, and why. Lifted by a reboot or a command."""

    node: str
    gpus: tuple[str, ...] = ()
    """Empty: the whole node."""
    reason: str = ""


@dataclass(frozen=True)
class Diff:
    """Desired against observed."""

    replicas: tuple[JudgedReplica, ...] = ()
    """Sorted by placement and ordinal; replicas that nobody wants are among them."""
    strays: tuple[JudgedLaunch, ...] = ()
    """Launches that no replica can be named for (damaged record): unknown, or stopping."""
    strangers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Node → launches of other fleets: they block what they hold and are never touched."""
    brakes: tuple[Brake, ...] = ()
    quarantines: tuple[Quarantine, ...] = ()
