"""How much of everything together: each document is within its bounds, and their product is not.

A hundred placements of ten thousand replicas fit in one file, and a dry run, a forecast or a pass
would look for a place for a million of them. Whoever opens a pull request must not be able to make
these hang.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from reconciler.core.changes import Reason
from reconciler.core.model import PER_NODE, Placement
from reconciler.fleet.checks.fit import chosen
from reconciler.fleet.findings import Finding
from reconciler.fleet.repo import Repo

MOST_SHARDS = 20_000
"""Processes of all replicas together: 2,500 nodes with eight GPUs, one for each. A forecast of
30,000 took 450 MB."""


def check(repo: Repo) -> Iterator[Finding]:
    """One finding, at the placement that asks for most."""
    profiles, nodes = repo.values("Profile"), repo.values("Node")
    pools = Counter(node.pool for node in nodes.values())
    asked: list[tuple[int, str]] = []
    for name, entry in repo.of("Placement").items():
        placement: Placement | None = entry.value
        if placement is None or placement.profile not in profiles:
            continue
        if placement.replicas == PER_NODE:
            replicas = pools[placement.pool] if placement.pool else len(nodes)
            if placement.selector or placement.nodes:
                replicas = sum(chosen(placement, node) for node in nodes.values())
        else:
            replicas = int(placement.replicas)
        asked.append((replicas * profiles[placement.profile].nodes, name))
    total = sum(shards for shards, _ in asked)
    if total <= MOST_SHARDS:
        return
    most, name = max(asked)
    message = (
        f"all placements together ask for {total} processes on nodes, more than {MOST_SHARDS};"
        f" most of them, {most}, are of this one"
    )
    entry = repo.of("Placement")[name]
    yield repo.finding(entry, ("replicas",), message, "lower replicas", reason=Reason.INFEASIBLE)
