"""Which replicas of a placement are wanted, by name: a number of them, or one per node.

A replica keeps its id for as long as it is wanted, so the names come from what is seen first. Of
too many, those leave first that serve least. Nothing in here starts or stops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from operator import attrgetter
from typing import NamedTuple

from reconciler.core.catalog import Catalog
from reconciler.core.endings import Ending, ending
from reconciler.core.ids import replica_id
from reconciler.core.model import PER_NODE, Node, NodeState, Placement
from reconciler.core.views import Sighting


class Group(NamedTuple):
    """A replica as the nodes show it: its launches, newest first."""

    replica: str
    placement: str
    ordinal: int
    launches: tuple[tuple[Sighting, Ending | None], ...] = ()

    @property
    def leader(self) -> str:
        """Node of rank 0 of the launch that counts: one that may run, else the newest."""
        best = next((s for s, end in self.launches if end is None), None)
        return (best or self.launches[0][0]).leader if self.launches else ""


class Want(NamedTuple):
    """One replica that a placement asks for."""

    replica: str
    ordinal: int
    node: str = ""
    """per-node: the node that the ordinal belongs to."""


def group(sightings: Iterable[Sighting]) -> dict[str, Group]:
    """Replica → its launches. Launches that no replica can be named for are left out."""
    found: dict[str, list[Sighting]] = {}
    for sighting in sightings:
        if sighting.ordinal >= 0:
            found.setdefault(sighting.view.replica, []).append(sighting)
    groups = {}
    for replica, own in found.items():
        if len(own) == 1:
            [only] = own
            pair = (only, ending(only) if only.dead else None)
            groups[replica] = Group(replica, only.view.placement, only.ordinal, (pair,))
            continue
        own.sort(key=lambda s: (-s.view.seq, s.view.launch))
        launches = tuple((s, ending(s) if s.dead else None) for s in own)
        groups[replica] = Group(replica, own[0].view.placement, own[0].ordinal, launches)
    return groups


def wants(placement: Placement, groups: Sequence[Group], catalog: Catalog) -> tuple[Want, ...]:
    """The wanted replicas of `placement` in order of ordinal. `groups` are all that are seen."""
    if placement.replicas == PER_NODE:
        return tuple(sorted(_per_node(placement, groups, catalog), key=_ordinal))
    assert isinstance(placement.replicas, int)
    ordered = sorted(groups, key=_ordinal)
    if len(ordered) > placement.replicas:
        ordered.sort(key=lambda g: (_standing(placement, g, catalog), g.ordinal))
        ordered = ordered[: placement.replicas]
        ordered.sort(key=_ordinal)
    chosen = [Want(g.replica, g.ordinal) for g in ordered]
    if len(chosen) < placement.replicas:
        fresh = _free_ordinals({g.ordinal for g in groups})
        while len(chosen) < placement.replicas:
            ordinal = next(fresh)
            chosen.append(Want(replica_id(placement.name, ordinal), ordinal))
        chosen.sort(key=_ordinal)
    return tuple(chosen)


_ordinal = attrgetter("ordinal", "replica")


def _free_ordinals(taken: Collection[int]) -> Iterator[int]:
    return (n for n in count() if n not in taken)


# --- Who stays where there are too many: the first rule that matches is the replica's standing ---


def _standing(placement: Placement, group: Group, catalog: Catalog) -> int:
    return next(i for i, rule in enumerate(_STANDING) if rule(placement, group, catalog))


def _live(group: Group) -> list[Sighting]:
    return [
        s
        for s, end in group.launches
        if end is None and s.view.alive and not s.view.stop_asked and not s.damage
    ]


def _as_wanted(placement: Placement, sighting: Sighting, catalog: Catalog) -> bool:
    view = sighting.view
    return (
        view.fingerprint == catalog.today(placement.name)[1]
        and (not placement.restart or view.restart == placement.restart)
        and not catalog.why_not(placement, view.places)
    )


Rule = Callable[[Placement, Group, Catalog], bool]

_STANDING: tuple[Rule, ...] = (
    # Ready, as wanted.
    lambda p, g, c: any(s.view.ready and _as_wanted(p, s, c) for s in _live(g)),
    # Ready, but stale or misplaced.
    lambda p, g, c: any(s.view.ready for s in _live(g)),
    # Unreachable or unknown: counts as wanted only after the ready ones.
    lambda p, g, c: any(s.silence or (s.damage and s.view.alive) for s, _ in g.launches),
    # Not ready, as wanted; then not ready and out of date anyway.
    lambda p, g, c: any(_as_wanted(p, s, c) for s in _live(g)),
    lambda p, g, c: bool(_live(g)),
    # No live launch. One that ended by itself is still wanted by whoever started it; one that was
    # stopped on request may be about to come back (a replacement) or gone for good.
    lambda p, g, c: _ended_by_itself(g),
    lambda p, g, c: True,
)


def _ended_by_itself(group: Group) -> bool:
    end = group.launches[0][1] if group.launches else None
    return end is not None and not end.on_request


# --- One per node ---------------------------------------------------------------------------------


def _per_node(placement: Placement, groups: Sequence[Group], catalog: Catalog) -> Iterator[Want]:
    """Ordinals stay with their nodes; new nodes take the lowest free ones, in order of name."""
    nodes = {n.name: n for n in fitting(placement, catalog) if n.state is not NodeState.DRAINING}
    standing = {g.replica: _standing(placement, g, catalog) for g in groups}
    owners: dict[str, Group] = {}
    for g in sorted(groups, key=lambda g: (standing[g.replica], g.ordinal)):
        if g.leader in nodes:
            owners.setdefault(g.leader, g)
    for name, g in owners.items():
        cordoned = nodes[name].state is NodeState.CORDONED
        if not cordoned or standing[g.replica] < len(_STANDING) - 1:
            yield Want(g.replica, g.ordinal, name)
    fresh = _free_ordinals({g.ordinal for g in groups})
    for name in sorted(nodes):
        if name not in owners and nodes[name].state is NodeState.ACTIVE:
            ordinal = next(fresh)
            yield Want(replica_id(placement.name, ordinal), ordinal, name)


def fitting(placement: Placement, catalog: Catalog) -> list[Node]:
    """Nodes that the documents allow and that have the GPUs for one rank; `lost` ones not."""
    return [node for node in catalog.desired.nodes.values() if fits(placement, catalog, node)]


def fits(placement: Placement, catalog: Catalog, node: Node) -> bool:
    """Whether `node` is one of them."""
    profile = catalog.today(placement.name)[0].profile
    return (
        node.name not in catalog.desired.departed
        and node.state is not NodeState.LOST
        and (not profile.gpu_class or node.gpus.klass == profile.gpu_class)
        and node.gpus.count >= profile.gpus_per_node
        and catalog.may_live(placement, node)
    )


def in_placement(groups: Mapping[str, Group]) -> dict[str, list[Group]]:
    """Placement → its groups, in no order."""
    found: dict[str, list[Group]] = {}
    for g in groups.values():
        found.setdefault(g.placement, []).append(g)
    return found
