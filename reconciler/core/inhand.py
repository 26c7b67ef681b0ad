"""Whether a replica could try today's profile now: for the choice of the canary alone.

That is made before anything is placed, and all others wait for the one that is chosen: one that is
out of sight, held by a person or without a place would keep them waiting for a node. `place`
decides where it goes; this is never stricter than it but for quarantines and memory, where a wrong
yes only makes the rest wait.

Leases are left out: two reconcilers have to choose the same canary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cached_property

from reconciler.core import canary, wanted
from reconciler.core.access import Access, look_at
from reconciler.core.catalog import Catalog
from reconciler.core.model import Node, NodeState, Placement
from reconciler.core.observed import Observed
from reconciler.core.occupancy import NodeUse, read_node
from reconciler.core.rejection import Launches
from reconciler.core.unseen import Unseen
from reconciler.core.verdicts import is_stuck
from reconciler.core.wanted import Want

Kind = tuple[str, int]
"""What the ranks of one replica share: GPU class, and how many adapters."""


class InHand:
    """All placements of one pass; what is read of nodes is read when it is first asked for."""

    def __init__(self, catalog: Catalog, observed: Observed, perhaps: Unseen) -> None:
        self._catalog = catalog
        self._observed = observed
        self._perhaps = perhaps
        self._rooms: dict[str, Room] = {}
        self._uses: dict[str, NodeUse | None] = {}

    def may_try(
        self, placement: Placement, want: Want, wanted_launches: Mapping[str, Launches]
    ) -> bool:
        """Whether `want` runs today's profile in sight, or could be given it now."""
        launches = wanted_launches[want.replica]
        if canary.begun_in_sight(self._catalog.today(placement.name)[1], launches):
            return True
        if any(s.silence or (s.damage and s.view.alive) for s, _ in launches):
            return False
        live = [s for s, end in launches if s.view.alive and end is None]
        if not live and self._perhaps.perhaps(placement, want):
            return False
        if any(self._reach.why_not(s.view.seen_nodes, s.view.launch) for s in live):
            return False
        if placement.name not in self._rooms:
            passing = self._passing(placement, wanted_launches)
            self._rooms[placement.name] = Room(self._catalog, placement, self._use, passing)
        ending = {s.view.launch for s, _ in launches if not is_stuck(s.view)}
        nodes = {n for s in live for n in s.view.seen_nodes}
        return self._rooms[placement.name].has(frozenset(ending), nodes, want.node)

    def _passing(
        self, placement: Placement, wanted_launches: Mapping[str, Launches]
    ) -> frozenset[str]:
        """Launches of the placement that only load an older profile."""
        today = self._catalog.today(placement.name)[1]
        return frozenset(
            s.view.launch
            for launches in wanted_launches.values()
            for s, end in launches
            if end is None and s.view.fingerprint != today
            if not (s.view.ever_ready or is_stuck(s.view))
        )

    @cached_property
    def _reach(self) -> Access:
        return look_at(self._catalog.desired, replace(self._observed, owner=""))[0]

    def _use(self, node: Node) -> NodeUse | None:
        """What is held on a node; None where nothing of it can be given away now."""
        if node.name not in self._uses:
            answer = self._reach.answers.get(node.name)
            away = node.state is not NodeState.ACTIVE or node.name in self._reach.barred
            use = None if answer is None or away else read_node(node, answer)
            self._uses[node.name] = None if use is None or use.error else use
        return self._uses[node.name]


class Room:
    """Nodes on which a rank of one placement has a place now, as far as their answers tell.

    What launches of the placement itself hold that are `passing` counts as free. They come and go
    with the choice of the canary: were it made by them, two replicas would take turns.
    """

    def __init__(
        self,
        catalog: Catalog,
        placement: Placement,
        use: Callable[[Node], NodeUse | None],
        passing: frozenset[str],
    ) -> None:
        self._catalog, self._placement, self._use = catalog, placement, use
        self._passing = passing
        profile = catalog.today(placement.name)[0].profile
        self._gpus, self._ranks = profile.gpus_per_node, profile.nodes

    def has(self, ending: frozenset[str], nodes: set[str], only: str = "") -> bool:
        """Whether a replica has a place once its launches `ending`, which are on `nodes`, are over.

        `only`: the node that a per-node replica belongs to.
        """
        freed = {name for name in nodes if self._fits(name, ending)}
        if only:
            return only in freed or self._fits(only)
        # Mostly the place that it has is enough, and the other nodes need not be looked at.
        if self._most(self._kinds(freed)) >= self._ranks:
            return True
        return self._most(self._alike + self._kinds(freed - self._open)) >= self._ranks

    @cached_property
    def _open(self) -> frozenset[str]:
        nodes = wanted.fitting(self._placement, self._catalog)
        return frozenset(node.name for node in nodes if self._fits(node.name))

    @cached_property
    def _alike(self) -> Counter[Kind]:
        return self._kinds(self._open)

    def _kinds(self, names: Collection[str]) -> Counter[Kind]:
        found: Counter[Kind] = Counter()
        for name in names:
            node = self._catalog.desired.nodes[name]
            fabric = node.fabrics.get(self._placement.fabric)
            found[node.gpus.klass, len(fabric.adapters) if fabric else 0] += 1
        return found

    @staticmethod
    def _most(alike: Counter[Kind]) -> int:
        return max(alike.values(), default=0)

    def _fits(self, name: str, ending: frozenset[str] = frozenset()) -> bool:
        node = self._catalog.desired.nodes.get(name)
        if node is None or not wanted.fits(self._placement, self._catalog, node):
            return False
        use = self._use(node)
        return use is not None and len(use.free(self._passing | ending)) >= self._gpus
