"""SGLang: one node or many by its own launcher; dp-attention; prefill and decode roles.

Facts are those of SGLang 0.5.23 (`engines/tables/sglang.py`). Only rank 0 serves HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engines import checks, env_checks, exits, flags, sglang_moe
from engines.addresses import host_port
from engines.assemble import SERVE, check_request, command, listens, port, role_args, shard
from engines.base import (
    EngineProfile,
    FailureKind,
    Host,
    InFlight,
    LaunchRequest,
    Problem,
    Shard,
    Stop,
)
from engines.environment import RDMA_KINDS, collective_env
from engines.programs import program
from engines.references import references

RESERVED: Mapping[str, str] = {
    "--model-path": "the model's path",
    "--served-model-name": "the model's served_names",
    "--host": "the node's own address",
    "--port": "a port of the launch",
    "--config": "a file could set what the reconciler owns",
    "--tp-size": "parallel.tp",
    "--pp-size": "parallel.pp",
    "--dp-size": "parallel.dp",
    "--ep-size": "parallel.ep",
    "--dcp-size": "parallel.dcp",
    "--attn-dp-size": "parallel.dp with dp_attention",
    "--enable-dp-attention": "parallel.dp_attention",
    "--nnodes": "nodes",
    "--node-rank": "by rank",
    "--dist-init-addr": "the leader's address and a port of the launch",
    "--nccl-port": "a port of the launch",
    "--base-gpu-id": "the GPUs that the launch was given",
    "--gpu-id-step": "the GPUs that the launch was given",
    "--disaggregation-bootstrap-port": "a port of the launch",
    "--use-ray": "SGLang's own launcher is used",
    "--grpc-mode": "the launch serves HTTP",
    "--ssl-keyfile": checks.TLS,
    "--ssl-certfile": checks.TLS,
    "--api-key": "on a command line every user of the node can read it",
    "--admin-api-key": "on a command line every user of the node can read it",
    "--ssl-keyfile-password": "on a command line every user of the node can read it",
}

RESERVED_ENV: Mapping[str, str] = {
    "SGLANG_HOST_IP": "this node's own address",
    "HOST_IP": "this node's own address, as SGLANG_HOST_IP",
    "SGLANG_LOCAL_IP_NIC": "this node's own address, as SGLANG_HOST_IP",
}

HTTP, DIST, NCCL, BOOTSTRAP = "http", "dist", "nccl", "bootstrap"

AFTER_DIST = 13
"""With dp-attention a replica also listens at the six ports after `dist`, and its nodes shake hands
at the thirteenth (SGLang 0.5.23): they are kept in the block, which is consecutive where it can be.
"""


class Sglang:
    """See the module's docstring."""

    name = "sglang"
    mixes_gpus = False
    loads_weights = True
    stop = Stop(
        signal="TERM",
        least_grace_s=10,
        leftovers=("sglang::scheduler", "sglang::detokenizer", "sglang::data_parallel_controller"),
    )
    # Set after 40 decode steps (SGLang 0.5.23): before that a request that runs reads as none.
    in_flight: InFlight | None = InFlight(
        ("sglang:num_running_reqs", "sglang:num_queue_reqs"), settle_s=5.0
    )
    one_name = True

    def gpu_count(self, profile: EngineProfile) -> tuple[int, str] | None:
        """tp × pp where attention is data-parallel inside tp, times dp without; on CPUs (no GPUs)
        ranks are sockets."""
        p = profile.parallel
        if not profile.gpus_per_node:
            return None
        if p.dp_attention:
            return p.tp * p.pp, f"tp {p.tp} × pp {p.pp} (dp {p.dp} divides tp)"
        return p.tp * p.pp * p.dp, f"tp {p.tp} × pp {p.pp} × dp {p.dp}"

    def port_names(self, profile: EngineProfile) -> tuple[str, ...]:
        """Every port that SGLang would otherwise choose by itself."""
        names = [HTTP]
        if not _several_groups(profile):
            names.append(DIST)
            if profile.parallel.dp_attention:
                names += [f"{DIST}-{n}" for n in range(1, AFTER_DIST + 1)]
            names.append(NCCL)
        if _role(profile):
            names.append(BOOTSTRAP)
        return (*names, *profile.ports)

    def check(self, profile: EngineProfile) -> list[Problem]:
        """Findings that need no node."""
        return [
            *checks.positive(profile),
            *checks.unused_parallelism(
                profile, "SGLang", "tp", "pp", "dp", "ep", "dcp", "dp_attention"
            ),
            *checks.check_shape(profile, self.port_names(profile), self.gpu_count(profile)),
            *checks.check_heads(profile),
            *checks.check_args(flags.table("sglang"), RESERVED, profile),
            *env_checks.check_env(profile, RESERVED_ENV),
            *_check_modes(profile),
            *sglang_moe.check(profile, _values),
        ]

    def build(self, request: LaunchRequest) -> tuple[Shard, ...]:
        """One shard per host; only rank 0 has a health check."""
        check_request(request, mixes_gpus=self.mixes_gpus)
        return tuple(self._rank(request, rank) for rank in range(len(request.hosts)))

    def classify_exit(self, code: int | None, log_tail: tuple[str, ...]) -> FailureKind:
        """argparse ends with 2; the rest is told apart by the log."""
        return exits.classify(exits.SGLANG, code, log_tail)

    def _rank(self, request: LaunchRequest, rank: int) -> Shard:
        env = _env(request.hosts[rank])
        serve = command(request, rank, SERVE, tuple(_argv(request, rank)), env)
        return shard(request, rank, [serve], serves=rank == 0, stop=self.stop)


def _argv(request: LaunchRequest, rank: int) -> Iterator[str]:
    profile, host, p = request.profile, request.hosts[rank], request.profile.parallel
    yield from _program(profile, host)
    yield from ("--model-path", host.model_path)
    if profile.served_names:
        yield from ("--served-model-name", profile.served_names[0])
    yield from ("--host", host.http, "--port", str(listens(request)))
    yield from ("--tp-size", str(p.tp))
    if p.pp > 1:
        yield from ("--pp-size", str(p.pp))
    if p.dp > 1:
        yield from ("--dp-size", str(p.dp))
    if p.dp_attention:
        yield "--enable-dp-attention"
    if p.ep:
        yield from ("--ep-size", str(sglang_moe.expert_parallel(profile, _values)))
    if p.dcp > 1:
        yield from ("--dcp-size", str(p.dcp))
    if not _several_groups(profile):
        # Left out, each replica on a node looks for a free port at the moment its neighbours do.
        dist = host_port(request.hosts[0].address, port(request, DIST))
        yield from ("--dist-init-addr", dist, "--nccl-port", str(port(request, NCCL)))
    if profile.nodes > 1:
        yield from ("--nnodes", str(profile.nodes), "--node-rank", str(rank))
    # Running requests are read from /metrics, which SGLang has only on request.
    yield "--enable-metrics"
    yield from _disaggregation(request, host)
    yield from role_args(request, rank, references(request, rank))


def _env(host: Host) -> dict[str, str]:
    # Unset, SGLang takes the default route's address (0.5.23): ranks and decode servers dial one
    # that they may not reach, and wait for ever.
    return {"SGLANG_HOST_IP": host.address, **collective_env(host)}


def _several_groups(profile: EngineProfile) -> bool:
    """Whether each dp rank is a tensor-parallel group of its own, with a rendezvous of its own.

    Given one port for all, SGLang 0.5.23 binds it for the first rank and fails at the second; so
    here it looks for free ports itself.
    """
    return profile.parallel.dp > 1 and not profile.parallel.dp_attention


def _program(profile: EngineProfile, host: Host) -> tuple[str, ...]:
    path = program(profile, host, "python3")
    if path.rsplit("/", 1)[-1].startswith("python"):
        return path, "-m", "sglang.launch_server"
    return path, "serve"


def _disaggregation(request: LaunchRequest, host: Host) -> Iterator[str]:
    if not _role(request.profile):
        return
    yield from ("--disaggregation-bootstrap-port", str(port(request, BOOTSTRAP)))
    fabric = host.fabric
    chosen = _values(request.profile, "--disaggregation-ib-device")
    if not chosen and fabric and fabric.kind in RDMA_KINDS and fabric.adapters:
        # Names without ports, unlike UCX's: the transfer takes every adapter otherwise.
        yield from ("--disaggregation-ib-device", ",".join(a.name for a in fabric.adapters))


def _role(profile: EngineProfile) -> str:
    values = _values(profile, "--disaggregation-mode")
    return values[-1] if values and values[-1] in ("prefill", "decode") else ""


def _values(profile: EngineProfile, flag: str) -> list[str]:
    table = flags.table("sglang")
    return [
        value
        for _, args in checks.arguments(profile)
        for value in checks.flag_values(table, args, flag)
    ]


def _check_modes(profile: EngineProfile) -> Iterator[Problem]:
    p = profile.parallel
    if profile.executor:
        hint = "remove it: SGLang has its own launcher"
        yield Problem("executor", f"SGLang has no executor {profile.executor!r}", hint)
    if p.dp_attention and p.tp % p.dp:
        hint = "with dp_attention dp divides tp"
        yield Problem("parallel.dp", f"dp {p.dp} does not divide tp {p.tp}", hint)
    if p.dp > 1 and not p.dp_attention and profile.nodes > 1:
        hint = "set dp_attention, or run more replicas of one node each"
        yield Problem("parallel.dp", "dp over several nodes needs dp_attention", hint)
    if p.dcp > 1 and p.tp % p.dcp:
        hint = "decode context parallelism divides tp and adds no GPUs"
        yield Problem("parallel.dcp", f"dcp {p.dcp} does not divide tp {p.tp}", hint)
    if len(profile.served_names) > 1:
        yield Problem(
            "model",
            f"SGLang serves one name, {profile.served_names[0]}; the model has "
            f"{len(profile.served_names)}",
            "put the name that clients use first",
            warning=True,
        )
