"""When a profile is *rejected* in a placement: it was never ready anywhere, and it keeps failing.

From the records on the nodes alone, so that a restarted reconciler comes to the same answer.
docs/adr/0009 says why five failures in one place are enough where DESIGN asks for a second node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from reconciler.core.backoff import KEPT_FAILURES
from reconciler.core.endings import Ending, Fault
from reconciler.core.views import Sighting

FAILURES_TO_REJECT = 3
FAILURES_WITHOUT_SECOND_NODE = 5
"""So many reject without a second node's opinion. Nodes that fit by their documents may all be
full: the failures then stay on one node, and nothing would ever end them."""

Launches = Sequence[tuple[Sighting, Ending | None]]
"""Newest first."""


class Trial(NamedTuple):
    """What a rejection in one placement depends on. A tuple, as every placement makes one."""

    fingerprint: str
    ranks: int
    ready_anywhere: Callable[[str], bool]
    """Whether a fingerprint was ever ready in this fleet; asked only of what was not ready here."""
    retries: Mapping[str, int]
    """Replica → seq up to which failures are forgiven."""
    fitting_nodes: Callable[[], int]
    """How many nodes could take the profile, by the documents and by who answers; whether they are
    full is not counted: what the placement itself starts and stops would change the answer."""


def rejection(trial: Trial, launches: Iterable[tuple[Sighting, Ending | None]]) -> str:
    """Why the profile is rejected; empty: it is not."""
    if trial.ready_anywhere(trial.fingerprint):
        return ""
    everything = list(launches)
    failed = [
        (s, end)
        for s, end in everything
        if end is not None
        and end.failed
        and s.view.fingerprint == trial.fingerprint
        and s.view.seq > trial.retries.get(s.view.replica, 0)
    ]
    failed.sort(key=lambda pair: (pair[1].fault is not Fault.COMMAND, pair[0].view.launch))
    if failed and failed[0][1].fault is Fault.COMMAND:
        return f"{failed[0][0].view.launch} {failed[0][1].reason}"
    if len(failed) < FAILURES_TO_REJECT:
        return ""
    nodes = {p.node for s, _ in failed for p in s.view.places}
    needed = min(trial.fitting_nodes(), trial.ranks + 1)
    count = _counted(trial, everything, [s for s, _ in failed])
    if len(nodes) < needed and count < FAILURES_WITHOUT_SECOND_NODE:
        return ""
    return f"{count} launches failed on {', '.join(sorted(nodes))}: {failed[0][1].reason}"


def _counted(
    trial: Trial,
    everything: Iterable[tuple[Sighting, Ending | None]],
    failed: Sequence[Sighting],
) -> int:
    """How many launches failed, with those whose records the nodes have swept since.

    Of each replica and profile a node keeps three that failed; between the oldest of them and the
    last that was something else, seq tells how many there were.
    """
    ours = {s.view.launch for s in failed}
    floor: dict[str, int] = {}
    oldest: dict[str, int] = {}
    kept: dict[str, int] = {}
    for s in failed:
        replica = s.view.replica
        oldest[replica] = min(s.view.seq, oldest.get(replica, s.view.seq))
        kept[replica] = kept.get(replica, 0) + 1
    for s, _ in everything:
        replica = s.view.replica
        if s.view.launch not in ours and s.view.seq < oldest.get(replica, 0):
            floor[replica] = max(s.view.seq, floor.get(replica, 0))
    total = 0
    for replica, count in kept.items():
        total += count
        if count >= KEPT_FAILURES:
            since = max(floor.get(replica, 0), trial.retries.get(replica, 0))
            total += max(0, oldest[replica] - 1 - since)
    return total
