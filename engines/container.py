"""The same command inside docker or podman: one pure step around the last command of a shard.

The container is named after the launch and carries its labels, so it is found, adopted and stopped
without the process that started it. There is no `--rm`: exit code, out-of-memory mark and last log
lines are read before it is removed. Sidecars run on the node itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from engines.base import Command, Container, EngineProfile, Host, LaunchRequest, Shard
from engines.environment import RDMA_KINDS
from engines.references import secret_names
from engines.secretref import FOLDER

MARK = "RECONCILE_MARK"
"""What the node finds a launch's processes by. Inside too: a GPU held by a process without it is
held by a stranger, and the launch could never be replaced there."""

NVML_UUIDS = ("GPU-", "MIG-")
"""How NVML's ids begin; a declared accelerator has another name and no NVIDIA runtime."""


PART = re.compile(r"-0*1-of-[0-9]+\.gguf$")
SNAPSHOT = re.compile(r"^(.*/models--[^/]+)/snapshots/.*$")


def around(request: LaunchRequest, shard: Shard) -> Shard:
    """`shard` with its last command inside a container."""
    *sidecars, inner = shard.commands
    host = request.hosts[shard.rank]
    # Inside, the launch's GPUs are all there is, numbered from 0: no indices from the node. A
    # declared accelerator comes with a device that shows all of them, so there the indices hold.
    kept = inner.gpu_env if host.gpus and not _uuids(host) else ()
    outer = replace(inner, gpu_env=kept)
    outer = replace(outer, argv=tuple(_argv(request, host, shard, outer)))
    tool = request.profile.runtime.tool
    return replace(shard, commands=(*sidecars, outer), container=Container(tool, request.launch))


def _argv(request: LaunchRequest, host: Host, shard: Shard, inner: Command) -> Iterator[str]:
    runtime = request.profile.runtime
    yield from (runtime.tool, "run", "--name", request.launch)
    labels = {**request.labels, "reconcile.launch": request.launch}
    for name in sorted(labels):
        yield from ("--label", f"{name}={labels[name]}")
    # Ranks talk over the node's own interfaces; NCCL and the workers share /dev/shm (64 MB in a
    # container of its own is too little).
    yield from ("--network", "host", "--ipc", "host")
    yield from _gpus(runtime.tool, host)
    yield from _rdma(host)
    yield from _limits(request.profile, host)
    yield from _mounts(request, host, shard)
    yield from runtime.options
    yield from ("--stop-signal", shard.stop_signal)
    yield from ("--stop-timeout", str(request.profile.stop_grace_s))
    # By name only: the value comes from this process' environment and never stands in argv.
    for name in sorted({*inner.env, *inner.env_files, *inner.gpu_env, MARK}):
        yield from ("--env", name)
    yield from ("--entrypoint", inner.argv[0], runtime.image, *inner.argv[1:])


def _uuids(host: Host) -> list[str]:
    return [gpu.uuid for gpu in host.gpus if gpu.uuid.startswith(NVML_UUIDS)]


def _gpus(tool: str, host: Host) -> Iterator[str]:
    uuids = _uuids(host)
    if not uuids:
        return
    if tool == "docker":
        # docker reads the value as CSV: without the inner quotes the second UUID is another field.
        yield from ("--gpus", f'"device={",".join(uuids)}"')
        return
    for uuid in uuids:
        yield from ("--device", f"nvidia.com/gpu={uuid}")


def _rdma(host: Host) -> Iterator[str]:
    if _speaks_rdma(host):
        # Verbs pin memory: without both this and the limit below, registration fails and NCCL
        # falls back to TCP on one rank.
        yield from ("--device", "/dev/infiniband", "--cap-add", "IPC_LOCK")


def _speaks_rdma(host: Host) -> bool:
    return bool(host.fabric and host.fabric.kind in RDMA_KINDS and host.fabric.adapters)


def _limits(profile: EngineProfile, host: Host) -> Iterator[str]:
    """A container has its runtime's limits, not those of the process that asked for it. Shared
    memory is the node's own (`--ipc host`), so its size is checked there and set nowhere."""
    if _speaks_rdma(host) or profile.memlock == "unlimited":
        yield from ("--ulimit", "memlock=-1:-1")
    elif profile.memlock:
        lock = int(profile.memlock) * 1024
        yield from ("--ulimit", f"memlock={lock}:{lock}")
    if profile.nofile:
        yield from ("--ulimit", f"nofile={profile.nofile}:{profile.nofile}")


def _mounts(request: LaunchRequest, host: Host, shard: Shard) -> Iterator[str]:
    own = [tuple(mount.split(":")) for mount in request.profile.runtime.mounts]
    # Two mounts at one target are an error of docker's: the profile's own wins.
    taken = {target for _, target, *_ in own}
    for path in _read_only(request, host, shard):
        if path not in taken:
            yield from _mount(path, path, readonly=True)
    for source, target, *mode in own:
        yield from _mount(source, target, readonly=mode == ["ro"])


def _read_only(request: LaunchRequest, host: Host, shard: Shard) -> Iterator[str]:
    """What a rank reads of its node, each at its own path; nothing that lies inside another."""
    if host.model_path and shard.loads_model:
        weights = whole(host.model_path)
        yield weights
        yield from (f for f in host.model_files if not f.startswith(f"{weights}/"))
    if shard.files:
        yield f"{host.launch_dir}/files"
    if secret_names(request.profile, shard.rank):
        yield f"{host.launch_dir}/{FOLDER}"
    if request.profile.engine == "sim":
        yield host.agent


def whole(path: str) -> str:
    """The folder that holds all of a model, where its path alone does not.

    llama.cpp is given the first of several parts and finds the others beside it; a snapshot in
    Hugging Face's cache is a folder of links into its model's `blobs`.
    """
    if PART.search(path):
        return path.rpartition("/")[0]
    return SNAPSHOT.sub(r"\1", path)


def _mount(source: str, target: str, *, readonly: bool) -> Iterator[str]:
    for path in (source, target):
        if "," in path:
            raise ValueError(f"path {path}: a comma cannot stand in a container's mount")
    # --mount, not --volume: a source that is absent is an error, not a new empty folder.
    yield "--mount"
    yield f"type=bind,source={source},target={target}" + (",readonly" if readonly else "")
