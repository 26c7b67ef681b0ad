"""Work that must not grow with the product of two sizes of a fleet: counted, not timed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from reconciler.core.diff import diff
from reconciler.core.model import (
    Desired,
    Fleet,
    GpuInventory,
    Model,
    Node,
    Placement,
    Profile,
    Revision,
)
from reconciler.core.observed import GpusPart, NodeAnswer, Observed
from reconciler.core.plan import plan
from reconciler.loop.comparing import Base, BaseNodes
from reconciler.loop.offline import AssumedNodes

NODES, PLACEMENTS = 12, 8


@dataclass(frozen=True)
class Counted(GpusPart):
    """The GPUs of a node, which tell how often they were asked for."""

    node: str = ""
    reads: Counter[str] = field(default_factory=Counter, compare=False)

    def __getattribute__(self, name: str) -> Any:
        if name == "items":
            object.__getattribute__(self, "reads")[object.__getattribute__(self, "node")] += 1
        return object.__getattribute__(self, name)


def fleet(replicas: int) -> Desired:
    names = [f"p{n}" for n in range(PLACEMENTS)]
    return Desired(
        Revision("a" * 40, "main", root_commit="b" * 40),
        Fleet("test", "7f3c1f0e-5a35-4c8e-9d0a-2b8f6a1c4d21"),
        {
            f"n{n}": Node(f"n{n}", f"10.0.0.{n + 1}", "h", GpuInventory("h", 8))
            for n in range(NODES)
        },
        {"m": Model("m", path="/m")},
        {name: Profile(name, model="m", engine="vllm", gpu_class="h") for name in names},
        {name: Placement(name, name, replicas=replicas, pool="h") for name in names},
    )


def reads(desired: Desired, observed: Observed, edited: int) -> int:
    """How often `diff` asks for the GPUs of nodes if so many profiles were edited."""
    counts: Counter[str] = Counter()

    def counted(name: str, answer: NodeAnswer) -> NodeAnswer:
        return replace(answer, gpus=Counted(answer.gpus.items, node=name, reads=counts))

    looks = {
        name: replace(look, answer=counted(name, look.answer))
        for name, look in observed.nodes.items()
        if look.answer is not None
    }
    names = sorted(desired.profiles)[:edited]
    changed = {name: replace(desired.profiles[name], args=("--x", "1")) for name in names}
    counts.clear()
    judged = diff(
        replace(desired, profiles={**desired.profiles, **changed}), replace(observed, nodes=looks)
    )
    stale = {r.placement for r in judged.replicas if r.verdict == "stale"}
    assert stale == set(names)
    return counts.total()


def test_a_node_is_read_once_a_pass_however_many_profiles_were_edited() -> None:
    full = fleet(NODES * 8 // PLACEMENTS)
    observed = BaseNodes(Base(full.revision, full)).look(full)
    once, often = reads(full, observed, 1), reads(full, observed, PLACEMENTS)
    assert often - once <= 3 * NODES, "nodes are read anew for each placement"


def test_a_replica_that_has_a_place_makes_nobody_read_the_other_nodes() -> None:
    full = fleet(NODES * 8 // PLACEMENTS)
    observed = BaseNodes(Base(full.revision, full)).look(full)
    assert reads(full, observed, 1) - reads(full, observed, 0) <= 4


@dataclass(frozen=True)
class CountedNode(Node):
    """A node that tells how often anything of it was read."""

    reads: Counter[str] = field(default_factory=Counter, compare=False)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name != "reads":
            object.__getattribute__(self, "reads")["node"] += 1
        return object.__getattribute__(self, name)


def reads_of_starts(nodes: int, replicas: int) -> int:
    """How often a plan looks at nodes to start so many replicas of one placement."""
    counts: Counter[str] = Counter()
    full = fleet(replicas)
    made = {
        f"n{n}": CountedNode(f"n{n}", f"10.0.0.{n + 1}", "h", GpuInventory("h", 8), reads=counts)
        for n in range(nodes)
    }
    desired = replace(full, nodes=made, placements={"p0": full.placements["p0"]})
    observed = AssumedNodes().look(desired)
    difference = diff(desired, observed)
    counts.clear()
    numbers = iter(range(replicas))
    planned = plan(desired, observed, difference, lambda: f"x{next(numbers)}")
    assert len(planned.steps) == replicas
    return counts.total()


def test_a_start_more_looks_at_its_own_node_and_not_at_all_of_them() -> None:
    few, many = (
        (reads_of_starts(nodes, 40) - reads_of_starts(nodes, 20)) / 20 for nodes in (10, 80)
    )
    assert many <= few + 10, "a start costs more where there are more nodes"
