"""Which records of ended launches a node in memory keeps: as the agent does (agent/retention)."""

from __future__ import annotations

from collections.abc import Collection

from reconciler.simulate.engine import Shardlet

KEEP_FAILED = 3
"""Ended launches that failed and are kept, of each of a replica's two newest profiles, beside the
last one that was ready (docs/adr/0009)."""
KEEP_PROFILES = 2


def sweep(launches: dict[str, Shardlet], replica: str, roots: Collection[str]) -> None:
    """Takes away what need not be kept of a replica that starts anew, of what lies in `roots`."""
    ended = [
        (s.spec["seq"], name)
        for name, s in launches.items()
        if not s.alive and s.root in roots and (s.labels.replica or s.spec["replica"]) == replica
    ]
    ended.sort(reverse=True)
    ready = [n for _, n in ended if launches[n].ever_ready][:1]
    by_profile: dict[str, list[str]] = {}
    for _, name in ended:
        mark = str(launches[name].spec.get("fingerprint", ""))
        if launches[name].failed and (mark in by_profile or len(by_profile) < KEEP_PROFILES):
            by_profile.setdefault(mark, []).append(name)
    failed = [name for own in by_profile.values() for name in own[:KEEP_FAILED]]
    for _, name in ended:
        if name not in ready and name not in failed:
            del launches[name]
