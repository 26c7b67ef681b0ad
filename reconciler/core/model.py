"""What a fleet repo says, as frozen values with every default filled in: the *desired* side.

The fields, their names and their defaults are those of the JSON Schemas in `schema/`; a test holds
the two equal, and holds `restart` equal to the schema's `x-restart`. Names in here are plain text
that has already been validated by `reconciler/fleet`; nothing here reads a file.

`restart=True` marks the fields of Model and Profile whose edit needs a restart: exactly these go
into the fingerprint (core/fingerprint.py). Everything else is updated in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from engines.base import Parallelism, RenderedFile, RoleOverride, Runtime, Sidecar

PER_NODE = "per-node"
"""`replicas: per-node`: one replica on each node that fits; the ordinal belongs to the node."""


def restarts(**kwargs: Any) -> Any:
    """A field whose edit restarts what runs: it is part of the fingerprint."""
    return field(metadata={"restart": True}, **kwargs)


@dataclass(frozen=True)
class Limit:
    """A bound that is a number or a share (`10%`)."""

    count: int | None = None
    percent: int | None = None

    def of(self, total: int, *, least: int = 0) -> int:
        """The bound for `total` things; a share is rounded down and is never below `least`."""
        if self.count is not None:
            return self.count
        assert self.percent is not None
        return max(least, total * self.percent // 100)

    def __str__(self) -> str:
        return f"{self.percent}%" if self.count is None else str(self.count)


# --- Fleet ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SshSettings:
    """How nodes are reached; the fleet's are defaults, a node's own win field by field."""

    user: str = ""
    """Empty: `~/.ssh/config`, then the user who runs the reconciler."""
    port: int = 0
    """0: `~/.ssh/config`, then 22."""
    identity_file: str = ""
    known_hosts: str = ""
    jump: str = ""
    """`[user@]host[:port]` of a jump host."""
    sudo: str = ""
    """Become this user on the node (`root`), without a terminal: passwordless sudo is needed."""
    connect_timeout_s: int = 10


@dataclass(frozen=True)
class GuardRails:
    """Bounds on what one revision may do before a person approves it (safety rule 5)."""

    max_removed: Limit = field(default_factory=lambda: Limit(percent=30))
    max_replaced: Limit = field(default_factory=lambda: Limit(percent=100))
    max_unseen_nodes: Limit = field(default_factory=lambda: Limit(percent=30))


@dataclass(frozen=True)
class PortRange:
    """Where blocks of ports are taken from; must lie outside the kernel's ephemeral range."""

    first: int = 20000
    last: int = 29999


@dataclass(frozen=True)
class EngineSettings:
    """Where an engine's program lies, for the fleet or for one node."""

    path: str = ""
    """A program, or a virtual environment's folder."""


@dataclass(frozen=True)
class Freeze:
    """No voluntary change (repairs go on) until a person lifts it."""

    reason: str = ""
    owner: str = ""


@dataclass(frozen=True)
class Fleet:
    """`fleet.yaml`: the fleet's identity and what holds for all of it."""

    name: str
    id: str
    version: int = 1
    ssh: SshSettings = field(default_factory=SshSettings)
    mode: str = "plain"
    """plain | system: how launches are supervised on nodes that do not say otherwise."""
    root: str = ""
    """Folder of records on the nodes; empty: /var/lib/reconcile, or the user's state folder."""
    guard: GuardRails = field(default_factory=GuardRails)
    max_parallel: Limit = field(default_factory=lambda: Limit(percent=10))
    max_unavailable_per_model: Limit | None = None
    ports: PortRange = field(default_factory=PortRange)
    engines: Mapping[str, EngineSettings] = field(default_factory=dict)
    unhealthy: str = "replace"
    """replace | report."""
    unhealthy_after_s: int = 300
    observe_timeout_s: int = 20
    """Deadline of one look at one node, connection included."""
    lease_s: int = 60
    interval_s: int = 30
    """The daemon's pause between passes; jitter of a tenth is added."""
    history: str = "follow"
    """follow | hold | signed: what a force-push of the followed branch does."""
    allow_loader_env: bool = False
    """Allow LD_PRELOAD, LD_LIBRARY_PATH, PYTHONPATH and the like in `env`."""
    freeze: Freeze | None = None


# --- Node -------------------------------------------------------------------------------------


class NodeState(StrEnum):
    """What people say about a node."""

    ACTIVE = "active"
    CORDONED = "cordoned"
    DRAINING = "draining"
    LOST = "lost"


@dataclass(frozen=True)
class GpuInventory:
    """What GPUs a node is supposed to have."""

    klass: str
    """`class` in YAML: `h100-80gb`."""
    count: int
    source: str = "nvml"
    """nvml: observed by the driver; declared: `ids` are the inventory (no NVML for them)."""
    ids: tuple[str, ...] = ()
    """declared: the GPUs' names; empty: `<node>-gpu-<n>`. nvml: the UUIDs that should be there, so
    that a missing one can be named; empty: only the count is held against what is seen."""
    memory_gib: int = 0
    """0: not known."""
    capability: str = ""
    """CUDA compute capability, `9.0`; empty: not known."""
    link_groups: tuple[tuple[int, ...], ...] = ()
    """declared: GPUs (by their place in the list) that fast links join, each with each; with `nvml`
    the driver tells. Empty: not known."""
    visible_by: str = ""
    """declared: variable that tells a program its GPUs by index; empty: CUDA_VISIBLE_DEVICES."""


@dataclass(frozen=True)
class Management:
    """The network over which ranks find each other where no fabric carries it."""

    interface: str = ""
    address: str = ""


@dataclass(frozen=True)
class AdapterPort:
    """One RDMA adapter port by its name under /sys/class/infiniband."""

    name: str
    port: int = 1


@dataclass(frozen=True)
class NodeFabric:
    """What a node has on one fabric."""

    kind: str
    """ib | roce | nvlink | none."""
    adapters: tuple[AdapterPort, ...] = ()
    gid_index: int | None = None
    interface: str = ""
    address: str = ""


@dataclass(frozen=True)
class NodeSsh(SshSettings):
    """A node's own SSH settings."""

    connect_timeout_s: int = 0
    host_key: str = ""
    """`ssh-ed25519 AAAA…`: what the node must show."""


@dataclass(frozen=True)
class Node:
    """One GPU machine."""

    name: str
    address: str
    pool: str
    gpus: GpuInventory
    ssh: NodeSsh = field(default_factory=NodeSsh)
    labels: Mapping[str, str] = field(default_factory=dict)
    management: Management = field(default_factory=Management)
    fabrics: Mapping[str, NodeFabric] = field(default_factory=dict)
    state: NodeState = NodeState.ACTIVE
    reason: str = ""
    """Why it is cordoned, draining or lost; required for lost."""
    engines: Mapping[str, EngineSettings] = field(default_factory=dict)
    mode: str = ""
    root: str = ""
    previous_roots: tuple[str, ...] = ()
    """Where launches were started before; they are looked after there until they end."""


# --- Catalog ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelFacts:
    """Facts that validation can use. An edit restarts nothing."""

    attention_heads: int = 0
    experts: int = 0
    weights_gib: int = 0
    load_minutes: int = 0


@dataclass(frozen=True)
class Model:
    """Weights on the nodes, and the names under which they are served."""

    name: str
    path: str = restarts(default="")
    """A folder or file on the nodes; empty only for engines that load no weights."""
    paths: Mapping[str, str] = restarts(default_factory=dict)
    """By pool, where they differ."""
    served_names: tuple[str, ...] = restarts(default=())
    """Empty: the model's name."""
    files: tuple[str, ...] = restarts(default=())
    """Further files that must be present on each node, absolute or relative to `path`."""
    facts: ModelFacts = field(default_factory=ModelFacts)
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""


@dataclass(frozen=True)
class Needs:
    """What a launch needs of its node beside GPUs."""

    ram_gib: int = 0
    shm_gib: int = 0
    gpu_memory_gib: int = 0
    """Least memory of each GPU."""
    memlock: str = ""
    """`unlimited`, or a number of KiB; empty: as the node has it."""
    nofile: int = 0


@dataclass(frozen=True)
class HealthCheck:
    """How a profile's readiness is asked."""

    path: str = ""
    """Empty: the engine's own."""
    port: str = ""
    """Name of the port; empty: `http`."""


@dataclass(frozen=True)
class Profile:
    """How a model runs on a GPU class. `extends` is resolved before this type is made."""

    name: str
    model: str = ""
    """Name of a Model. Not in the fingerprint: the model's own fields are."""
    engine: str = restarts(default="")
    engine_version: str = restarts(default="")
    """Least version of the engine, `0.17.0`."""
    gpu_class: str = restarts(default="")
    runtime: Runtime = restarts(default_factory=Runtime)
    executor: str = restarts(default="")
    parallel: Parallelism = restarts(default_factory=Parallelism)
    gpus_per_node: int = restarts(default=1)
    nodes: int = restarts(default=1)
    args: tuple[str, ...] = restarts(default=())
    env: Mapping[str, str] = restarts(default_factory=dict)
    secrets: Mapping[str, str] = restarts(default_factory=dict)
    """Variable → absolute file on the node that holds its value, read there at start; or
    `reconciler:NAME`, a file in the reconciler's own secret folder, sent along with the start."""
    leader: RoleOverride = restarts(default_factory=RoleOverride)
    worker: RoleOverride = restarts(default_factory=RoleOverride)
    sidecars: tuple[Sidecar, ...] = restarts(default=())
    files: tuple[RenderedFile, ...] = restarts(default=())
    command: tuple[str, ...] = restarts(default=())
    ports: tuple[str, ...] = restarts(default=())
    listens: str = restarts(default="")
    """Port at which the engine itself listens, where a sidecar in front of it has `http`."""
    serves: str = restarts(default="leader")
    bootstrap: str = restarts(default="management")
    """management | fabric: the network over which ranks find each other."""
    needs: Needs = field(default_factory=Needs)
    health: HealthCheck = field(default_factory=HealthCheck)
    start_timeout_s: int = 1800
    stop_grace_s: int = 30
    drain_s: int = 0
    """How long in-flight requests are awaited before the stop signal."""
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""


@dataclass(frozen=True)
class ResolvedProfile:
    """A profile with its model: what a launch is started from, and what its record keeps."""

    profile: Profile
    model: Model


# --- Placement --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rollout:
    """How a placement changes."""

    max_unavailable: int = 1
    max_surge: int = 1
    """Replicas above `replicas` while one is replaced, where GPUs are free."""
    ready_for_s: int = 0
    """How long the canary must have been ready before the rest follows."""
    update: str = "rolling"
    """rolling | manual."""


@dataclass(frozen=True)
class Placement:
    """Which profile runs, how often, and where."""

    name: str
    profile: str
    replicas: int | str = 1
    """A number, or `per-node`."""
    pool: str = ""
    selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that a node must have, all of them."""
    nodes: tuple[str, ...] = ()
    """Pinned nodes; empty: any that fits."""
    fabric: str = ""
    """Fabric that all ranks share; empty: none, TCP only."""
    spread: bool = True
    """Spread replicas over nodes (true) or pack them (false)."""
    rollout: Rollout = field(default_factory=Rollout)
    restart: str = ""
    """Any new text asks for a restart."""
    suspend: bool = False
    freeze: Freeze | None = None
    members: tuple[str, ...] = ()
    """Placements whose endpoints a router is told of, in a file that is kept up to date."""
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    weight: int = 100


# --- The whole --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Revision:
    """Which commit this is. `dirty` means: with changes that are in no commit."""

    commit: str
    """Hex of the commit; empty where the repository has none yet."""
    ref: str = ""
    dirty: bool = False
    root_commit: str = ""
    """The repository's first commit: two of these under one fleet id are two repositories."""

    @property
    def recorded(self) -> str:
        """As records name it: the commit, and that it was not all of what ran."""
        return f"{self.commit} with uncommitted changes" if self.dirty else self.commit

    def __str__(self) -> str:
        name = f"{self.ref or 'HEAD'}@sha1:{self.commit or 'none'}"
        return f"{name} with uncommitted changes" if self.dirty else name


@dataclass(frozen=True)
class Desired:
    """A whole validated fleet repo at one revision."""

    revision: Revision
    fleet: Fleet
    nodes: Mapping[str, Node] = field(default_factory=dict)
    models: Mapping[str, Model] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    placements: Mapping[str, Placement] = field(default_factory=dict)
    departed: frozenset[str] = frozenset()
    """Nodes in `nodes` that the revision no longer has: looked at and held until seen empty."""
    repairs_only: bool = False
    """Head is not in force, this revision is: a replica restarts with its own record's profile."""

    def resolved(self, placement: Placement) -> ResolvedProfile:
        """The profile of `placement` with its model. References have been validated."""
        profile = self.profiles[placement.profile]
        return ResolvedProfile(profile, self.models[profile.model])
