"""Any HTTP server: TensorRT-LLM, TGI, LMDeploy, NIM, a router. Its argv is the profile's own.

Nothing is known about the program, so nothing is reserved but what the node sets; addresses,
ports and paths come in by references (`$(node.address)`, `$(port.http)`, `$(members.http)`).
"""

from __future__ import annotations

from collections.abc import Iterator

from engines import checks, env_checks, exits
from engines.assemble import SERVE, check_request, command, port, role_args, shard
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
from engines.environment import collective_env
from engines.references import references


class CommandEngine:
    """See the module's docstring."""

    name = "command"
    mixes_gpus = False
    loads_weights = False
    stop = Stop()
    in_flight: InFlight | None = None
    one_name = False

    def gpu_count(self, profile: EngineProfile) -> tuple[int, str] | None:
        """As declared."""
        return None

    def port_names(self, profile: EngineProfile) -> tuple[str, ...]:
        """`http` and the profile's own."""
        return ("http", *profile.ports)

    def check(self, profile: EngineProfile) -> list[Problem]:
        """Findings that need no node."""
        ports = self.port_names(profile)
        return [
            *checks.positive(profile),
            *checks.unused_parallelism(profile, "engine command"),
            *checks.check_shape(profile, ports, None),
            *env_checks.check_env(profile, {}),
            *_check_command(profile),
        ]

    def build(self, request: LaunchRequest) -> tuple[Shard, ...]:
        """One shard per host with the profile's own argv."""
        check_request(request, mixes_gpus=self.mixes_gpus)
        if any(not _argv(request.profile, rank) for rank in range(len(request.hosts))):
            raise ValueError(f"profile {request.profile.name}: engine command has no command")
        return tuple(self._rank(request, rank) for rank in range(len(request.hosts)))

    def classify_exit(self, code: int | None, log_tail: tuple[str, ...]) -> FailureKind:
        """Only what holds for any program is recognised."""
        return exits.classify(exits.COMMON, code, log_tail)

    def _rank(self, request: LaunchRequest, rank: int) -> Shard:
        profile, host = request.profile, request.hosts[rank]
        refs = references(request, rank)
        argv = refs.all(_argv(profile, rank)) + role_args(request, rank, refs)
        layer = collective_env(host) if host.gpus else {}
        serve = command(request, rank, SERVE, argv, layer, wait_for=_waits_for(request, rank))
        serves = profile.serves == "all" or (rank == 0 and profile.serves != "none")
        return shard(request, rank, [serve], serves=serves, stop=self.stop, check_model=False)


def _argv(profile: EngineProfile, rank: int) -> tuple[str, ...]:
    role = profile.worker if rank else profile.leader
    return role.command or profile.command


def _waits_for(request: LaunchRequest, rank: int) -> WaitFor | None:
    """Workers wait for the leader. The leader waits for the first worker and each worker for the
    next one, so it starts when all of them accept."""
    leader, worker = request.profile.leader.waits_for, request.profile.worker.waits_for
    if rank and worker:
        return WaitFor(request.hosts[0].address, port(request, worker))
    if leader and rank + 1 < len(request.hosts):
        return WaitFor(request.hosts[rank + 1].address, port(request, leader))
    return None


def _check_command(profile: EngineProfile) -> Iterator[Problem]:
    if any(not _argv(profile, rank) for rank in range(min(profile.nodes, 2))):
        hint = "give the program and its arguments as a list"
        yield Problem("command", "engine command needs a command", hint)
    for path, argv in (
        ("command", profile.command),
        ("leader.command", profile.leader.command),
        ("worker.command", profile.worker.command),
    ):
        if argv and " " in argv[0] and "/" not in argv[0]:
            hint = "write one word per item"
            yield Problem(f"{path}[0]", f"{argv[0]!r} is not one program", hint)
    if profile.leader.waits_for and profile.worker.waits_for:
        hint = "remove one of the two"
        yield Problem("leader.waits_for", "leader and workers would wait for each other", hint)
    if profile.listens:
        hint = "remove it, and write $(port.NAME) into the command"
        yield Problem("listens", "the command itself says where it listens", hint)
    if profile.serves not in ("leader", "all", "none"):
        yield Problem("serves", f"{profile.serves!r} is unknown", "use leader, all or none")
    if profile.serves == "none" and (profile.health_path or profile.health_port):
        hint = "remove it, or say which ranks serve"
        yield Problem("health", "no rank serves HTTP, so nothing is asked", hint)
    if profile.executor:
        yield Problem("executor", "engine command has no executors", "remove it")
