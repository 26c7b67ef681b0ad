"""What a profile says about vLLM: its modes, which of them go together, and what they imply."""

from __future__ import annotations

from collections.abc import Iterator

from engines import checks, flags
from engines.base import EngineProfile, Parallelism, Problem
from engines.flags import walk

EXECUTORS = ("", "mp", "ray")
BALANCING = ("internal", "hybrid", "external")


def dp_local(profile: EngineProfile) -> int:
    """Data-parallel ranks of one node: as given, or evenly."""
    return profile.parallel.dp_local or max(1, profile.parallel.dp // max(1, profile.nodes))


def world(p: Parallelism) -> int:
    """Ranks in all: decode context parallelism divides tp, prefill context parallelism does not."""
    return p.tp * p.pp * p.dp * p.pcp


def bootstraps_kv(profile: EngineProfile) -> bool:
    """Whether its KV connector is Mooncake's, whose prefill side listens at a port of its own."""
    return any("MooncakeConnector" in value for value in _kv_transfer(profile))


def transfers_kv(profile: EngineProfile) -> bool:
    """Whether it hands its KV cache to others, by a side channel that binds a port."""
    return bool(_kv_transfer(profile))


def _kv_transfer(profile: EngineProfile) -> list[str]:
    # Asked for every launch; whatever spelling stands for the flag has its first letters.
    return [
        value
        for _, args in checks.arguments(profile)
        if any("kv" in arg for arg in args)
        for value in checks.flag_values(flags.table("vllm"), args, "--kv-transfer-config")
    ]


def quantization(profile: EngineProfile) -> str:
    """The quantization that the profile asks for; the last one wins, as in the engine."""
    # Asked for every launch; whatever spelling stands for the flag begins with -q or --q.
    values = [
        value
        for _, args in checks.arguments(profile)
        if any("-q" in arg for arg in args)
        for value in checks.flag_values(flags.table("vllm"), args, "--quantization")
    ]
    return values[-1] if values else ""


def check_modes(profile: EngineProfile) -> Iterator[Problem]:
    """Modes that do not go together."""
    p, ray = profile.parallel, profile.executor == "ray"
    if profile.executor not in EXECUTORS:
        hint = "use mp (vLLM's own launcher) or ray"
        yield Problem("executor", f"vLLM has no executor {profile.executor!r}", hint)
    if p.dp_balancing not in BALANCING:
        hint = f"use {', '.join(BALANCING)}"
        yield Problem("parallel.dp_balancing", f"{p.dp_balancing!r} is unknown", hint)
    if p.pcp > 1 and p.dp > 1:
        hint = "use one of the two"
        yield Problem("parallel.pcp", "vLLM has no pcp together with dp", hint)
    if p.dcp > 1 and p.pcp == 1 and p.tp % p.dcp:
        hint = "decode context parallelism divides tp and adds no GPUs"
        yield Problem("parallel.dcp", f"dcp {p.dcp} does not divide tp {p.tp}", hint)
    if ray and profile.runtime.kind == "container":
        hint = "use executor mp: one container a node"
        yield Problem("executor", "Ray and its server cannot share one container", hint)
    if profile.nodes > 1 and not ray and p.dp_balancing == "internal":
        yield from _check_headless(profile)
    if p.dp > 1:
        yield from _check_data_parallel(profile)
        yield from _check_adapters_at_run_time(profile)
    elif p.dp_balancing != "internal" or p.dp_local:
        hint = "set parallel.dp, or remove it"
        yield Problem("parallel", "dp_local and dp_balancing are about dp, which is 1", hint)


def _check_headless(profile: EngineProfile) -> Iterator[Problem]:
    """Workers are started with `--headless`, and vLLM 0.32 ends at once where both are given."""
    for path, args in checks.arguments(profile):
        for word in walk(flags.table("vllm"), args):
            if path != "leader.args" and [f.name for f in word.flags] == ["--api-server-count"]:
                yield Problem(
                    f"{path}[{word.index}]",
                    f"{word.text.split('=', 1)[0]} is for the rank that serves: the others run "
                    "headless and end with it",
                    "put it in leader.args",
                )


def _check_adapters_at_run_time(profile: EngineProfile) -> Iterator[Problem]:
    """With data parallelism vLLM has several front-end processes, which do not tell each other of
    an adapter that one of them loads (read in its `serve` command, 2026)."""
    name = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
    table = flags.table("vllm")
    said = any(
        checks.flag_values(table, args, "--api-server-count")
        for _, args in checks.arguments(profile)
    )
    if name in profile.env and profile.parallel.dp_balancing != "external" and not said:
        yield Problem(
            f"env.{name}",
            f"vLLM ends with it where dp is above 1 (here {profile.parallel.dp}), "
            "for it starts several front-end processes",
            "add --api-server-count 1 to args (to leader.args where a replica has several nodes)",
            warning=True,
        )


def _check_data_parallel(profile: EngineProfile) -> Iterator[Problem]:
    """With vLLM's own launcher a data-parallel rank stays on one node.

    vLLM takes `--nnodes` together with `--data-parallel-size` (its pull request 23691), and a rank
    that spans nodes can start so only where the model has experts. Those of a dense model are made
    independent in the engine (`reconfigure_for_independent_dp_rank`, read in vLLM 0.32.0), while
    their workers on further nodes go on counting themselves among all ranks, and all groups meet at
    one `--master-addr`: the start waits until it times out. A profile need not say which model it
    is, so both are refused; for a dense model replicas of one rank each are the same thing.
    """
    p, nodes, local = profile.parallel, profile.nodes, dp_local(profile)
    ray = profile.executor == "ray"
    on_gpus = not ray and profile.gpus_per_node > 0
    if on_gpus and p.tp * p.pp > profile.gpus_per_node:
        yield Problem(
            "parallel",
            f"a data-parallel rank of tp {p.tp} × pp {p.pp} needs {p.tp * p.pp} GPUs on one node, "
            f"the profile takes {profile.gpus_per_node}",
            "run replicas of one rank each, or use executor ray, whose ranks may span nodes (with "
            "vLLM's own launcher that starts for models with experts alone)",
        )
    elif local * nodes != p.dp:
        yield Problem(
            "parallel.dp",
            f"{local} data-parallel ranks per node × {nodes} nodes is not dp {p.dp}",
            "choose dp (or dp_local) so that every node has the same number",
        )
    elif on_gpus and p.tp * p.pp * local != profile.gpus_per_node:
        yield Problem(
            "parallel",
            f"tp {p.tp} × pp {p.pp} × {local} data-parallel ranks per node needs "
            f"{p.tp * p.pp * local} GPUs per node, the profile takes {profile.gpus_per_node}",
            "change gpus_per_node or dp_local",
        )
    if ray and p.dp_balancing != "internal":
        hint = "use executor mp"
        yield Problem("parallel.dp_balancing", f"{p.dp_balancing} needs a server per node", hint)
    if p.dp_balancing == "external" and local != 1:
        yield Problem(
            "parallel.dp_balancing",
            f"external balancing runs one data-parallel rank per node, here {local}",
            "use hybrid: each node serves and spreads over its own ranks",
        )
    if p.dp_balancing == "hybrid" and nodes == 1:
        hint = "use internal"
        yield Problem("parallel.dp_balancing", "hybrid is about several nodes, here 1", hint)
