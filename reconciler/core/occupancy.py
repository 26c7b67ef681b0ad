"""What is free on a node, as observed: a GPU is free only when nothing is known to hold it.

Holders are launches of any fleet that are alive or not proven ended (stopping and stuck ones
among them), processes of strangers, GPUs in error, and what this pass itself has given away. A
part of an answer that could not be read gives nothing: unknown is never empty.

The ledger is filled node by node when a node is first asked about, since most passes ask about few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from reconciler.core.model import Desired, Node
from reconciler.core.observed import GpuSeen, NodeAnswer, Phase, Place, Shard
from reconciler.core.verdict import Diff

IDLE_GPU_MIB = 2048
"""Memory that a GPU may show as used with nobody on it (driver, ECC tables, persistence mode;
seen up to about 600 MiB on 140 GiB cards). Above it somebody is there whom NVML does not name,
a process in another pid namespace for one, and a launch on top of it would die for memory."""

WILDCARDS = frozenset({"0.0.0.0", "::", "*", ""})

STRANGER = "a stranger"
"""Whoever is no launch of any fleet that this node has a record of."""

NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True)
class GpuSlot:
    """One GPU of a node."""

    uuid: str
    index: int
    kind: str
    """What must not be mixed: NVML's product name, or the inventory's class."""
    memory_mib: int | None = None
    group: int | None = None


@dataclass
class NodeUse:
    """One node's GPUs and ports with whoever holds them."""

    slots: tuple[GpuSlot, ...] = ()
    holders: dict[str, set[str]] = field(default_factory=dict)
    """GPU → launches, or words for who else holds it."""
    ports: set[int] = field(default_factory=set)
    error: str = ""
    """Why nothing of this node can be given away."""

    def free(self, without: frozenset[str] = NOBODY) -> list[GpuSlot]:
        """Free GPUs by index, as if the launches `without` had ended."""
        held = self.holders
        return [s for s in self.slots if s.uuid not in held or held[s.uuid] <= without]


class Ledger:
    """What is free on all nodes, minus what this pass has given away. Lives for one pass."""

    def __init__(self, desired: Desired, answers: Mapping[str, NodeAnswer], diff: Diff) -> None:
        self._desired = desired
        self._answers = answers
        self._diff = diff
        self._nodes: dict[str, NodeUse] = {}
        self._places: dict[str, tuple[Place, ...]] | None = None

    def use(self, node: str) -> NodeUse:
        """The node's GPUs and ports; nothing is free on a node that did not answer."""
        if node not in self._nodes:
            self._nodes[node] = self._read(node)
        return self._nodes[node]

    def take(self, node: str, launch: str, gpus: Iterable[str], ports: Iterable[int] = ()) -> None:
        """Give GPUs and ports of `node` to `launch` for the rest of this pass."""
        use = self.use(node)
        for gpu in gpus:
            use.holders.setdefault(gpu, set()).add(launch)
        use.ports.update(ports)

    def _read(self, name: str) -> NodeUse:
        answer = self._answers.get(name)
        if answer is None:
            return NodeUse(error="unreachable")
        return read_node(self._desired.nodes[name], answer, self._known_places)

    def _known_places(self, launch: str) -> tuple[Place, ...]:
        """Where a launch whose own record is damaged sits, by what its other ranks recorded."""
        if self._places is None:
            judged = [j for r in self._diff.replicas for j in r.launches] + [*self._diff.strays]
            self._places = {j.view.launch: j.view.places for j in judged if j.view.places}
        return self._places.get(launch, ())


def read_node(
    node: Node, answer: NodeAnswer, known: Callable[[str], tuple[Place, ...]] = lambda launch: ()
) -> NodeUse:
    """What one answer says is held. `known` gives the places of launches without a record."""
    error = _unreadable(node, answer)
    use = NodeUse(_declared(node) if node.gpus.source == "declared" else _seen(node, answer))
    use.error = error
    for gpu in answer.gpus.items if node.gpus.source != "declared" else ():
        for holder in _on_gpu(gpu):
            use.holders.setdefault(gpu.uuid, set()).add(holder)
    for shard in answer.shards:
        if holds(shard, answer.boot_id):
            _shard(node, shard, known, use)
    addresses = _addresses(node)
    for address, port in answer.network.listening:
        if address in WILDCARDS or not addresses or address.removeprefix("::ffff:") in addresses:
            use.ports.add(port)
    return use


def holds(shard: Shard, boot_id: str) -> bool:
    """Alive, or not proven ended: a record whose process is yet to start holds its GPUs already."""
    return shard.alive or (not is_over(shard) and shard.boot_id in ("", boot_id))


def is_over(shard: Shard) -> bool:
    """The node says that it has ended, in whichever way."""
    return not shard.alive and (shard.phase is Phase.ENDED or shard.exit is not None)


def declared_ids(node: Node) -> tuple[str, ...]:
    """Names of the GPUs that a `declared` inventory lists, or `<node>-gpu-<n>`."""
    return node.gpus.ids or tuple(f"{node.name}-gpu-{n}" for n in range(node.gpus.count))


def _declared(node: Node) -> tuple[GpuSlot, ...]:
    memory = node.gpus.memory_gib * 1024 or None
    told = node.gpus.link_groups
    groups = {index: number for number, group in enumerate(told) for index in group}
    return tuple(
        # One that is in no group is linked with none, if any groups are told at all.
        GpuSlot(uuid, i, node.gpus.klass, memory, groups.get(i, len(told) + i) if told else None)
        for i, uuid in enumerate(declared_ids(node))
    )


def _seen(node: Node, answer: NodeAnswer) -> tuple[GpuSlot, ...]:
    slots = [
        GpuSlot(g.uuid, g.index, g.name or node.gpus.klass, g.memory_mib, g.nvlink_group)
        for g in answer.gpus.items
    ]
    slots.sort(key=_by_index)
    return tuple(slots)


_by_index = attrgetter("index", "uuid")


def _unreadable(node: Node, answer: NodeAnswer) -> str:
    if answer.shards_error:
        return "unknown launches (their folder could not be listed)"
    if node.gpus.source != "declared" and answer.gpus.error:
        return "GPUs that could not be read"
    if answer.network.error:
        return "ports that could not be read"
    return ""


def _on_gpu(gpu: GpuSeen) -> list[str]:
    if gpu.error:
        return [f"error: {gpu.error}"]
    holders = [p.launch or f"process {p.pid} of {STRANGER}" for p in gpu.processes]
    if not holders and (gpu.used_mib or 0) > IDLE_GPU_MIB:
        return [f"{gpu.used_mib} MiB used by no visible process"]
    return holders


def _shard(
    node: Node, shard: Shard, known: Callable[[str], tuple[Place, ...]], use: NodeUse
) -> None:
    if shard.record:
        places = [p for p in shard.record.places if p.rank == shard.record.rank]
    else:
        places = [p for p in known(shard.launch) if p.node == node.name]
    if not places:
        # Nobody can tell what it holds: by NVML if that names it, else it may be any GPU.
        if not any(shard.launch in held for held in use.holders.values()):
            for slot in use.slots:
                use.holders.setdefault(slot.uuid, set()).add(shard.launch)
        return
    for place in places:
        for gpu in _as_named_now(node, place, use):
            use.holders.setdefault(gpu, set()).add(shard.launch)
        use.ports.update(place.ports.values())


def _as_named_now(node: Node, place: Place, use: NodeUse) -> tuple[str, ...]:
    """The GPUs of a place by the names of today.

    Declared GPUs are named by the document: a renamed node or an edited list renames them, and what
    holds one by its old name holds it still. By default the name ends with the index; else nobody
    can tell which one it is, and it may be any.
    """
    if node.gpus.source != "declared":
        return place.gpus
    names = tuple(slot.uuid for slot in use.slots)
    if set(place.gpus) <= set(names):
        return place.gpus
    found: list[str] = []
    for gpu in place.gpus:
        index = gpu.removeprefix(f"{place.node}-gpu-")
        if gpu in names:
            found.append(gpu)
        elif index == gpu or not index.isdecimal():
            return names
        elif int(index) < len(names):
            found.append(names[int(index)])
    return tuple(found)


def _addresses(node: Node) -> frozenset[str]:
    """Addresses that launches may bind; none where the document has a name instead of a number,
    and then a listener on any address counts."""
    named = [node.address, node.management.address, *(f.address for f in node.fabrics.values())]
    given = [a.strip("[]") for a in named if a]
    if not all(":" in a or a.replace(".", "").isdigit() for a in given):
        return frozenset()
    return frozenset(given)
