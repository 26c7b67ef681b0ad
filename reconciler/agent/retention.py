"""Which ended launches are kept, so that a bad profile can be told from a bad day.

For each replica the last launch that was ever ready, and of each of its two newest profiles the
last three that failed: a fallback that crashes must not wipe out why it is run, or the bad profile
would be tried again. The rest goes at the next start of that replica, and anything older than a
week of uptime.
"""

from __future__ import annotations

import os
import shutil
from typing import Dict, Iterable, List

from . import cgroup
from .records import Seen, root_of

KEPT_FAILURES = 3
KEPT_PROFILES = 2
MAX_AGE_S = 7 * 24 * 3600.0


def removable(launches: Iterable[Seen], fleet: str, replica: str, now: float) -> List[Seen]:
    """Ended launches of `fleet` that need not be kept; never one alive or unreadable."""
    ended = [s for s in launches if s.fleet == fleet and s.ended and not s.status_error]
    mine = sorted((s for s in ended if s.replica == replica), key=_seq, reverse=True)
    ready = [s for s in mine if s.status.get("ever_ready") is True][:1]
    failed = _last_failed(s for s in mine if not _stopped(s))
    kept = {s.name for s in ready + failed}
    old = [s for s in ended if _ended_age(s, now) > MAX_AGE_S]
    return [s for s in mine if s.name not in kept] + [s for s in old if s.replica != replica]


def _last_failed(newest_first: Iterable[Seen]) -> List[Seen]:
    by_profile: Dict[str, List[Seen]] = {}
    for seen in newest_first:
        fingerprint = str(seen.spec.get("fingerprint", "")) if seen.spec else ""
        if fingerprint in by_profile or len(by_profile) < KEPT_PROFILES:
            by_profile.setdefault(fingerprint, []).append(seen)
    return [seen for own in by_profile.values() for seen in own[:KEPT_FAILURES]]


def _seq(seen: Seen) -> int:
    seq = seen.spec.get("seq") if seen.spec else 0
    return seq if isinstance(seq, int) else 0


def _stopped(seen: Seen) -> bool:
    told = seen.status.get("exit")
    return isinstance(told, dict) and told.get("kind") == "stopped"


def _ended_age(seen: Seen, now: float) -> float:
    """Of another boot: at least the uptime, which is all that can be known."""
    told = seen.status.get("exit")
    at = told.get("boottime") if isinstance(told, dict) and seen.same_boot else 0.0
    return now - at if isinstance(at, (int, float)) else 0.0


def remove(launches: Iterable[Seen]) -> None:
    """Take their folders away: out of sight by one rename, or a half-removed record would lie."""
    used = set()
    for seen in launches:
        # In its own root: there is no renaming from one file system to another.
        trash = os.path.join(root_of(seen.folder), "trash")
        used.add(trash)
        group = str(seen.status.get("cgroup") or "")
        if seen.same_boot and cgroup.belongs(group, seen.name):
            cgroup.remove(group)
        try:
            os.makedirs(trash, 0o700, exist_ok=True)
            os.rename(seen.folder, os.path.join(trash, seen.name))
        except OSError:
            continue
    for trash in used:
        shutil.rmtree(trash, ignore_errors=True)
