"""Ray under vLLM: one cluster per replica, with exactly its nodes, GPUs, addresses and ports.

Facts are those of `ray start` of Ray 2.60.0. A shared Ray would offer other replicas' GPUs; `ray
stop` ends every Ray on a machine and is never called: the launch's process tree is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from engines.addresses import host_port
from engines.assemble import SERVE, command, port
from engines.base import Command, EngineProfile, LaunchRequest, WaitFor
from engines.programs import beside, program

GCS = "ray"
"""The head's port: workers and the server wait until it accepts."""

FIXED: Mapping[str, str] = {
    "ray-node-manager": "--node-manager-port",
    "ray-object-manager": "--object-manager-port",
    "ray-agent-http": "--dashboard-agent-listen-port",
    "ray-agent-grpc": "--dashboard-agent-grpc-port",
    "ray-runtime-env": "--runtime-env-agent-port",
    "ray-metrics": "--metrics-export-port",
}
"""Ports that Ray otherwise takes by chance, or by a default that two replicas would share."""

WORKER = "ray-worker-"


def workers(profile: EngineProfile) -> int:
    """How many worker processes a node may have: one a GPU, one idle a CPU (as many), and spare."""
    return 2 * max(1, profile.gpus_per_node) + 4


def port_names(profile: EngineProfile) -> list[str]:
    """All ports of one node's Ray."""
    return [GCS, *FIXED, *(f"{WORKER}{n}" for n in range(workers(profile)))]


def env(request: LaunchRequest) -> dict[str, str]:
    """What the server and the Ray processes need beside vLLM's own."""
    # Unset, the server joins whatever Ray it finds on the machine.
    return {"RAY_ADDRESS": host_port(request.hosts[0].address, port(request, GCS))}


def start(request: LaunchRequest, rank: int, environment: Mapping[str, str]) -> Command:
    """`ray start` of one rank: the head beside the server, or a worker's only process."""
    leader = request.hosts[0].address
    wait = WaitFor(leader, port(request, GCS)) if rank else None
    name = SERVE if rank else "ray"
    env = {k: v for k, v in environment.items() if k != "RAY_ADDRESS"}
    return command(request, rank, name, tuple(_argv(request, rank)), env, wait_for=wait)


def _argv(request: LaunchRequest, rank: int) -> Iterator[str]:
    profile, host = request.profile, request.hosts[rank]
    yield from (beside(program(profile, host, "vllm"), host, profile, "ray"), "start")
    gcs = port(request, GCS)
    if rank == 0:
        # A worker that is told about a dashboard refuses to start.
        yield from ("--head", f"--port={gcs}", "--include-dashboard=false")
    else:
        yield f"--address={host_port(request.hosts[0].address, gcs)}"
    yield f"--node-ip-address={host.address}"
    # Pinned: Ray offers every GPU and CPU that it sees, also those of other replicas.
    yield f"--num-gpus={len(host.gpus)}"
    yield f"--num-cpus={max(1, len(host.gpus))}"
    for name, flag in FIXED.items():
        yield f"{flag}={port(request, name)}"
    numbers = (str(port(request, f"{WORKER}{n}")) for n in range(workers(profile)))
    yield f"--worker-port-list={','.join(numbers)}"
    yield from ("--disable-usage-stats", f"--temp-dir={temp_dir(request, rank)}", "--block")


def temp_dir(request: LaunchRequest, rank: int) -> str:
    """Ray's folder: short, because it adds 64 characters and a unix socket's path holds 107."""
    return f"/tmp/ray-{hashlib.sha256(request.launch.encode()).hexdigest()[:12]}-{rank}"
