"""What a profile says about vLLM: its modes, which of them go together, and what they imply."""

from __future__ import annotations

from collections.abc import Iterator

from engines import checks, flags
from engines.base import EngineProfile, Problem

EXECUTORS = ("", "mp", "ray")
BALANCING = ("internal", "hybrid", "external")


def dp_local(profile: EngineProfile) -> int:
    """Data-parallel ranks of one node: as given, or evenly."""
    return profile.parallel.dp_local or max(1, profile.parallel.dp // max(1, profile.nodes))


def transfers_kv(profile: EngineProfile) -> bool:
    """Whether it hands its KV cache to others, by a side channel that binds a port."""
    # Asked for every launch; whatever spelling stands for the flag has its first letters.
    return any(
        any("kv" in arg for arg in args)
        and checks.flag_values(flags.table("vllm"), args, "--kv-transfer-config")
        for _, args in checks.arguments(profile)
    )


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
    if p.dcp > 1 and p.tp % p.dcp:
        hint = "decode context parallelism divides tp and adds no GPUs"
        yield Problem("parallel.dcp", f"dcp {p.dcp} does not divide tp {p.tp}", hint)
    if ray and profile.runtime.kind == "container":
        hint = "use executor mp: one container a node"
        yield Problem("executor", "Ray and its server cannot share one container", hint)
    if p.dp > 1:
        yield from _check_data_parallel(profile)
    elif p.dp_balancing != "internal" or p.dp_local:
        hint = "set parallel.dp, or remove it"
        yield Problem("parallel", "dp_local and dp_balancing are about dp, which is 1", hint)


def _check_data_parallel(profile: EngineProfile) -> Iterator[Problem]:
    p, nodes, local = profile.parallel, profile.nodes, dp_local(profile)
    ray = profile.executor == "ray"
    if not ray and p.tp * p.pp > profile.gpus_per_node:
        yield Problem(
            "parallel",
            f"a data-parallel rank of tp {p.tp} × pp {p.pp} needs {p.tp * p.pp} GPUs on one node, "
            f"the profile takes {profile.gpus_per_node}",
            "use executor ray, whose data-parallel ranks may span nodes",
        )
    elif local * nodes != p.dp:
        yield Problem(
            "parallel.dp",
            f"{local} data-parallel ranks per node × {nodes} nodes is not dp {p.dp}",
            "choose dp (or dp_local) so that every node has the same number",
        )
    elif not ray and p.tp * p.pp * local != profile.gpus_per_node:
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
