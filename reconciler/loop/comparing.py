"""A stand-in for the nodes of a pull request's dry run: the base revision, as if all of it ran.

A pull request is to show what its edit changes. Planned against empty nodes, every edit reads as
"start everything"; so the base revision is played in memory until nothing more is to be done, every
launch ready, placed by the same planner, and the edit is planned against that. Where the replicas
really stand only the nodes know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any, Protocol

from reconciler.core.model import Desired, Node, NodeState, Revision
from reconciler.core.observed import Lease, NodeAnswer, NodeLook, Observed
from reconciler.errors import InvalidFleet
from reconciler.loop.head import MAX_WALK
from reconciler.loop.offline import AssumedNodes, OnlyLooks, assumed
from reconciler.loop.seams import SourceLike
from reconciler.simulate.engine import Behaviour
from reconciler.simulate.reconciler import Pass, SimReconciler
from reconciler.simulate.seen import fleet_as_seen

OWNER = "base"
MOST_PASSES = 50
"""Starts need one pass, and another for each that waits for one before; a base that is not settled
after this many is compared as it is then."""
A_DAY_S = 86_400.0
"""Between two passes: longer than any start, back-off or `ready_for_s`."""


class BaseSource(SourceLike, Protocol):
    """A fleet repo that knows where a branch left another."""

    def fork_point(self, one: str, other: str) -> str:
        """The newest commit that both have in their history; empty: none."""


@dataclass(frozen=True)
class Base:
    """What is taken to run."""

    asked: Revision
    """Where the branch left the ref that was named."""
    desired: Desired | None
    """The newest revision from there back that validates; None: there is none, nothing runs."""

    @property
    def words(self) -> str:
        """For people."""
        asked = f"{self.asked.ref}@sha1:{self.asked.commit[:10]}"
        if self.desired is None:
            return f"planned as if nothing ran: no revision up to {asked} validates"
        found = self.desired.revision.commit
        if found == self.asked.commit:
            return f"planned as if {asked} ran, all of it ready; what runs was not looked at"
        return (
            f"planned as if sha1:{found[:10]} ran, all of it ready, the last before {asked} that"
            " validates; what runs was not looked at"
        )


def find_base(source: BaseSource, ref: str, head: str) -> Base:
    """The revision that `ref` is for a branch whose newest commit is `head`. GitError.

    Commits that `ref` got since the branch left it are not the branch's: compared with them, a
    branch that is merely behind would seem to take them back.
    """
    named = source.resolve(ref)
    fork = source.fork_point(named.commit, head) if head else ""
    asked = replace(named, commit=fork) if fork else named
    for older in islice(source.ancestors(asked.commit), MAX_WALK):
        try:
            return Base(asked, source.load(replace(older, ref=asked.ref)))
        except InvalidFleet:
            continue
    return Base(asked, None)


class BaseNodes(OnlyLooks):
    """Nodes as they would be if the base revision ran: what `desired` says of a node's hardware,
    with the base's launches on it."""

    def __init__(self, base: Base) -> None:
        self.basis = base.words
        self._answers = answers(base.desired) if base.desired else {}

    def look(self, desired: Desired, *, remember: bool = True) -> Observed:
        """Every node that is not lost; one that the base does not have is empty."""
        return Observed(
            "",
            {
                name: NodeLook(name, answer=_merged(node, self._answers.get(name)))
                for name, node in sorted(desired.nodes.items())
                if node.state is not NodeState.LOST
            },
        )


def answers(base: Desired) -> Mapping[str, NodeAnswer]:
    """What each node says once all of `base` runs that its own nodes can hold."""
    fleet = fleet_as_seen(base, AssumedNodes().look(base), _at_once)
    numbers = count()
    reconciler = SimReconciler(fleet, OWNER, lambda: f"b{next(numbers)}")
    for _ in range(MOST_PASSES):
        done = _one_pass(reconciler, base).done
        fleet.advance(A_DAY_S)
        if not done:
            break
    # All nodes name the base as in force: so a node that the edit takes out is missed.
    lease = Lease(
        fleet=base.fleet.id,
        root_commit=base.revision.root_commit,
        owner="",
        epoch=1,
        remaining_s=0.0,
        revision=base.revision.commit,
    )
    return {
        name: replace(node.answer(base.fleet.id), lease=lease)
        for name, node in sorted(fleet.nodes.items())
    }


def _at_once(spec: Mapping[str, Any]) -> Behaviour:
    return Behaviour(load_s=0.0)


def _one_pass(reconciler: SimReconciler, base: Desired) -> Pass:
    running = reconciler.run(base)
    while True:
        try:
            next(running)
        except StopIteration as stop:
            made: Pass = stop.value
            return made


def _merged(node: Node, before: NodeAnswer | None) -> NodeAnswer:
    """The node as its document now says; what ran on a GPU that it still has is on it."""
    now = assumed(node)
    if before is None:
        return now
    busy = {gpu.uuid: gpu.processes for gpu in before.gpus.items}
    gpus = tuple(replace(gpu, processes=busy.get(gpu.uuid, ())) for gpu in now.gpus.items)
    return replace(
        now,
        shards=before.shards,
        gpus=replace(now.gpus, items=gpus),
        network=replace(now.network, listening=before.network.listening),
        lease=before.lease,
    )
