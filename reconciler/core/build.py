"""From a profile and its seats to what each node is told to run: spec.json of every rank.

The engines say what to exec; this adds what the node must know beside it (places, GPUs, paths to
look for, limits in time). The same arguments always give the same specs. What cannot be built is
a ValueError whose text says why: the plan shows it as a Hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import engines
from engines import (
    adapters,
    capability,
    env_checks,
    references,
    runtime_checks,
    secretref,
    serving,
    vllm_profile,
)
from engines.assemble import HTTP
from engines.base import Command, Host, LaunchRequest, Problem, Shard
from reconciler.core import rails
from reconciler.core.changes import Seat, ShardSpec
from reconciler.core.codec import to_json
from reconciler.core.describe import Description, describe
from reconciler.core.hosts import DECLARED, check_fabric, gpu_index, host_of, required_paths
from reconciler.core.memberfile import file_at_start
from reconciler.core.model import Desired, Placement, ResolvedProfile
from reconciler.core.observed import FORMAT, Labels, NodeAnswer
from reconciler.core.request import (
    allowed_gpus_mixed,
    engine_profile,
    launch_request,
    port_names,
)
from reconciler.core.shelltext import shell

__all__ = [
    "Description",
    "allowed_gpus_mixed",
    "build_specs",
    "check_capability",
    "check_profile",
    "describe",
    "engine_profile",
    "port_names",
    "profile_json",
    "shell",
]


def check_profile(resolved: ResolvedProfile, *, allow_loader_env: bool) -> list[Problem]:
    """All findings about a profile that need no node; an unknown engine is the only one then."""
    profile = engine_profile(resolved)
    try:
        engine = engines.get(profile.engine)
    except engines.UnknownEngine as error:
        return [Problem("engine", str(error), "an engine may also come from another package")]
    problems = engine.check(profile)
    if engine.loads_weights and not (resolved.model.path or resolved.model.paths):
        hint = "give the model a path on the nodes"
        problems.append(
            Problem(
                "model", f"model {resolved.model.name} has no path, {engine.name} loads it", hint
            )
        )
    model = resolved.model
    problems += runtime_checks.outside(profile, {model.path, *model.paths.values()}, model.files)
    if not allow_loader_env:
        problems += env_checks.check_loader_env(profile)
    if profile.stop_grace_s < engine.stop.least_grace_s:
        holds = "still gives its GPUs back" if profile.gpus_per_node else "still ends by itself"
        problems.append(
            Problem(
                "stop_grace_s",
                f"{profile.stop_grace_s} s is too short for {engine.name}, which takes up to "
                f"{engine.stop.least_grace_s} s to end",
                f"it would be killed while it {holds}",
                warning=True,
            )
        )
    return problems


def check_capability(resolved: ResolvedProfile, gpu_capability: str) -> list[Problem]:
    """Whether GPUs of this compute capability (`9.0`) can run the profile's quantization.

    What cannot be read lets it through. For validation against the inventory, before any node is
    asked.
    """
    profile = engine_profile(resolved)
    if profile.engine != "vllm":
        return []
    quantization = vllm_profile.quantization(profile)
    why = capability.refusal(quantization, capability.parse(gpu_capability))
    return [Problem("args", why, "choose another quantization or GPU class")] if why else []


def build_specs(
    *,
    desired: Desired,
    placement: Placement,
    resolved: ResolvedProfile,
    seats: Sequence[Seat],
    ports: Mapping[str, int],
    replica: str,
    ordinal: int,
    launch: str,
    seq: int,
    fingerprint: str,
    answers: Mapping[str, NodeAnswer],
    profile: Mapping[str, Any] | None = None,
) -> tuple[ShardSpec, ...]:
    """spec.json of every rank, in rank order (docs/agent-protocol.md).

    `profile`: `resolved` as JSON, where the caller has it at hand.

    Raises ValueError, with the node and the values, where the launch cannot be built.
    """
    for seat in seats:
        if seat.node not in answers:
            raise ValueError(f"node {seat.node}: gave no answer, so nothing can be built for it")
    check_fabric(desired, placement, seats)
    hosts = [
        host_of(desired, placement, resolved, seat, launch, answers[seat.node]) for seat in seats
    ]
    files = file_at_start(placement)
    request = launch_request(desired, resolved, hosts, ports, replica, launch, files)
    _check_interfaces(request, answers)
    _check_rails(desired, placement, seats, answers)
    shards = engines.get(resolved.profile.engine).build(request)
    _check_adapters_named(request, shards, desired)
    places = [
        {
            "rank": rank,
            "node": seat.node,
            "machine_id": answers[seat.node].machine_id,
            "gpus": list(seat.gpus),
            "ports": dict(ports),
            "address": hosts[rank].http,
            "fabric": placement.fabric,
        }
        for rank, seat in enumerate(seats)
    ]
    labels = Labels(
        placement=placement.name,
        ordinal=ordinal,
        replica=replica,
        labels=dict(placement.labels),
        owner=placement.owner,
        revision=desired.revision.recorded,
        unhealthy_after_s=desired.fleet.unhealthy_after_s,
    )
    whole = {
        "format": FORMAT,
        "fleet": desired.fleet.id,
        "launch": launch,
        "replica": replica,
        "seq": seq,
        "places": places,
        "restart": placement.restart,
        "fingerprint": fingerprint,
        "profile": profile_json(resolved) if profile is None else profile,
    }
    drain = _drain(resolved, hosts, shards, ports)
    return tuple(
        ShardSpec(
            host.node,
            {
                **whole,
                **_own(desired, resolved, host, shard),
                "network": _network(host, hosts[0], ports),
                **drain,
            },
            labels,
        )
        for host, shard in zip(hosts, shards, strict=True)
    )


def profile_json(resolved: ResolvedProfile) -> dict[str, Any]:
    """A profile with its model as spec.json and the records have it."""
    written: dict[str, Any] = to_json(resolved, compact=True)
    return written


# --- One rank's own part ----------------------------------------------------------------------


def _own(desired: Desired, resolved: ResolvedProfile, host: Host, shard: Shard) -> dict[str, Any]:
    node, profile = desired.nodes[host.node], resolved.profile
    gpus = [gpu.uuid for gpu in host.gpus]
    declared = node.gpus.source == DECLARED
    secrets = references.secret_names(engine_profile(resolved), shard.rank)
    return {
        **({"secrets": list(secrets)} if secrets else {}),
        "rank": shard.rank,
        "mode": node.mode or desired.fleet.mode,
        "gpu_source": node.gpus.source,
        "gpu_index": gpu_index(node, gpus) if declared else {},
        "address": host.http,
        "commands": [command_json(command, host.launch_dir) for command in shard.commands],
        "files": [{"path": file.path, "content": file.content} for file in shard.files],
        "container": to_json(shard.container),
        "health": to_json(shard.health),
        "require_paths": required_paths(resolved.model, node.pool) if shard.loads_model else [],
        "needs": to_json(profile.needs, compact=True),
        "engine_version": profile.engine_version,
        "start_timeout_s": profile.start_timeout_s,
        "stop_grace_s": profile.stop_grace_s,
        "drain_s": profile.drain_s,
        "stop_signal": shard.stop_signal,
    }


def _network(host: Host, leader: Host, ports: Mapping[str, int]) -> dict[str, Any]:
    """What the node looks for before a start: where ranks meet, and the fabric's adapters."""
    meeting = sorted(port for name, port in ports.items() if name != "http") or sorted(
        ports.values()
    )
    adapters = host.fabric.adapters if host.fabric else ()
    return {
        "interface": host.interface,
        "leader": {"host": leader.address, "ports": meeting},
        "adapters": [{"name": adapter.name, "port": adapter.port} for adapter in adapters],
    }


def _drain(
    resolved: ResolvedProfile,
    hosts: Sequence[Host],
    shards: Sequence[Shard],
    ports: Mapping[str, int],
) -> dict[str, Any]:
    """Where every rank asks for requests in flight before it ends: at all ranks that serve.

    A worker that ended at once would end the leader's requests with it.
    """
    told = serving.in_flight(resolved.profile.engine)
    listens = resolved.profile.listens or HTTP
    if told is None or listens not in ports:
        return {"drain": None}
    at = [
        {"host": host.http, "port": ports[listens]}
        for host, shard in zip(hosts, shards, strict=True)
        if shard.health is not None
    ]
    return {"drain": {**to_json(told), "at": at}}


def command_json(command: Command, launch_dir: str) -> dict[str, Any]:
    """A command as spec.json has it."""
    return {
        "name": command.name,
        "argv": list(command.argv),
        "env": dict(command.env),
        "wait_for": to_json(command.wait_for),
        "gpu_env": list(command.gpu_env),
        "env_files": secretref.on_node(command.env_files, launch_dir),
    }


# --- What a profile's own variables name must exist on the node -------------------------------


def _check_interfaces(request: LaunchRequest, answers: Mapping[str, NodeAnswer]) -> None:
    """An interface named for all nodes fails on one of them, after minutes."""
    for host in request.hosts:
        have = {interface.name for interface in answers[host.node].network.interfaces}
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            value = request.profile.env.get(name, "")
            if not have or not value or value[0] == "^" or "$(" in value:
                continue
            exact = name.startswith("GLOO") or value[0] == "="
            for wanted in value.lstrip("=").split(","):
                if not any(n == wanted or (not exact and n.startswith(wanted)) for n in have):
                    raise ValueError(
                        f"node {host.node}: env {name}={value}, but it has no interface {wanted} "
                        f"(it has {', '.join(sorted(have))}); $(bootstrap.interface) is each "
                        "node's own"
                    )


def _check_rails(
    desired: Desired,
    placement: Placement,
    seats: Sequence[Seat],
    answers: Mapping[str, NodeAnswer],
) -> None:
    """An adapter of another link in the list dies inside the first collective, on every rank."""
    for seat in seats if placement.fabric else ():
        node = desired.nodes[seat.node]
        if placement.fabric in node.fabrics:
            for found in rails.misplaced(node, answers[seat.node], placement.fabric):
                raise ValueError(f"node {seat.node}: {found}")


def _check_adapters_named(
    request: LaunchRequest, shards: Sequence[Shard], desired: Desired
) -> None:
    """No command may name an adapter that the inventory knows of another fabric (safety rule 6)."""
    engine = request.profile.engine
    for host, shard in zip(request.hosts, shards, strict=True):
        said = [pair for c in shard.commands for pair in adapters.named(engine, c.env, c.argv)]
        if not said:
            continue
        own = {(a.name, a.port) for a in host.fabric.adapters} if host.fabric else set()
        others = {
            (adapter.name, adapter.port): name
            for name, fabric in desired.nodes[host.node].fabrics.items()
            for adapter in fabric.adapters
            if (adapter.name, adapter.port) not in own
        }
        for what, value in said if others else ():
            for name, port in adapters.taken(what, value, others):
                raise ValueError(
                    f"node {host.node}: {what}={value} takes {name}:{port} of fabric "
                    f"{others[name, port]}, the placement's is "
                    f"{host.fabric.name if host.fabric else 'none'}; leave it out, or name "
                    "this fabric's adapters exactly (`=mlx5_1:1`)"
                )
