"""Work that is due whatever the limits say: adopting, sweeping what ended, finishing stops.

None of it takes a replica out of service. What a record does not explain (unknown) is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from reconciler.core.access import Access
from reconciler.core.changes import AdoptStep, Seat, Step, StopStep
from reconciler.core.observed import ExitKind, Shard
from reconciler.core.occupancy import is_over
from reconciler.core.verdict import JudgedLaunch, LaunchView, Verdict

_ENDED = frozenset({Verdict.EXITED, Verdict.TIMED_OUT})
_ADOPTABLE = frozenset(
    {
        Verdict.SURPLUS,
        Verdict.SUSPENDED,
        Verdict.STALE,
        Verdict.MISPLACED,
        Verdict.STARTING,
        Verdict.UNHEALTHY,
        Verdict.MATCHING,
    }
)
"""Surplus ones too: a guard may keep them for days."""


def repairs(judged: JudgedLaunch, access: Access) -> Iterator[Step]:
    """What is due for one launch."""
    view = judged.view
    if judged.verdict in _ENDED:
        nodes = nodes_of(view, lambda shard: not is_over(shard))
        if nodes and access.why_not(view.seen_nodes, view.launch) is None:
            yield StopStep(view.replica, view.launch, nodes, judged.reason, voluntary=False)
        unwritten = nodes_of(view, _ended_unwritten)
        if unwritten and access.why_not(view.seen_nodes, view.launch) is None:
            yield AdoptStep(view.launch, unwritten)
    elif judged.verdict is Verdict.STOPPING:
        nodes = nodes_of(view, _is_orphan_or_unasked)
        if nodes and access.why_not(nodes, view.launch) is None:
            yield StopStep(
                view.replica, view.launch, nodes, "stop was asked and nobody sees to it", False
            )
    elif judged.verdict in _ADOPTABLE:
        nodes = nodes_of(view, is_orphan)
        if nodes and access.why_not(nodes, view.launch) is None:
            yield AdoptStep(view.launch, nodes)


def is_orphan(shard: Shard) -> bool:
    """Alive without a supervisor."""
    return shard.alive and not shard.supervised


def is_orphaned(view: LaunchView) -> bool:
    """Whether a shard is alive without a supervisor: what its health says is then old."""
    return any(is_orphan(shard) for shard in view.shards.values())


def has_leftovers(view: LaunchView) -> bool:
    """Whether anything of a launch is not proven ended."""
    return any(not is_over(shard) for shard in view.shards.values())


def nodes_of(view: LaunchView, wanted: Callable[[Shard], bool] | None = None) -> tuple[str, ...]:
    """Nodes on which a shard of the launch was seen (and is `wanted`), in name order.

    Where a shard's node cannot be told from its rank, all nodes are named: a stop asked twice
    does no harm, one not asked does.
    """
    if wanted is None:
        return tuple(sorted(view.seen_nodes))
    hits = {rank for rank, shard in view.shards.items() if wanted(shard)}
    if not hits:
        return ()
    by_rank = {place.rank: place.node for place in view.places}
    named = {by_rank.get(rank, "") for rank in hits}
    if not named <= set(view.seen_nodes):
        return tuple(sorted(view.seen_nodes))
    return tuple(sorted(named))


def seats_of(view: LaunchView) -> tuple[Seat, ...]:
    """Where a launch is, by its record."""
    return tuple(Seat(place.node, place.gpus) for place in view.places)


def _is_orphan_or_unasked(shard: Shard) -> bool:
    """One rank may have been asked to stop and the request to another been lost."""
    return is_orphan(shard) or (shard.alive and not shard.stop_asked)


def _ended_unwritten(shard: Shard) -> bool:
    """Its supervisor was killed with it, so no age of its end is told: to adopt it writes the end
    down. Without that its back-off would begin anew in every look."""
    told = shard.exit
    return told is not None and told.kind is ExitKind.UNKNOWN and told.age_s == 0
