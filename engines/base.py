"""What an engine is asked and what it answers: the narrow waist between the core and `engines/`.

An engine turns one `LaunchRequest` (a profile, the hosts that were chosen, the ports that were
given) into one `Shard` per rank: what to exec, with which environment, and how to tell that it
serves. Nothing here runs, reads or waits; the same request always gives the same answer, so a
command line can be shown in a pull request and is the one that runs on the node.

Everything in this package is pure, uses the standard library only and imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

CUDA = "CUDA_VISIBLE_DEVICES"
"""What tells a program its GPUs, unless the node's document names another variable."""


@dataclass(frozen=True)
class Problem:
    """One finding about a profile. `path` is the key path inside the profile (`args[3]`)."""

    path: str
    message: str
    hint: str = ""
    warning: bool = False


@dataclass(frozen=True)
class Parallelism:
    """How a model is split. What the product of these means in GPUs is the engine's to say."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    dp_local: int = 0
    """Data-parallel ranks per node; 0 lets the engine divide dp evenly over the nodes."""
    ep: bool = False
    dcp: int = 1
    pcp: int = 1
    dp_attention: bool = False
    dp_balancing: str = "internal"
    """internal | hybrid | external: who spreads requests over data-parallel ranks."""


@dataclass(frozen=True)
class Runtime:
    """Where the engine's program comes from."""

    kind: str = "binary"
    """binary | venv | container."""
    path: str = ""
    """binary: the program; venv: the folder of the virtual environment; container: the program
    inside the image. Empty: from PATH."""
    image: str = ""
    tool: str = "podman"
    """container: docker | podman."""
    mounts: tuple[str, ...] = ()
    """container: further `source:target[:ro]` mounts."""
    options: tuple[str, ...] = ()
    """container: further options of `docker run`, one word each (`--device=/dev/kfd`)."""


@dataclass(frozen=True)
class RoleOverride:
    """What only the leader, or only the workers, get on top of the profile."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    """engine `command`: this role's own program, in place of the profile's."""
    waits_for: str = ""
    """engine `command`: a port of the other role that must accept a connection first. Workers wait
    for the leader's, the leader for that of all workers."""


@dataclass(frozen=True)
class Sidecar:
    """A process kept alive beside the engine for the launch's whole life."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ranks: str = "all"
    """all | leader | workers."""


@dataclass(frozen=True)
class RenderedFile:
    """A file written into the launch's folder before the first process starts.

    `path` is relative to `$(launch.dir)/files`.
    """

    path: str
    content: str


@dataclass(frozen=True)
class Health:
    """How readiness is asked, on the node itself."""

    port: int
    path: str = "/health"
    host: str = "127.0.0.1"
    model: str = ""
    """If set, `/v1/models` must name it: another server on the same port must not count."""


@dataclass(frozen=True)
class EngineProfile:
    """The part of a profile that an engine looks at: `extends` resolved, defaults filled."""

    name: str
    engine: str
    executor: str = ""
    """vllm: `mp` (own launcher) or `ray`; empty is the engine's default (`mp`)."""
    parallel: Parallelism = field(default_factory=Parallelism)
    gpus_per_node: int = 0
    nodes: int = 1
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variable → absolute file on the node that holds its value."""
    runtime: Runtime = field(default_factory=Runtime)
    leader: RoleOverride = field(default_factory=RoleOverride)
    worker: RoleOverride = field(default_factory=RoleOverride)
    sidecars: tuple[Sidecar, ...] = ()
    files: tuple[RenderedFile, ...] = ()
    command: tuple[str, ...] = ()
    """engine `command`: the argv."""
    ports: tuple[str, ...] = ()
    """Further named ports; `$(port.NAME)` refers to them."""
    listens: str = ""
    """Name of the port at which the engine itself listens, where a sidecar in front of it has
    `http`; empty: `http`."""
    serves: str = "leader"
    """engine `command`: which ranks answer HTTP: leader | all | none."""
    health_path: str = ""
    health_port: str = ""
    """Name of the port that answers the health path; empty: the engine's own."""
    served_names: tuple[str, ...] = ()
    nofile: int = 0
    """Open files that the engine needs; 0: as the node (or its container runtime) has it."""
    memlock: str = ""
    """Locked memory: `unlimited` or KiB; empty: as the node has it."""
    start_timeout_s: int = 1800
    stop_grace_s: int = 30
    model_attention_heads: int = 0
    """0: not known, so not checked."""
    model_experts: int = 0


@dataclass(frozen=True)
class Gpu:
    """One GPU of a host. `index` is its place in PCI bus order; None where it is not known yet."""

    uuid: str
    index: int | None = None
    klass: str = ""
    memory_mib: int | None = None
    capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class Adapter:
    """One RDMA adapter port, as `/sys/class/infiniband` names it."""

    name: str
    port: int = 1


@dataclass(frozen=True)
class Fabric:
    """What a host has on one fabric. A shard is only ever given one of these."""

    name: str
    kind: str
    """ib | roce | nvlink | none."""
    adapters: tuple[Adapter, ...] = ()
    gid_index: int | None = None
    interface: str = ""
    address: str = ""


@dataclass(frozen=True)
class Host:
    """One node as a rank of a launch sees it."""

    node: str
    address: str
    """This node's own address on the bootstrap network, without brackets or port."""
    gpus: tuple[Gpu, ...]
    serve_address: str = ""
    """Where HTTP is served, if not at `address`: clients come over the management network also
    where the ranks find each other over a fabric."""
    interface: str = ""
    """The interface that carries `address`; empty where the inventory does not say."""
    fabric: Fabric | None = None
    visible_by: str = CUDA
    """The variable that tells a program which accelerators are its own, by index."""
    model_path: str = ""
    model_files: tuple[str, ...] = ()
    """Further files of the model, absolute: a projector, a draft, a chat template."""
    launch_dir: str = ""
    """Absolute folder of the launch on this node; `$(launch.dir)`."""
    agent: str = ""
    """Absolute path of the agent's zip application on this node (the sim engine is inside)."""
    python: str = "python3"
    binary: str = ""
    """Program or virtual environment used on this node instead of the profile's own."""
    programs: Mapping[str, str] = field(default_factory=dict)
    """Further programs by name (`ray`, `ggml-rpc-server`) where they do not lie beside the
    engine's.
    """

    @property
    def http(self) -> str:
        """The address that HTTP is served at."""
        return self.serve_address or self.address


@dataclass(frozen=True)
class LaunchRequest:
    """One start of one replica: all that an engine needs to build every rank."""

    launch: str
    replica: str
    profile: EngineProfile
    hosts: tuple[Host, ...]
    """In rank order; hosts[0] is the leader."""
    ports: Mapping[str, int]
    """Name to number; the same numbers on every host."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """For containers: fleet, launch, replica."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Of the nodes that the profile refers to by name."""


@dataclass(frozen=True)
class WaitFor:
    """Do not start this command before a TCP connection to it is accepted."""

    host: str
    port: int


@dataclass(frozen=True)
class Command:
    """One process of a shard. The last command of a shard is the one whose exit counts."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    wait_for: WaitFor | None = None
    gpu_env: tuple[str, ...] = ()
    """Variables that the node sets to its GPU indices (from UUIDs, in PCI bus order) at start."""
    env_files: Mapping[str, str] = field(default_factory=dict)
    """Variable → file on the node that holds its value, read there at start: secrets."""


@dataclass(frozen=True)
class Container:
    """Set where the last command runs in a container: stop and look-up go by these."""

    tool: str
    name: str


@dataclass(frozen=True)
class Shard:
    """What one rank runs."""

    rank: int
    commands: tuple[Command, ...]
    health: Health | None = None
    """None on ranks that serve nothing."""
    files: tuple[RenderedFile, ...] = ()
    container: Container | None = None
    stop_signal: str = "TERM"
    loads_model: bool = True
    """False: this rank reads no weights, so they need not be on its node."""


@dataclass(frozen=True)
class Stop:
    """How an engine ends, as seen by running it."""

    signal: str = "TERM"
    least_grace_s: int = 5
    """A shorter grace ends in KILL before the engine has given its GPUs back."""
    leftovers: tuple[str, ...] = ()
    """Names of processes that outlive a KILL of their parent and keep the GPU."""


@dataclass(frozen=True)
class InFlight:
    """Where an engine says how many requests it works on: awaited before it is told to end."""

    metrics: tuple[str, ...]
    """Names of gauges in Prometheus text; their sum over all labels is the number."""
    path: str = "/metrics"
    settle_s: float = 1.0
    """For how long the sum must be zero. A gauge that the engine sets only now and then may read
    zero while it works."""


class FailureKind(StrEnum):
    """Why an engine ended by itself: decides whether the profile or the place is blamed."""

    COMMAND = "command"
    """Its own command is at fault (bad flag, unsupported quantization): rejected at once."""
    PLACE = "place"
    """The place is at fault (path missing, memory or port taken): a hold, looked at anew."""
    CRASH = "crash"
    """Anything else."""


class Engine(Protocol):
    """One inference engine. A new one: one module, one line in the registry, one golden folder."""

    name: str
    mixes_gpus: bool
    """Whether one replica may have GPUs of different types."""
    loads_weights: bool
    """Whether it needs a model's path."""
    stop: Stop
    in_flight: InFlight | None
    """None: it does not say, so a stop waits for the whole of `drain_s`. An engine of another
    package may lack this and `one_name`: it then counts as None and False."""
    one_name: bool
    """Whether it serves only the first of the model's names."""

    def gpu_count(self, profile: EngineProfile) -> tuple[int, str] | None:
        """GPUs that the parallelism needs in all, and the product in words (`tp 8 × pp 2`).

        None: as declared by `gpus_per_node × nodes`.
        """

    def check(self, profile: EngineProfile) -> list[Problem]:
        """Findings that need no node: reserved flags, arithmetic, modes that do not go together."""

    def port_names(self, profile: EngineProfile) -> tuple[str, ...]:
        """Names of the ports of a launch, `http` first; the block has this many ports."""

    def build(self, request: LaunchRequest) -> tuple[Shard, ...]:
        """One shard per host, in rank order. Raises ValueError where the request is incomplete."""

    def classify_exit(self, code: int | None, log_tail: tuple[str, ...]) -> FailureKind:
        """What kind of failure an exit was, from its code and its last log lines."""
