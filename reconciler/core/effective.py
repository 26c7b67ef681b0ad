"""Which profile each replica of a placement is to run: today's, or the last that was ready there.

A profile that was never ready anywhere and keeps failing is *rejected*; one that is new to a
placement with something to lose goes to one replica first, the *canary*. Both follow from the
nodes' records alone, so a restarted reconciler comes to the same answer, and so does the next pass
whatever it has started meanwhile: no replica is ever taken back from a profile that it has served
with, so a placement cannot swing between two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from reconciler.core import canary
from reconciler.core.endings import Ending
from reconciler.core.model import Placement, ResolvedProfile
from reconciler.core.observed import ApprovedChange
from reconciler.core.rejection import Launches, Trial, rejection
from reconciler.core.verdict import Effective
from reconciler.core.views import Sighting


@dataclass(frozen=True)
class Held:
    """A freeze, or `update: manual`."""

    reason: str
    """Frozen | ManualUpdate."""
    message: str
    approved: frozenset[ApprovedChange] = frozenset()
    """Changes that a person let through all the same."""


class Facts(NamedTuple):
    """What the choice for one placement depends on. A tuple, as every placement makes one."""

    placement: Placement
    profile: ResolvedProfile
    fingerprint: str
    """Today's."""
    trial: Trial
    """What a rejection of today's depends on."""
    in_hand: Callable[[str], bool] = lambda replica: True
    """Whether today's profile could be started for a replica, or runs there in sight; asked only of
    those that might be the canary."""
    may_stay: Callable[[Sighting], bool] = lambda launch: True
    """Whether a launch is where it may be, with the restart that is asked for."""
    held: Held | None = None
    """What people said against any change of this placement; None: nothing."""
    repairs_only: bool = False
    """The revision is in force under a head that is not: nothing moves on to another profile."""


def choose(
    facts: Facts, wanted: Mapping[str, Launches], others: Iterable[Launches] = ()
) -> Mapping[str, Effective]:
    """Replica → its effective profile. `others` are unwanted replicas of the placement.

    `wanted` is in order of ordinal, which decides between equals.
    """
    today = Effective(facts.profile, facts.fingerprint)
    if facts.repairs_only:
        return {r: _as_before(launches, today) for r, launches in wanted.items()}
    if facts.held is None and _proven_at_a_glance(facts, wanted):
        return dict.fromkeys(wanted, today)
    everything = [pair for launches in wanted.values() for pair in launches]
    everything += [pair for launches in others for pair in launches]
    tried = [s for s, _ in everything if s.view.fingerprint == facts.fingerprint]
    proven = {s.view.replica for s in tried if s.view.ever_ready}
    last = _last_ready(facts, everything)
    held = _held_back(facts, wanted, last) if facts.held and last else {}
    if held:
        free = {r: launches for r, launches in wanted.items() if r not in held}
        return {**_unheld(facts, free, everything, tried, proven, last), **held}
    return _unheld(facts, wanted, everything, tried, proven, last)


def _unheld(
    facts: Facts,
    wanted: Mapping[str, Launches],
    everything: Launches,
    tried: Sequence[Sighting],
    proven: Set[str],
    last: Sighting | None,
) -> Mapping[str, Effective]:
    """For replicas that nobody holds back."""
    today = Effective(facts.profile, facts.fingerprint)
    if proven and (len(proven) > 1 or _ready_long_enough(facts, tried)):
        return dict.fromkeys(wanted, today)
    why = "" if proven else rejection(facts.trial, everything)
    if why:
        return {r: _fallback(launches, last, facts, why) for r, launches in wanted.items()}
    if last is None:
        return dict.fromkeys(wanted, today)
    first = canary.choose(facts.fingerprint, wanted, facts.in_hand)
    return {
        replica: _with_canary(facts, replica, launches, first, last)
        for replica, launches in wanted.items()
    }


def _held_back(
    facts: Facts, wanted: Mapping[str, Launches], last: Sighting
) -> dict[str, Effective]:
    """Replicas that keep, and restart with, what they were last ready with.

    A crash under a freeze is repaired, but must not smuggle in what the freeze holds. Who has
    begun with today's profile goes on, and so does whom a person let through to it, from whatever
    it ran then: where the node that it went to is lost, older records are all that is left of it.
    """
    assert facts.held is not None
    through = {
        c.replica
        for c in facts.held.approved
        if c.after == facts.fingerprint and c.before != c.after
    }
    found = {}
    for replica, launches in wanted.items():
        begun = canary.has_begun(facts.fingerprint, launches)
        kept = _kept(launches, last, facts)
        if begun or kept.view.fingerprint == facts.fingerprint or replica in through:
            continue
        found[replica] = Effective(
            kept.view.profile,
            kept.view.fingerprint,
            waiting=True,
            held=facts.held.reason,
            reason=facts.held.message,
        )
    return found


def _proven_at_a_glance(facts: Facts, wanted: Mapping[str, Launches]) -> bool:
    """Enough wanted replicas that were ready with today's profile: most placements, most passes."""
    enough = 2 if facts.placement.rollout.ready_for_s else 1
    proven = 0
    for launches in wanted.values():
        if launches and launches[0][0].view.ever_ready:
            proven += launches[0][0].view.fingerprint == facts.fingerprint
            if proven >= enough:
                return True
    return False


def _ready_for_s(sighting: Sighting) -> float:
    """Since when the last of its ranks is ready; where none is asked, since when the last runs."""
    shards = sighting.view.shards.values()
    asked = [shard.health.ready_for_s for shard in shards if shard.serves]
    return min(asked or [shard.started_age_s for shard in shards], default=0.0)


def _ready_long_enough(facts: Facts, tried: Iterable[Sighting]) -> bool:
    limit = facts.placement.rollout.ready_for_s
    if not limit:
        return True
    return any(s.view.ready and _ready_for_s(s) >= limit for s in tried)


def _last_ready(
    facts: Facts, launches: Iterable[tuple[Sighting, Ending | None]]
) -> Sighting | None:
    """The launch whose profile was last ready here, other than today's.

    Ready now counts before ready once; then what most replicas have, then the most recent.
    """
    known = [
        (s, end)
        for s, end in launches
        if s.view.ever_ready
        and s.view.profile is not None
        and not s.damage
        and s.view.fingerprint != facts.fingerprint
    ]
    if not known:
        return None
    ready: dict[str, int] = {}
    for s, _ in known:
        ready[s.view.fingerprint] = ready.get(s.view.fingerprint, 0) + s.view.ready
    best = min(
        known,
        key=lambda pair: (
            -ready[pair[0].view.fingerprint],
            pair[1].age_s if pair[1] else 0.0,
            pair[0].view.fingerprint,
            pair[0].view.launch,
        ),
    )
    return best[0]


def _own_ready(facts: Facts, launches: Launches) -> Sighting | None:
    """What this replica runs, or ran last, with success: it keeps that."""
    for alive in (True, False):
        for s, end in launches:
            known = s.view.profile is not None and not s.damage
            if s.view.ever_ready and known and (not alive or (s.view.alive and end is None)):
                return s
    return None


def _as_before(launches: Launches, today: Effective) -> Effective:
    """What its own record says; a replica that never ran gets what is in force."""
    for s, _ in launches:
        known = s.view.profile is not None and not s.damage
        if known and (s.view.ever_ready or s.view.fingerprint == today.fingerprint):
            if s.view.fingerprint == today.fingerprint:
                return today
            return Effective(
                s.view.profile,
                s.view.fingerprint,
                waiting=True,
                reason="keeps its own profile until a revision validates",
            )
    return today


def _kept(launches: Launches, last: Sighting, facts: Facts) -> Sighting:
    own = _own_ready(facts, launches)
    return own if own is not None else last


def _fallback(launches: Launches, last: Sighting | None, facts: Facts, why: str) -> Effective:
    if last is None:
        return Effective(
            None,
            facts.fingerprint,
            rejected=True,
            reason=f"profile {facts.placement.profile} is rejected ({why}),"
            " and no other was ever ready here; edit it, or"
            f" `reconcile retry {facts.placement.name}`",
        )
    kept = _kept(launches, last, facts)
    return Effective(
        kept.view.profile,
        kept.view.fingerprint,
        rejected=True,
        reason=f"profile {facts.placement.profile} is rejected ({why});"
        " the last that was ready stays until it is edited, or"
        f" `reconcile retry {facts.placement.name}`",
    )


def _with_canary(
    facts: Facts, replica: str, launches: Launches, first: str, last: Sighting
) -> Effective:
    if replica == first:
        return Effective(
            facts.profile,
            facts.fingerprint,
            canary=True,
            reason=f"the first replica to try profile {facts.placement.profile}",
        )
    if _goes_on(facts, launches):
        return Effective(
            facts.profile,
            facts.fingerprint,
            reason=f"had begun with profile {facts.placement.profile} when its node fell silent",
        )
    kept = _kept(launches, last, facts)
    return Effective(
        kept.view.profile,
        kept.view.fingerprint,
        waiting=True,
        reason=f"waits until {first} has been ready with today's profile"
        + (f" for {facts.placement.rollout.ready_for_s} s" if _delay(facts) else ""),
    )


def _goes_on(facts: Facts, launches: Launches) -> bool:
    """It was the canary until another had to be chosen: what it has begun it ends, since to take it
    back would cost a start for nothing. When that fails it waits like the others."""
    return any(
        end is None
        and s.view.fingerprint == facts.fingerprint
        and not (s.view.stop_asked or s.damage)
        and facts.may_stay(s)
        for s, end in launches
    )


def _delay(facts: Facts) -> int:
    return facts.placement.rollout.ready_for_s
