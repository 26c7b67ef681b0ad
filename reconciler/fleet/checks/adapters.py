"""Adapters and interfaces that a profile names itself, against what the nodes have.

A name in a profile holds for every node that may run it. Where one node lacks it, or has it on
another fabric, the launch starts, waits, and hangs in its first collective: told here, offline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engines import adapters
from reconciler.core.changes import Reason
from reconciler.core.model import Node, Placement, Profile
from reconciler.fleet.findings import Finding, listed, quoted
from reconciler.fleet.repo import Entry, Repo

INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def check(repo: Repo) -> Iterator[Finding]:
    """Findings about placements whose profile names adapters or interfaces."""
    naming = {
        name: profile
        for name, profile in repo.values("Profile").items()
        if repo.memory.of(profile, _named) or any(v in profile.env for v in INTERFACES)
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
    wrong: dict[tuple[str, str], list[str]] = {}
    named = _named(profile)
    for node in nodes if named else ():
        own = node.fabrics.get(entry.value.fabric)
        others = _elsewhere(node, {(a.name, a.port) for a in own.adapters} if own else set())
        for what, value in named if others else ():
            for name, port in adapters.taken(what, value, others):
                taken = f"{name}:{port} of fabric {others[name, port]}"
                wrong.setdefault((f"{what}={value}", taken), []).append(node.name)
    for (said, taken), names in wrong.items():
        where = listed(list(dict.fromkeys(names)), 3)
        message = f"profile {profile.name} sets {said}, which takes {taken} on {where}"
        hint = "leave it out: each node gets the adapters of the placement's fabric"
        yield repo.finding(entry, ("profile",), message, hint, reason=Reason.INFEASIBLE)


def _named(profile: Profile) -> list[tuple[str, str]]:
    """What the profile says itself, for all ranks or some; references are each node's own."""
    found = [
        pair
        for env, args in (
            (profile.env, profile.args),
            (profile.leader.env, profile.leader.args),
            (profile.worker.env, profile.worker.args),
        )
        for pair in adapters.named(profile.engine, env, args)
    ]
    return [(what, value) for what, value in found if "$(" not in value]


def _elsewhere(node: Node, mine: set[adapters.Port]) -> Mapping[adapters.Port, str]:
    return {
        (adapter.name, adapter.port): name
        for name, fabric in node.fabrics.items()
        for adapter in fabric.adapters
        if (adapter.name, adapter.port) not in mine
    }


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
