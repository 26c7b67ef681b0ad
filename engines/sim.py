"""The sim engine: a small OpenAI-compatible server inside the agent's own file, for demos and
tests.

It accepts the flags below and no other, so that a bad flag fails as a real engine's does: exit 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engines import checks, env_checks, exits
from engines.addresses import host_port
from engines.assemble import SERVE, check_request, command, listens, port, role_args, shard
from engines.base import EngineProfile, FailureKind, InFlight, LaunchRequest, Problem, Shard, Stop
from engines.flags import Flag, FlagTable
from engines.references import references

RESERVED: Mapping[str, str] = {
    "--host": "the node's own address",
    "--port": "a port of the launch",
    "--served-model-name": "the model's served_names",
    "--rank": "by rank",
    "--nodes": "nodes",
    "--leader": "the leader's address and a port of the launch",
    "--sync-port": "a port of the launch",
}

FLAGS = (
    *(Flag((name,), "1") for name in RESERVED if name != "--served-model-name"),
    Flag(("--served-model-name",), "+"),
    Flag(("--load-time",), "1"),
    Flag(("--fail",), "0"),
    Flag(("--fail-code",), "1"),
    Flag(("--fail-message",), "1"),
    Flag(("--never-ready",), "0"),
    Flag(("--crash-after",), "1"),
    Flag(("--unhealthy-after",), "1"),
    Flag(("--context",), "1"),
    Flag(("--token-time",), "1"),
)

TABLE = FlagTable("the sim engine", "1", False, FLAGS, {n: f for f in FLAGS for n in f.names})

HTTP, SYNC = "http", "sync"


class Sim:
    """See the module's docstring."""

    name = "sim"
    mixes_gpus = False
    loads_weights = False
    stop = Stop(signal="TERM", least_grace_s=1)
    in_flight: InFlight | None = InFlight(
        ("vllm:num_requests_running", "vllm:num_requests_waiting")
    )
    one_name = False

    def gpu_count(self, profile: EngineProfile) -> tuple[int, str]:
        """As vLLM's: tp × pp × dp."""
        p = profile.parallel
        return p.tp * p.pp * p.dp, f"tp {p.tp} × pp {p.pp} × dp {p.dp}"

    def port_names(self, profile: EngineProfile) -> tuple[str, ...]:
        """HTTP, and with several nodes the port at which the ranks meet."""
        names = (HTTP, SYNC) if profile.nodes > 1 else (HTTP,)
        return (*names, *profile.ports)

    def check(self, profile: EngineProfile) -> list[Problem]:
        """Findings that need no node."""
        # A pretended launch need not multiply out when nothing is said about its parallelism.
        said = self.gpu_count(profile)[0] > 1
        count = self.gpu_count(profile) if said else None
        return [
            *checks.positive(profile),
            *checks.check_shape(profile, self.port_names(profile), count),
            *checks.check_args(TABLE, RESERVED, profile),
            *env_checks.check_env(profile, {}),
        ]

    def build(self, request: LaunchRequest) -> tuple[Shard, ...]:
        """One shard per host; rank 0 serves, the others wait for it."""
        check_request(request, mixes_gpus=self.mixes_gpus)
        return tuple(self._rank(request, rank) for rank in range(len(request.hosts)))

    def classify_exit(self, code: int | None, log_tail: tuple[str, ...]) -> FailureKind:
        """Exit 2 is a refused flag, as argparse's."""
        return exits.classify(exits.SIM, code, log_tail)

    def _rank(self, request: LaunchRequest, rank: int) -> Shard:
        serve = command(request, rank, SERVE, tuple(_argv(request, rank)))
        return shard(request, rank, [serve], serves=rank == 0, stop=self.stop)


def _argv(request: LaunchRequest, rank: int) -> Iterator[str]:
    profile, host = request.profile, request.hosts[rank]
    inside = profile.runtime.kind == "container"
    yield from ("python3" if inside else host.python, host.agent, "sim")
    yield from ("--host", host.http, "--port", str(listens(request)))
    if profile.served_names:
        yield from ("--served-model-name", *profile.served_names)
    if profile.nodes > 1:
        yield from ("--rank", str(rank), "--nodes", str(profile.nodes))
        sync = port(request, SYNC)
        if rank == 0:
            yield from ("--sync-port", str(sync))
        else:
            yield from ("--leader", host_port(request.hosts[0].address, sync))
    yield from role_args(request, rank, references(request, rank))
