"""Causes outside: many replicas sick at once, and nodes or GPUs that are to get nothing new.

A third of a model that turns unhealthy within minutes has one cause (a network, a store, a driver),
and restarting all of it makes that worse. A node where starts fail that succeed elsewhere is the
cause itself. Both are read off the records of this pass alone, and end when these say otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from reconciler.core.endings import Ending
from reconciler.core.model import Desired
from reconciler.core.observed import Observed
from reconciler.core.verdict import Brake, JudgedReplica, Quarantine
from reconciler.core.views import Sighting


def brakes(replicas: Sequence[JudgedReplica], desired: Desired) -> tuple[Brake, ...]:
    """Models and nodes of which too many are sick at once."""
    return ()


def quarantines(
    launches: Iterable[tuple[Sighting, Ending | None]],
    replicas: Sequence[JudgedReplica],
    desired: Desired,
    observed: Observed,
    retries: Mapping[str, int],
) -> tuple[Quarantine, ...]:
    """Nodes and GPUs that get nothing new, sorted by name."""
    return ()
