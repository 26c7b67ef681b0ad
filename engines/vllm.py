"""vLLM: one node, many nodes by its own launcher or by Ray, and data parallelism in three ways.

Facts are those of vLLM 0.32.0 (`engines/tables/vllm.py`); older ones lack `--nnodes` and exit at
once, so a profile should name `engine_version`. Ray's part is in `vllm_ray.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engines import checks, env_checks, exits, flags, vllm_ray
from engines.assemble import SERVE, check_request, command, listens, port, role_args, shard
from engines.base import (
    Command,
    EngineProfile,
    FailureKind,
    InFlight,
    LaunchRequest,
    Parallelism,
    Problem,
    Shard,
    Stop,
    WaitFor,
)
from engines.capability import check_quantization
from engines.environment import collective_env
from engines.programs import program
from engines.references import references
from engines.vllm_profile import (
    bootstraps_kv,
    check_modes,
    dp_local,
    quantization,
    transfers_kv,
    world,
)

RESERVED: Mapping[str, str] = {
    "--model": "the model's path",
    "--served-model-name": "the model's served_names",
    "--host": "the node's own address",
    "--port": "a port of the launch",
    "--uds": "the launch serves on its port",
    "--headless": "by rank",
    "--grpc": "the launch serves HTTP",
    "--ssl-keyfile": checks.TLS,
    "--ssl-certfile": checks.TLS,
    "--config": "a file could set what the reconciler owns",
    "--tensor-parallel-size": "parallel.tp",
    "--pipeline-parallel-size": "parallel.pp",
    "--decode-context-parallel-size": "parallel.dcp",
    "--prefill-context-parallel-size": "parallel.pcp",
    "--enable-expert-parallel": "parallel.ep",
    "--data-parallel-size": "parallel.dp",
    "--data-parallel-size-local": "parallel.dp_local",
    "--data-parallel-rank": "by rank",
    "--data-parallel-start-rank": "by rank",
    "--data-parallel-address": "the leader's address",
    "--data-parallel-rpc-port": "a port of the launch",
    "--data-parallel-backend": "executor",
    "--data-parallel-hybrid-lb": "parallel.dp_balancing",
    "--data-parallel-external-lb": "parallel.dp_balancing",
    "--data-parallel-multi-port-external-lb": "parallel.dp_balancing",
    "--data-parallel-supervisor-port": "a port of the launch",
    "--distributed-executor-backend": "executor",
    "--nnodes": "nodes",
    "--node-rank": "by rank",
    "--master-addr": "the leader's address",
    "--master-port": "a port of the launch",
    "--device-ids": "the GPUs that the launch was given",
    "--api-key": "on a command line every user of the node can read it; set VLLM_API_KEY",
    "--hf-token": "on a command line every user of the node can read it; set HF_TOKEN",
}

RESERVED_ENV: Mapping[str, str] = {
    "VLLM_HOST_IP": "this node's own address",
    "VLLM_DP_RANK": "by rank",
    "VLLM_DP_SIZE": "parallel.dp",
    "RAY_ADDRESS": "the launch's own Ray",
}

HTTP, MASTER, DP_RPC, SUPERVISOR, SIDE_CHANNEL = "http", "master", "dp-rpc", "dp-supervisor", "kv"
KV_BOOTSTRAP = "kv-bootstrap"


class Vllm:
    """See the module's docstring."""

    name = "vllm"
    mixes_gpus = False
    loads_weights = True
    stop = Stop(
        signal="TERM",
        least_grace_s=10,
        leftovers=("VLLM::EngineCore", "VLLM::Worker", "VLLM::DPCoordinator"),
    )
    in_flight: InFlight | None = InFlight(
        ("vllm:num_requests_running", "vllm:num_requests_waiting")
    )
    one_name = False

    def gpu_count(self, profile: EngineProfile) -> tuple[int, str] | None:
        """tp × pp × dp × pcp; dcp divides tp and adds none. On CPUs (no GPUs) ranks are sockets."""
        p = profile.parallel
        if not profile.gpus_per_node:
            return None
        pcp = f" × pcp {p.pcp}" if p.pcp > 1 else ""
        return world(p), f"tp {p.tp} × pp {p.pp} × dp {p.dp}{pcp}"

    def port_names(self, profile: EngineProfile) -> tuple[str, ...]:
        """Every port that vLLM would otherwise choose by itself."""
        names = [HTTP, MASTER]
        if profile.parallel.dp > 1:
            names += [DP_RPC, SUPERVISOR]
        if profile.executor == "ray":
            names += vllm_ray.port_names(profile)
        if transfers_kv(profile):
            # Each data-parallel rank of a node listens at the first one plus its own number.
            extra = range(1, dp_local(profile))
            names += [SIDE_CHANNEL, *(f"{SIDE_CHANNEL}-{n}" for n in extra)]
        if bootstraps_kv(profile):
            names.append(KV_BOOTSTRAP)
        return (*names, *profile.ports)

    def check(self, profile: EngineProfile) -> list[Problem]:
        """Findings that need no node."""
        table = flags.table("vllm")
        return [
            *checks.positive(profile),
            *checks.unused_parallelism(
                profile, "vLLM", "tp", "pp", "dp", "dp_local", "ep", "dcp", "pcp", "dp_balancing"
            ),
            *checks.check_shape(profile, self.port_names(profile), self.gpu_count(profile)),
            *checks.check_heads(profile),
            *checks.check_args(table, RESERVED, profile),
            *env_checks.check_env(profile, RESERVED_ENV),
            *check_modes(profile),
        ]

    def build(self, request: LaunchRequest) -> tuple[Shard, ...]:
        """One shard per host."""
        check_request(request, mixes_gpus=self.mixes_gpus)
        check_quantization(request, quantization(request.profile))
        if request.profile.executor == "ray":
            return tuple(self._ray(request, rank) for rank in range(len(request.hosts)))
        return tuple(self._mp(request, rank) for rank in range(len(request.hosts)))

    def classify_exit(self, code: int | None, log_tail: tuple[str, ...]) -> FailureKind:
        """argparse ends with 2; the rest is told apart by the log."""
        return exits.classify(exits.VLLM, code, log_tail)

    def _mp(self, request: LaunchRequest, rank: int) -> Shard:
        serves = rank == 0 or request.profile.parallel.dp_balancing != "internal"
        serve = _serve(request, rank, tuple(_launcher(request, rank, serves)))
        return shard(request, rank, [serve], serves=serves, stop=self.stop)

    def _ray(self, request: LaunchRequest, rank: int) -> Shard:
        env = _env(request, rank)
        join = vllm_ray.start(request, rank, env)
        if rank > 0:
            return shard(request, rank, [join], serves=False, stop=self.stop)
        head = WaitFor(request.hosts[0].address, port(request, vllm_ray.GCS))
        serve = _serve(request, rank, tuple(_ray_launcher(request)), wait_for=head)
        return shard(request, rank, [join, serve], serves=True, stop=self.stop)


# --- Command lines ----------------------------------------------------------------------------


def _serve(
    request: LaunchRequest, rank: int, launcher: tuple[str, ...], wait_for: WaitFor | None = None
) -> Command:
    profile, host = request.profile, request.hosts[rank]
    argv = [program(profile, host, "vllm"), "serve", host.model_path]
    if profile.served_names:
        argv += ["--served-model-name", *profile.served_names]
    argv += ["--host", host.http, "--port", str(listens(request))]
    argv += [*_parallel(profile.parallel), *launcher]
    argv += role_args(request, rank, references(request, rank))
    return command(request, rank, SERVE, argv, _env(request, rank), wait_for=wait_for)


def _parallel(p: Parallelism) -> Iterator[str]:
    yield from ("--tensor-parallel-size", str(p.tp))
    if p.pp > 1:
        yield from ("--pipeline-parallel-size", str(p.pp))
    if p.dcp > 1:
        yield from ("--decode-context-parallel-size", str(p.dcp))
    if p.pcp > 1:
        yield from ("--prefill-context-parallel-size", str(p.pcp))
    if p.dp > 1:
        yield from ("--data-parallel-size", str(p.dp))
    if p.ep:
        yield "--enable-expert-parallel"


def _launcher(request: LaunchRequest, rank: int, serves: bool) -> Iterator[str]:
    """How the ranks of vLLM's own launcher find each other."""
    profile, leader = request.profile, request.hosts[0].address
    if world(profile.parallel) <= 1 and profile.nodes == 1:
        return
    yield from ("--distributed-executor-backend", "mp")
    yield from ("--master-port", str(port(request, MASTER)))
    if profile.parallel.dp > 1:
        yield from _data_parallel(request, rank)
    elif profile.nodes > 1:
        yield from ("--nnodes", str(profile.nodes), "--node-rank", str(rank))
        yield from ("--master-addr", leader)
    if not serves:
        yield "--headless"


def _data_parallel(request: LaunchRequest, rank: int) -> Iterator[str]:
    profile, local = request.profile, dp_local(request.profile)
    yield from ("--data-parallel-rpc-port", str(port(request, DP_RPC)))
    yield from ("--data-parallel-supervisor-port", str(port(request, SUPERVISOR)))
    if profile.nodes == 1:
        return
    yield from ("--data-parallel-address", request.hosts[0].address)
    if profile.parallel.dp_balancing == "external":
        yield from ("--data-parallel-external-lb", "--data-parallel-rank", str(rank))
        return
    hybrid = profile.parallel.dp_balancing == "hybrid"
    yield from ("--data-parallel-size-local", str(local))
    if rank or hybrid:
        # On the rank that serves for all, a 0 too would read as hybrid: with front-end processes
        # for its own engines alone.
        yield from ("--data-parallel-start-rank", str(rank * local))
    if hybrid:
        yield "--data-parallel-hybrid-lb"


def _ray_launcher(request: LaunchRequest) -> Iterator[str]:
    profile = request.profile
    yield from ("--distributed-executor-backend", "ray")
    yield from ("--master-port", str(port(request, MASTER)))
    if profile.parallel.dp > 1:
        yield from ("--data-parallel-backend", "ray")
        yield from ("--data-parallel-size-local", str(dp_local(profile)))
        yield from ("--data-parallel-address", request.hosts[0].address)
        yield from ("--data-parallel-rpc-port", str(port(request, DP_RPC)))


def _env(request: LaunchRequest, rank: int) -> dict[str, str]:
    host, profile = request.hosts[rank], request.profile
    env = {
        # Unset, vLLM takes the default route's address: ranks wait for each other for ever.
        "VLLM_HOST_IP": host.address,
        # vLLM's own limit of 600 s ends a large model that the profile gives longer.
        "VLLM_ENGINE_READY_TIMEOUT_S": str(profile.start_timeout_s),
        # Unset, every start tells its hardware to vLLM's authors.
        "VLLM_NO_USAGE_STATS": "1",
    }
    if transfers_kv(profile):
        # NIXL binds this: the leader's address cannot be assigned on any other node.
        env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = host.address
        env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(port(request, SIDE_CHANNEL))
    if bootstraps_kv(profile):
        # Unset it is 8998 for all: the second replica on a node fails, or answers for the first.
        env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] = str(port(request, KV_BOOTSTRAP))
    if profile.executor == "ray":
        env |= vllm_ray.env(request)
    return {**env, **collective_env(host)}
