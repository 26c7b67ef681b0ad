"""labels.json as it should be: what may change beside a running launch without a restart.

The revision is written along and never compared: a commit that changes nothing of a replica is no
work for its nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from reconciler.core.model import Desired, Placement
from reconciler.core.observed import Labels
from reconciler.core.verdict import JudgedReplica


class _Shared(NamedTuple):
    """What is the same for all replicas of a placement."""

    labels: Mapping[str, str]
    owner: str
    revision: str
    unhealthy_after_s: int


class LabelBook:
    """The labels of every replica at one revision; what a placement's replicas share is kept."""

    def __init__(self, desired: Desired) -> None:
        self._desired = desired
        self._shared: dict[str, _Shared] = {}

    def of(self, placement: str, replica: str, ordinal: int) -> Labels:
        """The labels that a launch of `replica` should carry."""
        shared = self._of_placement(placement)
        return Labels(
            placement=placement,
            ordinal=ordinal,
            replica=replica,
            labels=shared.labels,
            owner=shared.owner,
            revision=shared.revision,
            unhealthy_after_s=shared.unhealthy_after_s,
        )

    def plain(self, replica: JudgedReplica) -> bool:
        """Whether a wanted replica with one launch carries its labels, and has its supervisors."""
        if replica.renamed_from:
            return False
        name, placement, ordinal = replica.replica, replica.placement, replica.ordinal
        shared = self._shared.get(placement) or self._of_placement(placement)
        for shard in replica.launches[0].view.shards.values():
            given = shard.labels
            if (
                given is None
                or given.replica != name
                or given.placement != placement
                or given.ordinal != ordinal
                or given.labels != shared.labels
                or given.owner != shared.owner
                or given.unhealthy_after_s != shared.unhealthy_after_s
                or (shard.alive and not shard.supervised)
            ):
                return False
        return True

    def _of_placement(self, name: str) -> _Shared:
        if name not in self._shared:
            self._shared[name] = _shared(self._desired, self._desired.placements[name])
        return self._shared[name]


def _shared(desired: Desired, placement: Placement) -> _Shared:
    """The nearest word wins: placement over profile over model."""
    profile = desired.profiles[placement.profile]
    model = desired.models[profile.model]
    return _Shared(
        labels={**model.labels, **profile.labels, **placement.labels},
        owner=placement.owner or profile.owner or model.owner,
        revision=desired.revision.recorded,
        unhealthy_after_s=desired.fleet.unhealthy_after_s,
    )


def same(left: Labels, right: Labels) -> bool:
    """Equal but for the revision."""
    return (left.placement, left.ordinal, left.replica, left.owner, left.unhealthy_after_s) == (
        right.placement,
        right.ordinal,
        right.replica,
        right.owner,
        right.unhealthy_after_s,
    ) and dict(left.labels) == dict(right.labels)
