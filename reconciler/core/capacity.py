"""What a plan costs each placement on the way: the lowest number of ready replicas.

An estimate from the changes alone: one that starts its successor first costs nothing, one that
stops first costs as many at a time as the limits allow. A launch whose replica has a better one
costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.core.changes import Capacity, Change, Symbol
from reconciler.core.model import Desired
from reconciler.core.tally import Tally, is_doomed


def capacity(desired: Desired, counts: Tally, changes: Sequence[Change]) -> tuple[Capacity, ...]:
    """One line for each placement of which something that may serve changes."""
    names = sorted({c.placement for c in changes if c.placement and c.symbol in _COSTLY})
    models = {r.placement: r.model for r in counts.odd}
    ready = {r.replica for r in counts.odd if r.ready}
    leaving = {r.replica for r in counts.odd if any(map(is_doomed, r.launches))}
    found = []
    for name in names:
        mine = [c for c in changes if c.placement == name]
        wanted = counts.wanted.get(name, 0)
        now = counts.ready.get(name, 0)
        placement = desired.placements.get(name)
        most = placement.rollout.max_unavailable if placement else 0
        first = sum(c.symbol is Symbol.STOP_FIRST and c.address in ready for c in mine)
        gone = len({c.address for c in mine if c.symbol is Symbol.STOP} & leaving & ready)
        lowest = max(0, now - gone - min(first, max(most, 0)))
        found.append(Capacity(name, models.get(name, ""), wanted, now, lowest))
    return tuple(found)


_COSTLY = frozenset({Symbol.STOP, Symbol.STOP_FIRST, Symbol.START_FIRST})
