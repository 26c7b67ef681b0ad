"""The steps that every engine shares between its command line and a finished shard.

An engine says what is its own (argv, environment, who serves); sidecars, role arguments, rendered
files, health and the container are put around it here, the same way for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engines import container
from engines.base import (
    Command,
    EngineProfile,
    Health,
    LaunchRequest,
    Shard,
    Stop,
    WaitFor,
)
from engines.environment import gpu_env, layered, visible
from engines.references import References, references

HTTP = "http"
"""Name of the port at which clients come."""

SERVE = "serve"
"""Name of the command whose exit is the shard's exit, where it is the engine itself."""


def role_args(request: LaunchRequest, rank: int, refs: References) -> tuple[str, ...]:
    """The profile's args, then the role's, untouched and in order but for references."""
    role = request.profile.leader if rank == 0 else request.profile.worker
    return refs.all(request.profile.args) + refs.all(role.args)


def command(
    request: LaunchRequest,
    rank: int,
    name: str,
    argv: Sequence[str],
    *layers: Mapping[str, str],
    wait_for: WaitFor | None = None,
) -> Command:
    """One process of the engine on `rank`, with its environment layered as DESIGN says."""
    refs = references(request, rank)
    host = request.hosts[rank]
    env = layered(request, rank, refs, gpu_env(host), *layers)
    return Command(name, tuple(argv), env, wait_for, visible(host), request.profile.secrets)


def shard(
    request: LaunchRequest,
    rank: int,
    commands: Sequence[Command],
    *,
    serves: bool,
    stop: Stop,
    health_path: str = "/health",
    check_model: bool = True,
    loads_model: bool = True,
) -> Shard:
    """A finished shard: sidecars first, files, health where it serves, the container around it."""
    refs = references(request, rank)
    made = Shard(
        rank=rank,
        commands=(*_sidecars(request, rank, refs), *commands),
        health=_health(request, rank, health_path, check_model) if serves else None,
        files=refs.files(request.profile.files),
        stop_signal=stop.signal,
        loads_model=loads_model,
    )
    if request.profile.runtime.kind == "container":
        return container.around(request, made)
    return made


def port(request: LaunchRequest, name: str) -> int:
    """A port of the launch's block. ValueError where the block lacks it."""
    if name not in request.ports:
        have = ", ".join(request.ports) or "none"
        raise ValueError(f"launch {request.launch}: needs a port {name}, its block has {have}")
    return request.ports[name]


def listens(request: LaunchRequest) -> int:
    """The port at which the engine itself listens: `http`, unless a sidecar in front of it has
    that."""
    return port(request, request.profile.listens or HTTP)


def check_request(request: LaunchRequest, *, mixes_gpus: bool) -> None:
    """What must hold of the hosts before any command is built. Raises ValueError."""
    profile = request.profile
    if len(request.hosts) != profile.nodes:
        raise ValueError(
            f"launch {request.launch}: profile {profile.name} runs on {profile.nodes} nodes, "
            f"{len(request.hosts)} were given"
        )
    for host in request.hosts:
        if len(host.gpus) != profile.gpus_per_node:
            raise ValueError(
                f"node {host.node}: {len(host.gpus)} GPUs were given, profile {profile.name} "
                f"takes {profile.gpus_per_node}"
            )
    if len(set(request.ports.values())) != len(request.ports):
        raise ValueError(f"launch {request.launch}: a port is in its block twice: {request.ports}")
    classes = sorted({gpu.klass for host in request.hosts for gpu in host.gpus if gpu.klass})
    if len(classes) > 1 and not mixes_gpus:
        raise ValueError(
            f"launch {request.launch}: GPUs of {len(classes)} types ({', '.join(classes)}); "
            f"engine {profile.engine} needs one type"
        )


def _sidecars(request: LaunchRequest, rank: int, refs: References) -> tuple[Command, ...]:
    role = "leader" if rank == 0 else "workers"
    made = []
    for sidecar in request.profile.sidecars:
        if sidecar.ranks in ("all", role):
            host = request.hosts[rank]
            env = layered(request, rank, refs, gpu_env(host)) | refs.env(sidecar.env)
            argv, secrets = refs.all(sidecar.argv), request.profile.secrets
            made.append(Command(sidecar.name, argv, env, None, visible(host), secrets))
    return tuple(made)


def _health(request: LaunchRequest, rank: int, path: str, check_model: bool) -> Health:
    profile = request.profile
    engines = profile.listens or HTTP
    own = profile.health_port in ("", engines)
    names = profile.served_names if check_model and own and not _guarded(profile) else ()
    return Health(
        port=port(request, profile.health_port or engines),
        path=profile.health_path or path,
        host=request.hosts[rank].http,
        model=next(iter(names), ""),
    )


def _guarded(profile: EngineProfile) -> bool:
    """Whether `/v1/models` asks for a key that the node's probe does not have."""
    keys = ("VLLM_API_KEY", "LLAMA_API_KEY", "SGLANG_API_KEY")
    envs = (profile.env, profile.secrets, profile.leader.env, profile.worker.env)
    flags = ("--api-key", "--api-key-file", "--api-prefix")
    args = (*profile.args, *profile.leader.args, *profile.worker.args)
    return any(k in env for k in keys for env in envs) or any(
        arg.split("=", 1)[0].replace("_", "-") in flags for arg in args
    )
