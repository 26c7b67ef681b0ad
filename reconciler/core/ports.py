"""A launch's block of ports: the same distinct numbers on all of its nodes, free on each of them.

Ranks find each other by these numbers, so one block serves all nodes. Ports inside a node's
ephemeral range are never given: the kernel may hand them to any outgoing connection between the
choice and the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reconciler.core.model import PortRange
from reconciler.core.observed import NodeAnswer
from reconciler.core.occupancy import Ledger


def choose(
    names: Sequence[str],
    nodes: Sequence[str],
    ports: PortRange,
    ledger: Ledger,
    answers: Mapping[str, NodeAnswer],
) -> dict[str, int] | None:
    """The lowest run of consecutive ports that is free on all nodes, else the lowest free ports.

    None: fewer than `len(names)` ports of the range are free on all nodes.
    """
    if not names:
        return {}
    closed = [answers[node].network.ephemeral for node in nodes]
    held = [ledger.use(node).ports for node in nodes]
    count = len(names)
    free: list[int] = []
    run = 0
    for port in range(ports.first, ports.last + 1):
        if any(first <= port <= last for first, last in closed) or any(port in h for h in held):
            run = 0
            continue
        free.append(port)
        run += 1
        if run == count:
            return dict(zip(names, free[-count:], strict=True))
    if len(free) < count:
        return None
    return dict(zip(names, free[:count], strict=True))


def none_free(count: int, given: PortRange) -> str:
    """`no port of 20000-20099 is free`, `no 3 ports of … are free`: for whoever says where."""
    span = f"of {given.first}-{given.last}"
    return f"no port {span} is free" if count == 1 else f"no {count} ports {span} are free"
