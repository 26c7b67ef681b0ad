"""Fabrics: what each node has on them, and whether nodes of a pool are alike."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from reconciler.core.changes import Reason
from reconciler.core.model import Node, NodeFabric
from reconciler.fleet.findings import Finding, quoted
from reconciler.fleet.repo import Entry, Repo


def check(repo: Repo) -> Iterator[Finding]:
    """Findings about fabrics of single nodes and of pools."""
    groups: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in repo.of("Node").values():
        node: Node = entry.value
        owners: dict[tuple[str, int], str] = {}
        for name, fabric in node.fabrics.items():
            groups[(node.pool, name)].append(entry)
            yield from _one(repo, entry, name, fabric, owners)
    for (pool, name), entries in sorted(groups.items()):
        yield from _alike(repo, pool, name, entries)


def _one(
    repo: Repo, entry: Entry, name: str, fabric: NodeFabric, owners: dict[tuple[str, int], str]
) -> Iterator[Finding]:
    path = ("fabrics", name)
    rdma = fabric.kind in ("ib", "roce")
    if rdma and not fabric.adapters:
        message = f"kind {fabric.kind} without adapters"
        hint = "list them, or take the fabric away: 'no adapters' must be said, not fallen into"
        yield _infeasible(repo, entry, path, message, hint)
    if not rdma and fabric.adapters:
        message = f"kind {fabric.kind} with adapters"
        yield _infeasible(
            repo, entry, (*path, "adapters"), message, "remove them, or say ib or roce"
        )
    if fabric.gid_index is not None and fabric.kind != "roce":
        message = f"gid_index on kind {fabric.kind}"
        yield _infeasible(
            repo, entry, (*path, "gid_index"), message, "it is for roce only: remove it"
        )
    if fabric.kind == "roce" and fabric.gid_index is None:
        message = "kind roce without gid_index: the default index may not reach the peers"
        hint = "add the index of the RoCE v2 GID over IPv4 (show_gids lists them), mostly 3"
        yield _infeasible(repo, entry, path, message, hint)
    for index, adapter in enumerate(fabric.adapters):
        known = owners.setdefault((adapter.name, adapter.port), name)
        at = (*path, "adapters", index)
        if known == name and adapter not in fabric.adapters[:index]:
            continue
        port = f"port {adapter.port} of {quoted(adapter.name)}"
        if known != name:
            message = f"{port} is on fabric {quoted(known)} too"
            hint = "a port is on one fabric: a launch with adapters of two hangs"
            yield _infeasible(repo, entry, at, message, hint)
        else:
            yield _infeasible(repo, entry, at, f"{port} is listed twice", "keep one of them")


def _alike(repo: Repo, pool: str, name: str, entries: list[Entry]) -> Iterator[Finding]:
    """Nodes of one pool that differ from most: NCCL pairs adapters by their place in the list."""
    for what, of in (("kind", _kind), ("rails", _rails)):
        counts = Counter(of(entry.value.fabrics[name]) for entry in entries)
        common, many = counts.most_common(1)[0]
        for entry in entries:
            mine = of(entry.value.fabrics[name])
            if mine == common:
                continue
            where = f"{many} of {len(entries)} nodes of pool {quoted(pool)}"
            message = (
                f"kind {mine}, where {where} have {common}"
                if what == "kind"
                else f"{mine} adapters, where {where} have {common}"
            )
            hint = "nodes that are unlike never share a replica on this fabric"
            yield _infeasible(repo, entry, ("fabrics", name), message, hint, warning=True)


def _kind(fabric: NodeFabric) -> str:
    return fabric.kind


def _rails(fabric: NodeFabric) -> int:
    return len(fabric.adapters)


def _infeasible(
    repo: Repo,
    entry: Entry,
    path: tuple[str | int, ...],
    message: str,
    hint: str,
    *,
    warning: bool = False,
) -> Finding:
    return repo.finding(entry, path, message, hint, reason=Reason.INFEASIBLE, warning=warning)
