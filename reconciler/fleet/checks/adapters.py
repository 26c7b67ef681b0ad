"""Adapters and interfaces that a profile names itself, against what the nodes have.

A name in a profile holds for every node that may run it. Where one node lacks it, or has it on
another fabric, the launch starts, waits, and hangs in its first collective: told here, offline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reconciler.core.changes import Reason
from reconciler.core.model import Node, Placement, Profile
from reconciler.fleet.findings import Finding, listed, quoted
from reconciler.fleet.repo import Entry, Repo

INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
ADAPTERS = "NCCL_IB_HCA"


def check(repo: Repo) -> Iterator[Finding]:
    """Findings about placements whose profile names adapters or interfaces."""
    naming = {
        name: profile
        for name, profile in repo.values("Profile").items()
        if ADAPTERS in profile.env or any(variable in profile.env for variable in INTERFACES)
    }
    if not naming:
        return
    nodes = repo.values("Node")
    for entry in repo.of("Placement").values():
        profile = naming.get(entry.value.profile)
        if profile is not None:
            chosen = [node for node in nodes.values() if _may_run(entry.value, node)]
            yield from _adapters(repo, entry, profile, chosen)
            yield from _interfaces(repo, entry, profile, chosen)


def _may_run(placement: Placement, node: Node) -> bool:
    return (
        (not placement.pool or node.pool == placement.pool)
        and (not placement.nodes or node.name in placement.nodes)
        and placement.selector.items() <= node.labels.items()
        and (not placement.fabric or placement.fabric in node.fabrics)
    )


def _adapters(repo: Repo, entry: Entry, profile: Profile, nodes: list[Node]) -> Iterator[Finding]:
    value = profile.env.get(ADAPTERS, "")
    if not value or value[0] == "^" or "$(" in value:
        return
    wrong: dict[str, list[str]] = {}
    for node in nodes:
        own = node.fabrics.get(entry.value.fabric)
        mine = {adapter.name for adapter in own.adapters} if own else set()
        for name, fabric in _elsewhere(node, mine).items():
            if _takes(value, name):
                wrong.setdefault(f"{name} of fabric {fabric}", []).append(node.name)
    for what, names in wrong.items():
        where = listed(names, 3)
        message = f"profile {profile.name} sets {ADAPTERS}={value}, which takes {what} on {where}"
        hint = "leave the variable out: each node gets the adapters of the placement's fabric"
        yield repo.finding(entry, ("profile",), message, hint, reason=Reason.INFEASIBLE)


def _elsewhere(node: Node, mine: set[str]) -> Mapping[str, str]:
    return {
        adapter.name: name
        for name, fabric in node.fabrics.items()
        for adapter in fabric.adapters
        if adapter.name not in mine
    }


def _takes(value: str, name: str) -> bool:
    """NCCL matches by prefix, unless the list starts with `=`."""
    wanted = [part.split(":", 1)[0] for part in value.lstrip("=").split(",")]
    if value[0] == "=":
        return name in wanted
    return any(part and name.startswith(part) for part in wanted)


def _interfaces(repo: Repo, entry: Entry, profile: Profile, nodes: list[Node]) -> Iterator[Finding]:
    for variable in INTERFACES:
        value = profile.env.get(variable, "")
        if not value or value[0] == "^" or "$(" in value:
            continue
        lacking = [
            node.name
            for node in nodes
            if node.management.interface and not _names(value, _interfaces_of(node))
        ]
        if lacking:
            message = (
                f"profile {profile.name} sets {variable}={value}, and the document of"
                f" {listed(lacking, 3)} names no such interface"
            )
            hint = f"write {quoted('$(bootstrap.interface)')}: each node's own"
            yield repo.finding(
                entry, ("profile",), message, hint, reason=Reason.INFEASIBLE, warning=True
            )


def _interfaces_of(node: Node) -> set[str]:
    known = {node.management.interface}
    known |= {fabric.interface for fabric in node.fabrics.values()}
    return known - {""}


def _names(value: str, known: set[str]) -> bool:
    return any(
        interface.startswith(part)
        for part in value.lstrip("=").split(",")
        for interface in known
        if part
    )
