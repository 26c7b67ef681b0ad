"""Where a replica goes is what ranking every node anew for it would say, whatever was placed before
it in the pass: the short cut is held against the simple form, which is written out here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.core import blocks
from reconciler.core.access import Access
from reconciler.core.changes import Seat
from reconciler.core.fit import Ask, Candidate
from reconciler.core.model import (
    Desired,
    Fleet,
    GpuInventory,
    Model,
    Node,
    Placement,
    Profile,
    ResolvedProfile,
    Revision,
)
from reconciler.core.observed import GpuProcess, GpuSeen, GpusPart, NodeAnswer, Place
from reconciler.core.occupancy import Ledger
from reconciler.core.place import FAILURES_BEFORE_MOVE, Placer
from reconciler.core.verdict import Diff
from tests.core.build_world import FLEET_ID

NAMES = tuple(f"n{i}" for i in range(6))
MODEL = Model("m", path="/m")


# --- the simple form -----------------------------------------------------------------------------


class Simple:
    """Looks at all nodes, and ranks all that fit, each time that it is asked."""

    def __init__(self, desired: Desired, access: Access, ledger: Ledger) -> None:
        self._given = desired, access, ledger
        self._ledger = ledger
        self.beside: dict[str, Counter[str]] = {}

    def place(self, ask: Ask) -> tuple[Seat, ...] | None:
        fits, _ = Placer(*self._given, (), {}).fits(ask)
        count = ask.resolved.profile.nodes
        before = {p.node for p in ask.previous}
        groups = []
        for like in {fit.like for fit in fits}:
            ranked = sorted(
                (self._rank(ask, before, c), c.node.name, c) for c in fits if c.like == like
            )
            chosen = [c for _, _, c in ranked[:count]]
            if len(chosen) == count:
                worn = sum(rank[0] for rank, _, _ in ranked[:count])
                kept = sum(c.node.name in before for c in chosen)
                groups.append((worn, -kept, sum(c.spans for c in chosen), like, chosen))
        if not groups:
            return None
        return tuple(self._seats(ask, min(groups, key=lambda g: g[:4])[4]))

    def _rank(self, ask: Ask, before: set[str], fit: Candidate) -> tuple[object, ...]:
        name, free = fit.node.name, len(fit.gpus)
        worn = ask.failures.get(name, 0) >= FAILURES_BEFORE_MOVE
        near = self.beside.get(ask.placement.name, Counter())[name]
        liked = (near, -free) if ask.placement.spread else (0, free)
        return worn, name not in before, fit.spans, *liked, name

    def _seats(self, ask: Ask, group: list[Candidate]) -> Iterator[Seat]:
        had = {p.rank: p for p in ask.previous}
        left = {c.node.name: c for c in group}
        ranks = [(r, had[r]) for r in range(len(group)) if r in had]
        stays = {r: left.pop(p.node) for r, p in ranks if p.node in left}
        for rank in range(len(group)):
            chosen = stays[rank] if rank in stays else left.pop(next(iter(left)))
            before = had[rank].gpus if rank in stays else ()
            every = self._ledger.use(chosen.node.name).slots
            count = ask.resolved.profile.gpus_per_node
            yield Seat(chosen.node.name, blocks.choose(chosen.gpus, count, before, every))


# --- random fleets and asks ----------------------------------------------------------------------


@st.composite
def nodes(draw: st.DrawFn, name: str) -> tuple[Node, NodeAnswer]:
    """Much alike, as in life: who comes first is for what is free and what runs beside to say."""
    count = draw(st.sampled_from([2, 4, 4, 8]))
    linked = draw(st.booleans())
    types = draw(st.sampled_from([("H",), ("H",), ("H", "L")]))
    held = draw(st.sets(st.integers(0, 7), max_size=2))
    seen = tuple(
        GpuSeen(
            f"{name}-{i}",
            i,
            name=types[i % len(types)],
            processes=(GpuProcess(1, launch=f"old{i % 2}"),) if i in held else (),
            nvlink_group=i // 2 if linked else None,
        )
        for i in range(count)
    )
    node = Node(name, "10.0.0.1", draw(st.sampled_from("xxxy")), GpuInventory("h", count))
    return node, NodeAnswer("1.0", f"m-{name}", "boot", gpus=GpusPart(seen))


ONE, TWO = Profile("f", model="m", engine="vllm"), Profile("f", "m", "vllm", gpus_per_node=2)
KINDS = [
    (Placement("p", "f"), ONE),
    (Placement("q", "f"), ONE),
    (Placement("r", "f", pool="x"), TWO),
    (Placement("s", "f", spread=False), ONE),
    (Placement("p", "f"), TWO),
    (Placement("q", "f"), replace(ONE, nodes=2)),
    (Placement("q", "f", spread=False), replace(TWO, nodes=3)),
]

places = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).map(
    lambda names: tuple(
        Place(rank, name, "", (f"{name}-{rank}", f"{name}-{rank + 1}"), {})
        for rank, name in enumerate(names)
    )
)
failures = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3), min_size=1, max_size=3)
ending = st.dictionaries(
    st.sampled_from(["old0", "old1", "new1", "new2"]), st.just(NAMES[:4]), min_size=1, max_size=2
)
history = st.one_of(
    st.fixed_dictionaries({}),
    st.fixed_dictionaries({}, optional={"previous": places, "failures": failures}),
    st.fixed_dictionaries({"previous": places, "without": ending}),
    st.fixed_dictionaries({"only": st.sampled_from(NAMES)}),
    st.fixed_dictionaries({"mixed": st.just(True)}),
)


@st.composite
def rounds(draw: st.DrawFn) -> list[tuple[Ask, bool]]:
    """Replicas one after the other, mostly several of a placement in a row and mostly taken."""
    asked: list[tuple[Ask, bool]] = []
    for placement, profile in draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4)):
        for _ in range(draw(st.integers(1, 5))):
            ask = Ask(placement, ResolvedProfile(profile, MODEL), **draw(history))
            asked.append((ask, draw(st.sampled_from([True, True, True, False]))))
    return asked


@settings(max_examples=300, deadline=None)
@given(st.tuples(*(nodes(name) for name in NAMES)), rounds())
def test_a_replica_goes_where_ranking_every_node_anew_would_put_it(
    fleet: tuple[tuple[Node, NodeAnswer], ...], asked: list[tuple[Ask, bool]]
) -> None:
    revision = Revision("a" * 40, "main", root_commit="b" * 40)
    desired = Desired(revision, Fleet("t", FLEET_ID), {n.name: n for n, _ in fleet})
    access = Access(answers={n.name: answer for n, answer in fleet})
    ledger = Ledger(desired, access.answers, Diff())
    placer, simple = Placer(desired, access, ledger, (), {}), Simple(desired, access, ledger)
    for number, (ask, is_taken) in enumerate(asked):
        found = placer.place(ask)
        assert found == simple.place(ask)
        if found and is_taken:
            placer.take(ask.placement.name, f"new{number}", found)
            beside = simple.beside.setdefault(ask.placement.name, Counter())
            beside.update(seat.node for seat in found)
