"""Addresses of one node written into a profile: right on that node, wrong on every other.

Every rank told to bind the leader's address fails on all nodes but one, after minutes; a reference
gives each node its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from reconciler.core.changes import Reason
from reconciler.core.model import Node
from reconciler.fleet.checks.secrets import texts
from reconciler.fleet.findings import Finding, quoted
from reconciler.fleet.repo import Repo

_ADDRESS = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}")


def check(repo: Repo) -> Iterator[Finding]:
    """Findings about addresses of the inventory in profiles."""
    known = _addresses(repo.values("Node"))
    for entry in repo.of("Profile").values():
        profile = entry.value
        if profile is None:
            continue
        own = entry.document.data
        for path, name, value in texts(profile):
            if path[0] not in own or len(value) > 4096:
                continue
            for address in _ADDRESS.findall(value):
                node = known.get(address.lower())
                if node is None:
                    continue
                yield repo.finding(
                    entry,
                    path,
                    f"{quoted(address)} is the address of node {node}",
                    f"write {_reference(name, profile.nodes)}: each node gets its own",
                    reason=Reason.INFEASIBLE,
                    warning=profile.nodes == 1,
                )


def _addresses(nodes: Mapping[str, Node]) -> dict[str, str]:
    known: dict[str, str] = {}
    for name, node in sorted(nodes.items()):
        mine = [node.address, node.management.address]
        mine += [fabric.address for fabric in node.fabrics.values()]
        for address in mine:
            if _ADDRESS.fullmatch(address):
                known.setdefault(address.lower(), name)
    return known


def _reference(name: str, nodes: int) -> str:
    if nodes > 1 and any(word in name for word in ("MASTER", "LEADER", "HEAD")):
        return "$(leader.address)"
    return "$(node.address) (to bind) or $(leader.address) (to connect)"
