"""What a profile or a placement would run, rank by rank, without asking any node.

For `reconcile command`: a pull request can show the command line that will run. A placement is
shown on nodes of the inventory that it allows; a bare profile on stand-ins (addresses of the
documentation range), since its commands are only complete with a place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import engines
from engines.base import Command, Health, RenderedFile, Shard
from engines.references import secret_names
from reconciler.core.changes import Seat
from reconciler.core.hosts import check_fabric, gpu_index, host_of
from reconciler.core.memberfile import file_at_start
from reconciler.core.model import (
    PER_NODE,
    Desired,
    GpuInventory,
    Management,
    Node,
    NodeState,
    Placement,
    ResolvedProfile,
)
from reconciler.core.request import launch_request, port_names

STAND_IN = "192.0.2."
"""TEST-NET-1 (RFC 5737): an address that no machine has."""


@dataclass(frozen=True)
class DescribedCommand:
    """One process, with the GPU indices that the node would set."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    env_files: dict[str, str]
    wait_for: str = ""
    """`host:port` that must accept a connection first; empty: starts at once."""


@dataclass(frozen=True)
class DescribedRank:
    """What one node would run."""

    rank: int
    node: str
    address: str
    gpus: tuple[str, ...]
    commands: tuple[DescribedCommand, ...]
    files: tuple[RenderedFile, ...] = ()
    secrets: tuple[str, ...] = ()
    """Names of the reconciler's own that would be sent along."""
    launch_dir: str = ""
    """A stand-in: the node's folder of records is not known here."""
    root: str = ""
    """The folder of records that the documents name; empty: the node's own."""
    ready: str = ""
    """How readiness is asked: a URL, or that all of its processes live."""
    stop: str = ""


@dataclass(frozen=True)
class Description:
    """All ranks of one replica, and the order in which their processes come up."""

    subject: str
    engine: str
    ports: dict[str, int]
    ranks: tuple[DescribedRank, ...]
    start_order: tuple[str, ...]


def describe(desired: Desired, name: str) -> Description:
    """The commands of a placement, or else of a profile, called `name`.

    Raises ValueError: there is neither, or it cannot be built (the text says why).
    """
    placement = desired.placements.get(name)
    if placement is None and name not in desired.profiles:
        known = ", ".join(sorted({*desired.placements, *desired.profiles})) or "none"
        raise ValueError(f"{name}: no placement and no profile has this name (there are: {known})")
    if placement is not None:
        resolved = desired.resolved(placement)
    else:
        profile = desired.profiles[name]
        resolved = ResolvedProfile(profile, desired.models[profile.model])
    nodes = _nodes(desired, placement, resolved)
    if not nodes:
        nodes = _stand_ins(resolved)
        placement = None
    shown = Desired(
        desired.revision, desired.fleet, {**desired.nodes, **{node.name: node for node in nodes}}
    )
    kind = "placement" if name in desired.placements else "profile"
    return _described(shown, placement, resolved, nodes, f"{kind} {name}")


# --- Where it is shown ------------------------------------------------------------------------


def _nodes(
    desired: Desired, placement: Placement | None, resolved: ResolvedProfile
) -> tuple[Node, ...]:
    """The first nodes, by name, that the placement allows; none where there are too few."""
    if placement is None:
        return ()
    profile = resolved.profile
    fits = [
        node
        for _, node in sorted(desired.nodes.items())
        if node.state is NodeState.ACTIVE
        and (not placement.pool or node.pool == placement.pool)
        and (not placement.nodes or node.name in placement.nodes)
        and placement.selector.items() <= node.labels.items()
        and (not placement.fabric or placement.fabric in node.fabrics)
        and node.gpus.count >= profile.gpus_per_node
    ]
    if placement.replicas == PER_NODE:
        fits = fits[:1]
    return tuple(fits[: profile.nodes]) if len(fits) >= profile.nodes else ()


def _stand_ins(resolved: ResolvedProfile) -> tuple[Node, ...]:
    profile = resolved.profile
    return tuple(
        Node(
            name=f"node-{rank}",
            address=f"{STAND_IN}{rank + 1}",
            pool="",
            gpus=GpuInventory(
                klass=profile.gpu_class, count=profile.gpus_per_node, source="declared"
            ),
            management=Management(),
        )
        for rank in range(profile.nodes)
    )


def _described(
    desired: Desired,
    placement: Placement | None,
    resolved: ResolvedProfile,
    nodes: Sequence[Node],
    subject: str,
) -> Description:
    profile = resolved.profile
    seats = [Seat(node.name, _gpus(node, profile.gpus_per_node)) for node in nodes]
    if placement is not None:
        check_fabric(desired, placement, seats)
    replica = f"{placement.name if placement else profile.name}-0"
    launch = f"{replica}-example"
    hosts = [host_of(desired, placement, resolved, seat, launch, None) for seat in seats]
    first = desired.fleet.ports.first
    ports = {name: first + n for n, name in enumerate(port_names(resolved))}
    files = file_at_start(placement) if placement else ()
    request = launch_request(desired, resolved, hosts, ports, replica, launch, files)
    engine = engines.get(profile.engine)
    shards, stop = engine.build(request), engine.stop
    ranks = tuple(
        DescribedRank(
            rank=shard.rank,
            node=host.node,
            address=host.http,
            gpus=tuple(gpu.uuid for gpu in host.gpus),
            commands=tuple(_command(command, node, seat) for command in shard.commands),
            files=shard.files,
            secrets=secret_names(request.profile, shard.rank),
            launch_dir=host.launch_dir,
            root=node.root or desired.fleet.root,
            ready=_ready(shard.health),
            stop=_stop(shard.stop_signal, profile.stop_grace_s, stop.leftovers),
        )
        for shard, host, node, seat in zip(shards, hosts, nodes, seats, strict=True)
    )
    return Description(subject, profile.engine, ports, ranks, tuple(_order(shards, nodes)))


def _gpus(node: Node, count: int) -> tuple[str, ...]:
    if node.gpus.source == "declared" and node.gpus.ids:
        return node.gpus.ids[:count]
    prefix = f"{node.name}-gpu-" if node.gpus.source == "declared" else "GPU-"
    return tuple(f"{prefix}{n}" for n in range(count))


def _command(command: Command, node: Node, seat: Seat) -> DescribedCommand:
    env = dict(command.env)
    indices = (
        gpu_index(node, seat.gpus).values()
        if node.gpus.source == "declared"
        else range(len(seat.gpus))
    )
    for name in command.gpu_env:
        env[name] = ",".join(str(index) for index in indices)
    wait = command.wait_for
    target = f"{wait.host} {wait.port}" if wait else ""
    return DescribedCommand(command.name, command.argv, env, dict(command.env_files), target)


def _stop(signal: str, grace_s: int, leftovers: Sequence[str]) -> str:
    text = f"{signal}, then KILL after {grace_s} s"
    return f"{text}; look for {', '.join(leftovers)}" if leftovers else text


def _ready(health: Health | None) -> str:
    if health is None:
        return "while all of its processes live (it serves no HTTP)"
    host = f"[{health.host}]" if ":" in health.host else health.host
    named = f", and /v1/models names {health.model}" if health.model else ""
    return f"GET http://{host}:{health.port}{health.path} answers 200{named}"


def _order(shards: Sequence[Shard], nodes: Sequence[Node]) -> Iterator[str]:
    for shard in shards:
        for command in shard.commands:
            wait = command.wait_for
            when = f"once {wait.host} accepts at port {wait.port}" if wait else "at once"
            yield f"rank {shard.rank} on {nodes[shard.rank].name}: {command.name}, {when}"
