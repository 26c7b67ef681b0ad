"""Which replica tries a new profile first, while the others keep what was last ready.

The one that has come furthest with it, so that whatever a pass has begun the next one goes on with;
else the one with the least to lose. One that nobody can see or act on now comes last: the rest
would wait for a node, and not for the profile (docs/adr/0012).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reconciler.core.rejection import Launches

READY, BEGUN, MAKES_WAY, TRIED, DOWN, SERVES = range(6)
"""How far a replica has come with today's profile; then how much there is to lose."""


def choose(fingerprint: str, wanted: Mapping[str, Launches], in_hand: Callable[[str], bool]) -> str:
    """The canary, or empty where nothing is wanted.

    `wanted` is in order of ordinal, which decides between equals. `in_hand` is asked only of those
    that come before the canary: in a large placement it is not cheap.
    """
    ranked = sorted(
        (_rank(fingerprint, launches), order, replica)
        for order, (replica, launches) in enumerate(wanted.items())
    )
    names = [replica for _, _, replica in ranked]
    return next((name for name in names if in_hand(name)), names[0] if names else "")


def has_begun(fingerprint: str, launches: Launches) -> bool:
    """A launch of today's profile that has not ended, in sight or not."""
    return any(end is None and s.view.fingerprint == fingerprint for s, end in launches)


def begun_in_sight(fingerprint: str, launches: Launches) -> bool:
    """It runs with today's profile, and what becomes of that will be seen."""
    return any(
        end is None
        and s.view.fingerprint == fingerprint
        and s.view.alive
        and not (s.silence or s.damage or s.view.stop_asked)
        for s, end in launches
    )


def _rank(fingerprint: str, launches: Launches) -> int:
    own = [(s, end) for s, end in launches if s.view.fingerprint == fingerprint]
    if any(s.view.ever_ready for s, _ in own):
        return READY
    if has_begun(fingerprint, launches):
        return BEGUN
    if _makes_way(launches):
        # Before one that has tried: what was stopped for it is to be its, or the two take turns.
        return MAKES_WAY
    if any(end is not None and not end.on_request for _, end in own):
        return TRIED
    return SERVES if any(s.view.ready for s, _ in launches) else DOWN


def _makes_way(launches: Launches) -> bool:
    """Nothing of it goes on, and its newest launch was asked to stop although the replica is
    wanted: for its successor, which is then not to be somebody else's."""
    newest = launches[0] if launches else None
    if newest is None or not newest[0].view.stop_asked:
        return False
    if any(end is None and not s.view.stop_asked for s, end in launches):
        return False
    return newest[1] is None or newest[1].on_request
