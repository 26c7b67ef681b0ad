"""Rule 3: how much may change now, so that a model keeps serving while its replicas are replaced.

A `Budget` starts from what is ready at this moment and is spent by every voluntary stop that the
pass decides on. Starting what is missing and replacing what is not ready is never asked here.
"""

from __future__ import annotations

from reconciler.core.changes import Reason
from reconciler.core.model import Desired
from reconciler.core.tally import Tally
from reconciler.core.words import one_or, share

Wait = tuple[Reason, str]
"""Why something that will come does not come now."""


class Budget:
    """What one pass may still take out of service. Lives for one pass."""

    def __init__(self, desired: Desired, tally: Tally) -> None:
        self._desired = desired
        self._tally = tally
        self._ready = dict(tally.ready)
        self._model_ready = dict(tally.model_ready)
        self._surging = dict(tally.surging)
        self._moving = set(tally.in_transition)
        self._parallel = desired.fleet.max_parallel.of(tally.total, least=1)
        self._model_limit: dict[str, int] = {}

    def replace(self, replica: str) -> Wait | None:
        """Whether one more replica of the fleet may be in transition because of replacement."""
        if replica in self._moving or len(self._moving) < self._parallel:
            return None
        return Reason.MAX_PARALLEL, (
            f"waits for {_some(self._moving)}: at most {self._parallel} at a time"
            f" (max_parallel {self._desired.fleet.max_parallel})"
        )

    def may_surge(self, placement: str) -> bool:
        """Whether replicas of the placement may run beside their successors at all."""
        return self._desired.placements[placement].rollout.max_surge > 0

    def surge(self, placement: str) -> Wait | None:
        """Whether as many replicas of the placement as may run beside their successors now."""
        limit = self._desired.placements[placement].rollout.max_surge
        running = self._surging.get(placement, 0)
        if running < limit or limit == 0:
            return None
        return Reason.MAX_SURGE, (
            f"{running} of placement {placement}"
            f" {one_or(running, 'runs beside its successor', 'run beside their successors')},"
            f" at most {limit} may (max_surge)"
        )

    def stop(self, placement: str, model: str) -> Wait | None:
        """Whether a ready replica may be stopped before its successor is ready."""
        tally = self._tally
        ready, wanted = self._ready.get(placement, 0), tally.wanted.get(placement, 0)
        rollout = (
            self._desired.placements[placement].rollout
            if placement in self._desired.placements
            else None
        )
        least = wanted - (rollout.max_unavailable if rollout else 0)
        if wanted and ready - 1 < least:
            return Reason.MAX_UNAVAILABLE, (
                f"placement {placement} has {share(ready, wanted, 'replica')} ready and must keep"
                f" {least}"
            )
        ready, wanted = self._model_ready.get(model, 0), tally.model_wanted.get(model, 0)
        least = wanted - self._of_model(model)
        if wanted and ready - 1 < least:
            return Reason.MAX_UNAVAILABLE, (
                f"model {model} has {share(ready, wanted, 'replica')} ready over all its"
                f" placements and must keep {least}"
            )
        return None

    def spend_stop(self, placement: str, model: str) -> None:
        """A ready replica goes out of service in this pass."""
        self._ready[placement] = self._ready.get(placement, 0) - 1
        self._model_ready[model] = self._model_ready.get(model, 0) - 1

    def spend_replace(self, replica: str) -> None:
        """A replacement begins in this pass."""
        self._moving.add(replica)

    def spend_surge(self, placement: str) -> None:
        """A replica runs beside its successor from this pass on."""
        self._surging[placement] = self._surging.get(placement, 0) + 1

    def moving(self, replicas: frozenset[str]) -> bool:
        """Whether one of `replicas` is in transition."""
        return not self._moving.isdisjoint(replicas)

    def _of_model(self, model: str) -> int:
        """max_unavailable of a model: the fleet's word, else the largest of its placements."""
        if model not in self._model_limit:
            fleet = self._desired.fleet.max_unavailable_per_model
            if fleet is not None:
                limit = fleet.of(self._tally.model_wanted.get(model, 0), least=1)
            else:
                mine = [
                    p.rollout.max_unavailable
                    for p in self._desired.placements.values()
                    if self._desired.profiles[p.profile].model == model
                ]
                limit = max(mine, default=1)
            self._model_limit[model] = limit
        return self._model_limit[model]


def _some(replicas: set[str]) -> str:
    """The first of them by name, and how many there are beside."""
    names = sorted(replicas)
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
