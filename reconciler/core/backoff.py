"""How long a failed replica waits before its next launch: 10 s doubling to 300 s.

Nothing remembers but the nodes' records, so the delay survives the reconciler. A node keeps the
last three failed launches of a replica and profile; older ones are inferred from the gap in `seq`.
`retry`, an edit (another fingerprint), a reboot and a good while of service start the count anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.core.endings import Ending
from reconciler.core.verdict import Backoff
from reconciler.core.views import Sighting

FIRST_S = 10.0
LONGEST_S = 300.0
SERVED_S = 600.0
"""A launch that was ready and lived this long shows that the failures before it were over."""
KEPT_FAILURES = 3
"""Failed launches of a replica and profile that a node keeps (docs/agent-protocol.md, "Kept")."""


def backoff(
    launches: Sequence[tuple[Sighting, Ending | None]], fingerprint: str, forgiven: int
) -> Backoff:
    """The delay of one replica. `launches` are newest first; `forgiven` is the seq of a retry."""
    failures: list[tuple[Sighting, Ending]] = []
    floor = forgiven
    for sighting, end in launches:
        view = sighting.view
        if view.seq <= forgiven:
            break
        if view.fingerprint != fingerprint:
            if not failures:
                continue
            floor = max(floor, view.seq)
            break
        if view.ready or (end is not None and _starts_anew(sighting, end)):
            floor = max(floor, view.seq)
            break
        if end is not None and end.delays:
            failures.append((sighting, end))
            if _served(sighting, end):
                floor = max(floor, view.seq - 1)
                break
    if not failures:
        return Backoff()
    count = len(failures)
    if count >= KEPT_FAILURES:
        count += max(0, failures[-1][0].view.seq - 1 - floor)
    delay = min(LONGEST_S, FIRST_S * 2.0 ** min(count - 1, 10))
    newest = failures[0][1]
    return Backoff(count, max(0.0, delay - newest.age_s))


def _starts_anew(sighting: Sighting, end: Ending) -> bool:
    return end.clears or (end.on_request and sighting.view.ever_ready)


def _served(sighting: Sighting, end: Ending) -> bool:
    lived = max((s.started_age_s for s in sighting.view.shards.values()), default=0.0) - end.age_s
    return sighting.view.ever_ready and lived >= SERVED_S
