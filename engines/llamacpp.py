"""llama.cpp: llama-server on one node, or with RPC workers on others.

Facts are those of `engines/tables/llamacpp.py`. The workers are another program that takes an
address and a port; they start first, and the leader gets all their addresses. GPUs may be of
different types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from engines import checks, env_checks, exits, flags
from engines.addresses import host_port, is_v6
from engines.assemble import SERVE, check_request, command, listens, port, role_args, shard
from engines.base import (
    EngineProfile,
    FailureKind,
    InFlight,
    LaunchRequest,
    Problem,
    Shard,
    Stop,
    WaitFor,
)
from engines.programs import beside, program
from engines.references import references

RESERVED: Mapping[str, str] = {
    "--model": "the model's path",
    "--model-url": "the model's path",
    "--docker-repo": "the model's path",
    "--hf-repo": "the model's path",
    "--hf-file": "the model's path",
    "--models-dir": "the launch serves one model",
    "--models-preset": "the launch serves one model",
    "--alias": "the model's served_names",
    "--host": "the node's own address",
    "--port": "a port of the launch",
    "--reuse-port": "two servers would share one port and its requests",
    "--rpc": "the workers are the profile's other `nodes`, one process each, which offers all "
    "`gpus_per_node` GPUs of its node; several workers on one node cannot be said",
    "--ssl-key-file": checks.TLS,
    "--ssl-cert-file": checks.TLS,
    "--api-prefix": "health and model list would be elsewhere",
    "--api-key": "on a command line every user of the node can read it; use --api-key-file",
    "--hf-token": "on a command line every user of the node can read it; set HF_TOKEN",
    "--list-devices": "it prints and ends",
    "--help": "it prints and ends",
    "--version": "it prints and ends",
}

SERVER, WORKER = "llama-server", "ggml-rpc-server"
HTTP, RPC = "http", "rpc"


def reserved_env() -> dict[str, str]:
    """`LLAMA_ARG_*` of every reserved flag: it sets what no flag sets."""
    owned = (flag for flag in flags.table("llamacpp").flags if flag.name in RESERVED and flag.env)
    kept = ("LLAMA_API_KEY", "HF_TOKEN")
    return {flag.env: RESERVED[flag.name] for flag in owned if flag.env not in kept}


class LlamaCpp:
    """See the module's docstring."""

    name = "llamacpp"
    mixes_gpus = True
    loads_weights = True
    stop = Stop(signal="TERM", least_grace_s=2)
    in_flight: InFlight | None = InFlight(
        ("llamacpp:requests_processing", "llamacpp:requests_deferred")
    )
    one_name = False

    def gpu_count(self, profile: EngineProfile) -> tuple[int, str] | None:
        """As many as it is given, also none."""
        return None

    def port_names(self, profile: EngineProfile) -> tuple[str, ...]:
        """HTTP, and with several nodes the workers' RPC port."""
        names = (HTTP, RPC) if profile.nodes > 1 else (HTTP,)
        return (*names, *profile.ports)

    def check(self, profile: EngineProfile) -> list[Problem]:
        """Findings that need no node."""
        return [
            *checks.positive(profile),
            *checks.unused_parallelism(profile, "llama.cpp"),
            *checks.check_shape(profile, self.port_names(profile), None),
            *checks.check_args(flags.table("llamacpp"), RESERVED, _of_server(profile)),
            *env_checks.check_env(profile, reserved_env()),
            *_check_modes(profile),
        ]

    def build(self, request: LaunchRequest) -> tuple[Shard, ...]:
        """One shard per host: rank 0 is the server, the others are RPC workers."""
        check_request(request, mixes_gpus=self.mixes_gpus)
        _check_addresses(request)
        workers = (self._worker(request, rank) for rank in range(1, len(request.hosts)))
        return (self._leader(request), *workers)

    def classify_exit(self, code: int | None, log_tail: tuple[str, ...]) -> FailureKind:
        """Every error ends with 1, so the log tells them apart."""
        return exits.classify(exits.LLAMACPP, code, log_tail)

    def _leader(self, request: LaunchRequest) -> Shard:
        argv = tuple(_server_argv(request))
        serve = command(request, 0, SERVE, argv, wait_for=_next_worker(request, 0))
        return shard(request, 0, [serve], serves=True, stop=self.stop)

    def _worker(self, request: LaunchRequest, rank: int) -> Shard:
        profile, host = request.profile, request.hosts[rank]
        main = program(profile, host, SERVER, in_venv=False)
        argv = [beside(main, host, profile, WORKER)]
        argv += ["-H", host.address, "-p", str(port(request, RPC))]
        argv += references(request, rank).all(profile.worker.args)
        work = command(request, rank, "rpc", argv, wait_for=_next_worker(request, rank))
        return shard(request, rank, [work], serves=False, stop=self.stop, loads_model=False)


def _server_argv(request: LaunchRequest) -> Iterator[str]:
    profile, host = request.profile, request.hosts[0]
    yield from (program(profile, host, SERVER, in_venv=False), "-m", host.model_path)
    if profile.served_names:
        yield from ("--alias", ",".join(profile.served_names))
    yield from ("--host", host.http, "--port", str(listens(request)))
    if len(request.hosts) > 1:
        ends = (host_port(h.address, port(request, RPC)) for h in request.hosts[1:])
        yield from ("--rpc", ",".join(ends))
    # Running requests are read from /metrics, which llama-server has only on request.
    yield "--metrics"
    yield from role_args(request, 0, references(request, 0))


def _next_worker(request: LaunchRequest, rank: int) -> WaitFor | None:
    """Each rank waits for the next one, so the leader (rank 0) starts when all workers accept.

    llama-server ends at once where a worker does not answer.
    """
    if rank + 1 >= len(request.hosts):
        return None
    return WaitFor(request.hosts[rank + 1].address, port(request, RPC))


def _check_addresses(request: LaunchRequest) -> None:
    """The RPC server binds nothing but IPv4, and then ends with exit code 0 (build b11669)."""
    for host in request.hosts[1:]:
        if is_v6(host.address):
            raise ValueError(
                f"node {host.node}: llama.cpp's RPC takes IPv4 addresses alone, this is "
                f"{host.address}; set management.address"
            )


def _of_server(profile: EngineProfile) -> EngineProfile:
    """Without the workers' args: they go to another program, with flags of its own."""
    return replace(profile, worker=replace(profile.worker, args=()))


def _check_modes(profile: EngineProfile) -> Iterator[Problem]:
    if profile.executor:
        hint = "remove it: workers are RPC servers"
        yield Problem("executor", f"llama.cpp has no executor {profile.executor!r}", hint)
    for index, word in enumerate(profile.worker.args):
        if word.split("=", 1)[0] in ("-H", "--host", "-p", "--port"):
            hint = "remove it"
            yield Problem(f"worker.args[{index}]", f"{word} is set by the reconciler", hint)
