"""Addresses of one node written into a profile: right on that node, wrong on every other.

Every rank told to bind the leader's address fails on all nodes but one, after minutes; a reference
gives each node its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from engines.references import nodes_named
from reconciler.core.changes import Reason
from reconciler.core.model import Node, Profile
from reconciler.fleet.checks.secrets import texts
from reconciler.fleet.findings import Finding, listed, nearest, quoted
from reconciler.fleet.repo import Entry, Repo
from reconciler.fleet.strictyaml import Path

_ADDRESS = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}")


def check(repo: Repo) -> Iterator[Finding]:
    """Findings about addresses of the inventory in profiles."""
    nodes = repo.values("Node")
    known = _addresses(nodes)
    for entry in repo.of("Profile").values():
        profile = entry.value
        if profile is None:
            continue
        own = entry.document.data
        for path, name, value in repo.memory.of(profile, _telling):
            if path[0] not in own:
                continue
            yield from _unknown_nodes(repo, entry, path, value, nodes)
            if len(value) > 4096:
                continue
            for address in _ADDRESS.findall(value):
                node = known.get(address.lower())
                if node is None:
                    continue
                yield repo.finding(
                    entry,
                    path,
                    f"{quoted(address)} is the address of node {node}",
                    _instead(name, profile.nodes, node),
                    reason=Reason.INFEASIBLE,
                    warning=profile.nodes == 1,
                )


def _telling(profile: Profile) -> list[tuple[Path, str, str]]:
    """Texts that may speak of one node: few, and the others need not be looked at again."""
    return [
        (path, name, value)
        for path, name, value in texts(profile)
        if "$(" in value or (len(value) <= 4096 and _ADDRESS.search(value))
    ]


def _addresses(nodes: Mapping[str, Node]) -> dict[str, str]:
    known: dict[str, str] = {}
    for name, node in sorted(nodes.items()):
        mine = [node.address, node.management.address]
        mine += [fabric.address for fabric in node.fabrics.values()]
        for address in mine:
            if _ADDRESS.fullmatch(address):
                known.setdefault(address.lower(), name)
    return known


def _unknown_nodes(
    repo: Repo, entry: Entry, path: Path, value: str, nodes: Mapping[str, Node]
) -> Iterator[Finding]:
    for name in dict.fromkeys(nodes_named([value])):
        if name not in nodes:
            message = f"$(address.{name}) or $(host.{name}): there is no node {quoted(name)}"
            hint = nearest(name, nodes) or f"nodes are {listed(nodes)}"
            yield repo.finding(entry, path, message, hint, reason=Reason.REFERENCE_FAILED)


def _instead(name: str, ranks: int, node: str) -> str:
    if ranks > 1 and any(word in name for word in ("MASTER", "LEADER", "HEAD")):
        return "write $(leader.address): each node gets its own"
    return (
        "write $(node.address) (to bind) or $(leader.address) (to connect): each node gets its own;"
        f" for what runs on that node alone, $(address.{node})"
    )
