"""Single ranks: which are ready, and which are known to be dead, and by what evidence.

A rank is dead only on evidence: its node answers whole and shows no such launch or an ended one,
or a person called the node lost. Silence is no evidence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from reconciler.core.looks import Looks
from reconciler.core.observed import ExitKind, Place, Shard


class Death(StrEnum):
    """How it is known that a rank does not run."""

    ENDED = "ended"
    STOPPED = "stopped on request"
    REBOOT = "reboot"
    ABSENT = "absent"
    LOST = "lost"


@dataclass(frozen=True)
class DeadRank:
    """A rank that does not run, and how that is known."""

    rank: int
    node: str
    how: Death
    shard: Shard | None = None
    before_boot: bool = False
    """It ended before its node's last boot."""


def dead_ranks(
    places: tuple[Place, ...],
    shards: Mapping[int, Shard],
    silence: Collection[str],
    over: Collection[str],
    last: Mapping[str, Shard],
    looks: Looks,
) -> tuple[DeadRank, ...]:
    """The dead among `places`. `last` are the last looks at silent nodes, which count where the
    node is in `over`: what they show had ended by then, and nothing starts twice."""
    dead = []
    for place in places:
        shard = shards.get(place.rank)
        if place.node in silence:
            continue
        if shard is None and place.node in over:
            shard = last[place.node]
        if shard is None:
            how = Death.ABSENT if looks.knows(place.node) else Death.LOST
            dead.append(DeadRank(place.rank, place.node, how))
        elif how_ended := _ended(shard, boot := looks.boot_id(place.node)):
            earlier = _other_boot(shard, boot)
            dead.append(DeadRank(place.rank, place.node, how_ended, shard, earlier))
    return tuple(dead)


def _ended(shard: Shard, boot_id: str) -> Death | None:
    kind = shard.exit.kind if shard.exit else None
    if kind is ExitKind.STOPPED:
        return None if shard.alive else Death.STOPPED
    if kind is ExitKind.REBOOT:
        return Death.REBOOT
    if kind is None and _other_boot(shard, boot_id):
        return Death.REBOOT
    # A supervisor that has recorded an exit may still be sweeping what the engine left behind.
    return Death.ENDED if kind is not None or not shard.alive else None


def _other_boot(shard: Shard, boot_id: str) -> bool:
    boot = shard.boot_id or (shard.record.boot_id if shard.record else "")
    return bool(boot and boot_id) and boot != boot_id


def rank_ready(shard: Shard | None) -> bool:
    """Alive, and freshly healthy where it serves."""
    if shard is None or not shard.alive or shard.exit is not None:
        return False
    return not shard.serves or (shard.fresh and shard.health.ok)
