"""One walk over all replicas: how many are wanted and ready, and which need a closer look.

Most replicas of a large fleet are as they should be. This walk is the only part of planning that
touches each of them, so it does little: everything else is done for `odd` ones alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from reconciler.core.labels import LabelBook
from reconciler.core.model import Desired
from reconciler.core.tidy import has_leftovers
from reconciler.core.verdict import Diff, JudgedLaunch, JudgedReplica, Verdict

_IN_TRANSITION = frozenset({Verdict.STARTING, Verdict.MISSING, Verdict.STOPPING})


@dataclass
class Tally:
    """Counts of one pass, before it acts."""

    wanted: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Placement → replicas, those of suspended placements not counted."""
    ready: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Placement → ready replicas, wanted or not."""
    model_wanted: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    model_ready: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    model_ready_wanted: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Model → ready replicas that stay wanted."""
    before: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """(model, pool) → replicas that were wanted before this revision, as far as the nodes tell."""
    odd: list[JudgedReplica] = field(default_factory=list)
    """Replicas that need more than a glance."""
    matching: int = 0
    in_transition: set[str] = field(default_factory=set)
    """Replicas that are being replaced: their successor is not ready yet."""
    surging: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Placement → replicas with both an old and a new launch."""

    @property
    def total(self) -> int:
        """Wanted replicas of the fleet."""
        return sum(self.wanted.values())


def take(desired: Desired, diff: Diff, labels: LabelBook) -> Tally:
    """Counts `diff`; linear in replicas, and fast for those that match."""
    tally = Tally()
    odd, plain = tally.odd, labels.plain
    suspended = {name for name, p in desired.placements.items() if p.suspend}
    matching = Verdict.MATCHING
    alike: tuple[str, str, str] | None = None
    count = 0
    for replica in diff.replicas:
        effective = replica.effective
        if (
            replica.verdict is matching
            and replica.ready
            and replica.wanted
            and len(replica.launches) == 1
            and effective is not None
            and not effective.rejected
            and not effective.waiting
            and replica.placement not in suspended
            and plain(replica)
        ):
            same = (replica.placement, replica.model, replica.pool)
            if same != alike:
                _count_alike(tally, alike, count)
                alike, count = same, 0
            count += 1
            continue
        odd.append(replica)
        _count_odd(tally, replica, replica.placement in suspended)
    _count_alike(tally, alike, count)
    tally.model_ready_wanted.update(tally.model_ready)
    for replica in odd:
        if (not replica.wanted or replica.placement in suspended) and is_ready(replica):
            tally.model_ready_wanted[replica.model] -= 1
    return tally


def _count_alike(tally: Tally, alike: tuple[str, str, str] | None, count: int) -> None:
    """`count` ready and matching replicas of one placement, model and pool."""
    if alike is None:
        return
    placement, model, pool = alike
    tally.matching += count
    tally.wanted[placement] += count
    tally.ready[placement] += count
    tally.model_wanted[model] += count
    tally.model_ready[model] += count
    tally.before[model, pool] += count


def _count_odd(tally: Tally, replica: JudgedReplica, suspended: bool) -> None:
    wanted = replica.wanted and not suspended
    if wanted:
        tally.wanted[replica.placement] += 1
        tally.model_wanted[replica.model] += 1
    if is_ready(replica):
        tally.ready[replica.placement] += 1
        tally.model_ready[replica.model] += 1
    if (wanted and replica.launches) or leaves(replica):
        tally.before[replica.model, replica.pool] += 1
    if wanted and _is_in_transition(replica):
        tally.in_transition.add(replica.replica)
    if wanted and replica.kept and replica.current and replica.kept != replica.current:
        tally.surging[replica.placement] += 1


def is_ready(replica: JudgedReplica) -> bool:
    """Ready for every limit: a launch answers, and is not on its way out."""
    return replica.ready and any(
        j.view.ready and not j.view.stop_asked and j.verdict is not Verdict.UNREACHABLE
        for j in replica.launches
    )


def leaves(replica: JudgedReplica) -> bool:
    """Not wanted (or suspended), and something of it is left to be stopped, in sight or not."""
    return any(is_doomed(j) or j.verdict is Verdict.UNREACHABLE for j in replica.launches)


def is_doomed(judged: JudgedLaunch) -> bool:
    """Alive, and of a replica that is not wanted or is suspended."""
    if not has_leftovers(judged.view):
        return False
    return judged.verdict is Verdict.SUSPENDED or (
        judged.verdict is Verdict.SURPLUS and judged.not_wanted
    )


def _is_in_transition(replica: JudgedReplica) -> bool:
    """Between an old launch that was (or will be) stopped for a new one, and the new one's ready.

    First starts and crashes are not replacements: a crash loop must not use up the fleet's share.
    """
    if replica.kept and replica.current and replica.kept != replica.current:
        return True
    if is_ready(replica) or replica.verdict not in _IN_TRANSITION:
        return False
    return any(j.view.stop_asked for j in replica.launches)
