"""What an engine is asked: a profile with its model, as the engine's own types.

Apart from `build.py`, which renders what a node is told, and `describe.py`, which shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import engines
from engines.base import EngineProfile, Host, LaunchRequest, RenderedFile
from engines.references import nodes_named, texts
from reconciler.core.model import Desired, Node, ResolvedProfile


def engine_profile(resolved: ResolvedProfile) -> EngineProfile:
    """What an engine looks at, out of a profile and its model."""
    profile, model = resolved.profile, resolved.model
    return EngineProfile(
        name=profile.name,
        engine=profile.engine,
        executor=profile.executor,
        parallel=profile.parallel,
        gpus_per_node=profile.gpus_per_node,
        nodes=profile.nodes,
        args=profile.args,
        env=profile.env,
        secrets=profile.secrets,
        runtime=profile.runtime,
        leader=profile.leader,
        worker=profile.worker,
        sidecars=profile.sidecars,
        files=profile.files,
        command=profile.command,
        ports=profile.ports,
        listens=profile.listens,
        serves=profile.serves,
        health_path=profile.health.path,
        health_port=profile.health.port,
        served_names=model.served_names or (model.name,),
        nofile=profile.needs.nofile,
        memlock=profile.needs.memlock,
        start_timeout_s=profile.start_timeout_s,
        stop_grace_s=profile.stop_grace_s,
        model_attention_heads=model.facts.attention_heads,
        model_experts=model.facts.experts,
    )


def port_names(resolved: ResolvedProfile) -> tuple[str, ...]:
    """Names of the ports of one launch's block, `http` first."""
    return engines.get(resolved.profile.engine).port_names(engine_profile(resolved))


def allowed_gpus_mixed(resolved: ResolvedProfile) -> bool:
    """Whether GPUs of different types may serve one replica."""
    return engines.get(resolved.profile.engine).mixes_gpus


def launch_request(
    desired: Desired,
    resolved: ResolvedProfile,
    hosts: Sequence[Host],
    ports: Mapping[str, int],
    replica: str,
    launch: str,
    files: tuple[RenderedFile, ...] = (),
) -> LaunchRequest:
    """What the engine is asked; `files` come on top of the profile's."""
    profile = engine_profile(resolved)
    named = {name for name in nodes_named(texts(profile)) if name in desired.nodes}
    if files:
        profile = replace(profile, files=(*profile.files, *files))
    return LaunchRequest(
        launch=launch,
        replica=replica,
        profile=profile,
        hosts=tuple(hosts),
        ports=dict(ports),
        labels={"reconcile.fleet": desired.fleet.id, "reconcile.replica": replica},
        addresses={name: _address(desired.nodes[name]) for name in named},
    )


def _address(node: Node) -> str:
    return node.management.address or node.address
