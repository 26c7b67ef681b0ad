"""What a replica asks of nodes, and the words for why one does not fit.

Every refusal is one short reason per node; `sum_up` makes one line of them all. Places are chosen
in `place`; nothing in here knows what is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reconciler.core.changes import Reason
from reconciler.core.model import Node, Placement, ResolvedProfile
from reconciler.core.observed import NodeAnswer, Place
from reconciler.core.occupancy import GpuSlot
from reconciler.core.words import plural, share


@dataclass(frozen=True)
class Ask:
    """One replica that wants a place."""

    placement: Placement
    resolved: ResolvedProfile
    mixed: bool = False
    """The engine may mix GPU types in one replica."""
    only: str = ""
    """per-node: the one node that this ordinal belongs to."""
    previous: tuple[Place, ...] = ()
    """Where its last launch was."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Node → failed starts of this profile by this replica."""
    without: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Launches that will have ended by then, with their nodes."""


@dataclass(frozen=True)
class NoFit:
    """No place, and for each node that was considered why not."""

    message: str
    nodes: Mapping[str, str]


@dataclass(frozen=True)
class Candidate:
    """A node (and one type of its GPUs) that one rank fits on."""

    node: Node
    gpus: tuple[GpuSlot, ...]
    """All free ones of one type."""
    like: tuple[str, ...]
    """What all ranks of a replica must share: GPU class and type, fabric kind, adapters."""
    spans: int = 1
    """Over how many NVLink groups its rank's GPUs would lie at best."""


# --- reasons ----------------------------------------------------------------------------------

BARRED = {
    Reason.NODE_HELD: "held",
    Reason.LEASE_HELD: "led by another reconciler",
    Reason.DUPLICATE_NODE: "one machine under two names",
    Reason.NODE_UNREACHABLE: "unreachable",
    Reason.HOST_KEY_MISMATCH: "unreachable",
    Reason.MACHINE_ID_CHANGED: "unreachable",
    Reason.AUTHENTICATION_FAILED: "unreachable",
    Reason.OBSERVATION_DAMAGED: "unreachable",
    Reason.NODE_UNSUITABLE: "unsuitable",
}


def meant(ask: Ask, node: Node) -> bool:
    """Whether the placement's pool, selector and pins mean this node at all."""
    placement = ask.placement
    if ask.only:
        return node.name == ask.only
    if placement.nodes and node.name not in placement.nodes:
        return False
    if placement.pool and node.pool != placement.pool:
        return False
    return all(node.labels.get(k) == v for k, v in placement.selector.items())


def fabric_refusal(fabric: str, node: Node, answer: NodeAnswer) -> str:
    if not fabric:
        return ""
    mine = node.fabrics.get(fabric)
    if mine is None:
        others = " and ".join(sorted(node.fabrics))
        return f"has fabric {others} only" if others else "has no fabric"
    if not answer.network.adapters:
        return ""
    states = {(a.name, a.port): a.state for a in answer.network.adapters}
    for adapter in mine.adapters:
        state = states.get((adapter.name, adapter.port))
        if state is None:
            return f"has no adapter {adapter.name}:{adapter.port}"
        if state and "ACTIVE" not in state.upper():
            return f"has adapter {adapter.name}:{adapter.port} {state.lower()}"
    return ""


def likeness(ask: Ask, node: Node, kind: str) -> tuple[str, ...]:
    """Ranks on unlike adapters pair them by list position and hang in the first collective."""
    klass = "" if ask.mixed else node.gpus.klass
    fabric = node.fabrics.get(ask.placement.fabric) if ask.placement.fabric else None
    if fabric is None:
        return klass, kind
    rails = ",".join(str(adapter.port) for adapter in fabric.adapters)
    return klass, kind, fabric.kind, f"{plural(len(fabric.adapters), 'adapter')} on ports {rails}"


def short_of(ram_gib: int, shm_gib: int, answer: NodeAnswer) -> str:
    """Memory that is not known (None) does not refuse: the node checks again at the start."""
    ram, shm = answer.resources.ram_free_mib, answer.resources.shm_free_mib
    if ram is not None and ram < ram_gib * 1024:
        return f"has {ram // 1024} GiB RAM free of {ram_gib}"
    if shm is not None and shm < shm_gib * 1024:
        return f"has {shm // 1024} GiB /dev/shm free of {shm_gib}"
    return ""


def sum_up(ask: Ask, fits: list[Candidate], refused: Mapping[str, str]) -> str:
    """`0 of 5 nodes fit: 3 have 2 free GPUs of 4, 1 cordoned, 1 has fabric ib-b only`."""
    profile = ask.resolved.profile
    wanted = profile.nodes
    fitting = len({f.node.name for f in fits})
    total = fitting + len(refused)
    need = plural(profile.gpus_per_node, "GPU")
    need += f" on each of {wanted} nodes" if wanted > 1 else ""
    if total == 0:
        return f"no node is meant: {_meaning(ask)}; it needs {need}"
    counts: dict[str, int] = {}
    for reason in refused.values():
        counts[reason] = counts.get(reason, 0) + 1
    parts = [_phrase(n, text) for text, n in sorted(counts.items(), key=lambda i: (-i[1], i[0]))]
    if fitting >= wanted:
        parts.append(f"{fitting} fit but have unlike GPUs or adapters")
        fitting = 0
    fit = "fits" if total == 1 else "fit"
    return f"{share(fitting, total, 'node')} {fit}: {', '.join(parts)}; it needs {need}"


def _phrase(count: int, text: str) -> str:
    if text.startswith("has ") and count > 1:
        return f"{count} have {text[4:]}"
    return f"{count} {text}"


def _meaning(ask: Ask) -> str:
    placement = ask.placement
    said = [f"pool {placement.pool}"] if placement.pool else []
    said += [f"label {k}={v}" for k, v in sorted(placement.selector.items())]
    said += [f"pinned to {' or '.join(placement.nodes)}"] if placement.nodes else []
    said += [f"node {ask.only}"] if ask.only else []
    return ", ".join(said) or "the fleet has no nodes"
