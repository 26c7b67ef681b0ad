"""Whether a replica could try today's profile now: for the choice of the canary alone.

That is made before anything is placed, and all others wait for the one that is chosen: one that is
out of sight, held by a person or without a place would keep them waiting for a node. `place`
decides where it goes; this is never stricter than it but for quarantines and memory, where a wrong
yes only makes the rest wait.

Leases are left out: two reconcilers have to choose the same canary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from reconciler.core import canary, wanted
from reconciler.core.access import Access, look_at
from reconciler.core.catalog import Catalog
from reconciler.core.model import NodeState, Placement
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
        self._access: Access | None = None
        self._rooms: dict[str, Room] = {}

    def may_try(self, placement: Placement, want: Want, launches: Launches) -> bool:
        """Whether `want` runs today's profile in sight, or could be given it now."""
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
            self._rooms[placement.name] = Room(self._catalog, self._reach, placement)
        ending = {s.view.launch for s, _ in launches if not is_stuck(s.view)}
        nodes = {n for s in live for n in s.view.seen_nodes}
        return self._rooms[placement.name].has(frozenset(ending), nodes, want.node)

    @property
    def _reach(self) -> Access:
        if self._access is None:
            self._access, _ = look_at(self._catalog.desired, replace(self._observed, owner=""))
        return self._access


class Room:
    """Nodes on which a rank of one placement has a place now, as far as their answers tell."""

    def __init__(self, catalog: Catalog, access: Access, placement: Placement) -> None:
        profile = catalog.today(placement.name)[0].profile
        self._gpus, self._ranks = profile.gpus_per_node, profile.nodes
        self._kinds: dict[str, Kind] = {}
        self._uses: dict[str, NodeUse] = {}
        for node in wanted.fitting(placement, catalog):
            answer = access.answers.get(node.name)
            if answer is None or node.state is not NodeState.ACTIVE or node.name in access.barred:
                continue
            use = read_node(node, answer)
            if not use.error:
                fabric = node.fabrics.get(placement.fabric)
                self._kinds[node.name] = node.gpus.klass, len(fabric.adapters) if fabric else 0
                self._uses[node.name] = use
        self._open = {name for name in self._uses if self._fits(name, frozenset())}
        self._alike = Counter(self._kinds[name] for name in self._open)

    def has(self, ending: frozenset[str], nodes: set[str], only: str = "") -> bool:
        """Whether a replica has a place once its launches `ending`, which are on `nodes`, are over.

        `only`: the node that a per-node replica belongs to.
        """
        freed = {n for n in nodes & self._uses.keys() - self._open if self._fits(n, ending)}
        if only:
            return only in self._open or only in freed
        return self._count(freed) >= self._ranks

    def _count(self, freed: set[str]) -> int:
        alike: Mapping[Kind, int] = self._alike
        if freed:
            alike = self._alike + Counter(self._kinds[name] for name in freed)
        return max(alike.values(), default=0)

    def _fits(self, name: str, ending: frozenset[str]) -> bool:
        return len(self._uses[name].free(ending)) >= self._gpus
