"""What the nodes said, as frozen values: the *observed* side.

"Could not see" is kept apart from "is not there" everywhere: a node that did not answer is a
`NodeLook` without `answer`, a part of an answer that failed says so in `Part.error`, a record that
cannot be read is a launch with `record=None` and `record_error` set. Ages are durations that the
node measured itself (CLOCK_BOOTTIME with its boot id); no clock is compared with another.

`reconcile observe` prints this as JSON and `--observed FILE` reads it back. The wire format of one
node's answer (docs/agent-protocol.md) is `NodeAnswer` to the letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

FORMAT = "1.0"
"""major.minor of records and answers; within a major, fields are only added."""


# --- The record on a node ---------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where one rank of a launch runs. `ports` are the launch's block, by name."""

    rank: int
    node: str
    machine_id: str
    gpus: tuple[str, ...]
    """UUIDs (or declared names)."""
    ports: Mapping[str, int]
    address: str = ""
    fabric: str | None = None
    """The placement's fabric at the start (empty: TCP only); None: not recorded. Without it an
    edit of the fabric could not be told from the record: the launch would stay on the old one."""


@dataclass(frozen=True)
class Record:
    """spec.json of one shard, as far as the reconciler reads it. Written once, before the start."""

    format: str
    fleet: str
    launch: str
    replica: str
    seq: int
    rank: int
    places: tuple[Place, ...]
    boot_id: str = ""
    mode: str = "plain"
    restart: str = ""
    fingerprint: str = ""
    profile: Any = None
    """A ResolvedProfile as JSON; core reads it where it is needed: damage is one launch's."""


@dataclass(frozen=True)
class Labels:
    """labels.json: what may change without a restart."""

    placement: str = ""
    ordinal: int = 0
    replica: str = ""
    """The replica id of today (a rename changes it; the record keeps the one of the start)."""
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    revision: str = ""
    unhealthy_after_s: int = 300
    files: Mapping[str, str] = field(default_factory=dict)
    """Path → content of what stands in the launch's `files` and is replaced in place."""


class Phase(StrEnum):
    """Where a shard stands, by its supervisor's own account."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class ExitKind(StrEnum):
    """How a shard ended."""

    EXITED = "exited"
    """The last command ended by itself with `code`."""
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    """Never ready within the start timeout; the supervisor ended it."""
    STOPPED = "stopped"
    """Ended on request."""
    REBOOT = "reboot"
    """The boot id is another one."""
    SIDECAR = "sidecar"
    """A sidecar kept failing."""
    PREFLIGHT = "preflight"
    """Nothing was executed: the node was not fit at the moment of the start."""
    UNKNOWN = "unknown"
    """It is gone and nobody saw how (its supervisor was killed)."""


@dataclass(frozen=True)
class ShardExit:
    """How and with what a shard ended."""

    kind: ExitKind
    code: int | None = None
    signal: str = ""
    command: str = ""
    message: str = ""
    age_s: float = 0.0
    """How long ago."""


@dataclass(frozen=True)
class Health:
    """What the supervisor's probes of the health path said; None fields: never probed."""

    ok: bool = False
    age_s: float | None = None
    """Age of the last answer, or of the last failure."""
    ready_for_s: float = 0.0
    """How long it has been ready without a break; 0 when it is not."""
    failing_for_s: float = 0.0
    """How long it has failed without a break, after having been ready."""
    detail: str = ""


@dataclass(frozen=True)
class Shard:
    """One rank of one launch as its node sees it."""

    launch: str
    """Folder name, mark or container name."""
    rank: int = 0
    record: Record | None = None
    record_error: str = ""
    """Why there is no `record`: `absent`, or what is damaged."""
    labels: Labels | None = None
    phase: Phase = Phase.STARTING
    stop_asked: bool = False
    stop_age_s: float = 0.0
    alive: bool = False
    """The lock is held, a process with the mark runs, or a container with the label runs."""
    supervised: bool = False
    """The lock is held: a supervisor lives."""
    serves: bool = True
    """Has a health path of its own; ranks that have none are ready when alive."""
    health: Health = field(default_factory=Health)
    fresh: bool = False
    """The last health answer is not older than three probes and its supervisor lives."""
    ever_ready: bool = False
    started_age_s: float = 0.0
    start_timeout_s: float = 1800.0
    stop_grace_s: float = 30.0
    exit: ShardExit | None = None
    pids: tuple[int, ...] = ()
    boot_id: str = ""
    log_tail: tuple[str, ...] = ()
    restarts: int = 0
    """Restarts of sidecars."""
    former_root: str = ""
    """Where it lies, if not in the node's root of today."""


# --- The node ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU. `launch` is empty for strangers."""

    pid: int
    used_mib: int | None = None
    user: str = ""
    name: str = ""
    launch: str = ""


@dataclass(frozen=True)
class XidSeen:
    """A kind of fault that the driver wrote into the kernel's log about a GPU since boot."""

    code: int
    count: int = 1
    at_s: float = 0.0
    """When it was last written, in seconds after boot by the kernel's clock. For people."""
    text: str = ""
    """The driver's own words, of the last time."""
    fatal: bool = False
    """It still keeps the GPU from being used; `GpuSeen.error` says so too."""


MOST_GPUS = 1024
"""Of one node. Blocks are looked for place by place, so that an index is also an amount of work."""


@dataclass(frozen=True)
class GpuSeen:
    """One GPU as NVML shows it."""

    uuid: str
    index: int
    """NVML's; -1: the kernel's log names a GPU that fell off its bus and NVML no longer lists."""
    name: str = ""
    memory_mib: int | None = None
    used_mib: int | None = None
    capability: str = ""
    error: str = ""
    """`lost` and the like; a GPU with an error is not free."""
    warnings: tuple[str, ...] = ()
    """Uncorrected ECC errors, rows or pages that wait for a reset: usable, for now. For people."""
    processes: tuple[GpuProcess, ...] = ()
    nvlink_group: int | None = None
    """GPUs of one number are linked by NVLink, each with each, by a bridge or a switch; one that is
    linked with none has a number of its own. None: not known (an older driver, or it is lost)."""
    bus: str = ""
    """PCI address as NVML writes it, `00000000:1B:00.0`; the kernel's log names a GPU by it."""
    numa_node: int | None = None
    """None: the machine has one, or does not tell."""
    xids: tuple[XidSeen, ...] | None = None
    """Hardware faults of this GPU in the kernel's log. None: the log could not be read."""

    def __post_init__(self) -> None:
        if not -1 <= self.index < MOST_GPUS:
            raise ValueError(f"GPU index {self.index} is not below {MOST_GPUS}")


@dataclass(frozen=True)
class GpusPart:
    """All GPUs, or why they could not be seen (then none of them counts as free)."""

    items: tuple[GpuSeen, ...] = ()
    error: str = ""
    driver: str = ""
    cuda: str = ""
    xid_error: str = ""
    """Why past Xid errors are not known (a login that may not read the kernel's log)."""


@dataclass(frozen=True)
class AdapterSeen:
    """One RDMA adapter port from sysfs."""

    name: str
    port: int
    state: str = ""
    link_layer: str = ""
    rate: str = ""
    interface: str = ""


@dataclass(frozen=True)
class InterfaceSeen:
    """One network interface with its addresses."""

    name: str
    up: bool = False
    mtu: int = 0
    addresses: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    """The same with the length of each prefix (`10.0.0.9/24`); empty from an older agent."""


@dataclass(frozen=True)
class Network:
    """Adapters and interfaces; `error` where sysfs could not be read in time."""

    adapters: tuple[AdapterSeen, ...] = ()
    interfaces: tuple[InterfaceSeen, ...] = ()
    listening: tuple[tuple[str, int], ...] = ()
    """(address, port) of listening TCP sockets; `0.0.0.0` and `::` take every address."""
    ephemeral: tuple[int, int] = (32768, 60999)
    error: str = ""


@dataclass(frozen=True)
class Resources:
    """What is free on the node."""

    ram_free_mib: int | None = None
    shm_free_mib: int | None = None
    disk_free_mib: int | None = None
    memlock: str = ""
    """`unlimited` or `… KiB`: what a launch in plain mode gets at most."""
    nofile: int = 0
    """Likewise. A unit of system mode has limits of its own."""
    error: str = ""


@dataclass(frozen=True)
class ApprovedChange:
    """A replica, from which fingerprint to which (empty: removed)."""

    replica: str
    before: str
    after: str = ""


@dataclass(frozen=True)
class Lease:
    """lease.json: who may act here, and what must outlive the reconciler."""

    fleet: str
    owner: str = ""
    epoch: int = 0
    remaining_s: float = 0.0
    """0 and below: expired."""
    root_commit: str = ""
    revision: str = ""
    """Commit in force."""
    departed: Mapping[str, str] = field(default_factory=dict)
    """Nodes taken out of the repo that were not yet seen empty → commit that has their document."""
    approvals: tuple[ApprovedChange, ...] = ()
    retries: Mapping[str, int] = field(default_factory=dict)
    """Replica → seq: failures of launches up to it are forgiven (`reconcile retry`)."""


@dataclass(frozen=True)
class NodeHold:
    """hold.json: the node refuses to act, because a person works on it."""

    who: str = ""
    reason: str = ""
    remaining_s: float | None = None
    launch: str = ""


@dataclass(frozen=True)
class NodeAnswer:
    """One node's whole answer to `observe`."""

    format: str
    machine_id: str
    boot_id: str
    hostname: str = ""
    agent: str = ""
    """Absolute path of the agent's file on the node."""
    agent_version: str = ""
    python: str = ""
    """Absolute path of the interpreter that runs the agent: the sim engine is started with it."""
    python_version: str = ""
    os: str = ""
    """The system's name and version, for people."""
    no_system: str | None = None
    """Why mode system is not possible for this user; empty: it is; None: not told."""
    root: str = ""
    """Absolute folder of the records."""
    user: str = ""
    uptime_s: float = 0.0
    clock_s: float = 0.0
    """The node's wall clock, Unix time; 0: not told. For people: no decision compares clocks."""
    shards: tuple[Shard, ...] = ()
    shards_error: str = ""
    """The folder of launches could not be listed: what runs here is unknown, not nothing."""
    gpus: GpusPart = field(default_factory=GpusPart)
    network: Network = field(default_factory=Network)
    resources: Resources = field(default_factory=Resources)
    lease: Lease | None = None
    lease_error: str = ""
    hold: NodeHold | None = None


class LookError(StrEnum):
    """Why a node has no answer."""

    UNREACHABLE = "NodeUnreachable"
    HOST_KEY = "HostKeyMismatch"
    MACHINE_ID = "MachineIdChanged"
    AUTH = "AuthenticationFailed"
    DAMAGED = "ObservationDamaged"
    UNSUITABLE = "NodeUnsuitable"
    """It answers, but cannot run the agent (no python3, `http` missing, read-only root)."""


@dataclass(frozen=True)
class NodeLook:
    """One look at one node: an answer, or why there is none and what was last seen."""

    node: str
    answer: NodeAnswer | None = None
    error: LookError | None = None
    detail: str = ""
    hint: str = ""
    last: NodeAnswer | None = None
    """Only where the same owner saw it under an unbroken lease; otherwise what a silent node
    holds is not known."""
    look_ms: float = 0.0


@dataclass(frozen=True)
class Observed:
    """All looks of one pass."""

    owner: str = ""
    """Who looked: leases of this owner are its own."""
    nodes: Mapping[str, NodeLook] = field(default_factory=dict)

    def answer(self, node: str) -> NodeAnswer | None:
        """The answer of `node`, or None where it gave none (or was not asked)."""
        look = self.nodes.get(node)
        return look.answer if look else None
