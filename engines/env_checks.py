"""Checks of every environment in a profile, before any node is asked.

A variable sets what no flag sets: one that the node or the engine's adapter owns, one that makes a
program load other code, or one with a line break in it would start something else than the plan
shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from engines.base import EngineProfile, Problem

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SHELL = re.compile(r"(?<!\$)\$(?:\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Z][A-Z0-9_]+\b)")
"""A variable as a shell would expand it. `exps$` of a regular expression is none."""

CONTROL = re.compile(r"[\x00-\x1f\x7f]")

NO_PLUGIN = "none"
"""NCCL's word for its own transport: it loads nothing."""

LOADER_ENV = frozenset(
    {
        "BASH_ENV",
        "CUDA_INJECTION64_PATH",
        "ENV",
        "GCONV_PATH",
        "NCCL_NET_PLUGIN",
        "NCCL_PROFILER_PLUGIN",
        "NCCL_TUNER_PLUGIN",
        "NODE_OPTIONS",
        "PERL5LIB",
        "PERL5OPT",
        "PYTHONHOME",
        "PYTHONINSPECT",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "PYTHONUSERBASE",
        "RUBYLIB",
        "RUBYOPT",
    }
)
"""Variables that make a program load other code: an edit of YAML must not reach a loader."""

RESERVED_ENV: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": "the node sets it from the GPUs that the launch was given",
    "NVIDIA_VISIBLE_DEVICES": "the node sets it from the GPUs that the launch was given",
    "CUDA_DEVICE_ORDER": "indices are only right in PCI bus order",
    **dict.fromkeys(
        (
            "ASCEND_RT_VISIBLE_DEVICES",
            "GPU_DEVICE_ORDINAL",
            "HABANA_VISIBLE_DEVICES",
            "HABANA_VISIBLE_MODULES",
            "HIP_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES",
            "ZE_AFFINITY_MASK",
        ),
        "the node sets the variable that its document names in gpus.visible_by",
    ),
}


def check_env(profile: EngineProfile, reserved: Mapping[str, str]) -> Iterator[Problem]:
    """Findings about every environment in `profile`."""
    yield from _check_secrets(profile)
    owned = {**RESERVED_ENV, **reserved}
    for path, env in environments(profile):
        for name, value in env.items():
            yield from _check_variable(f"{path}.{name}", name, value, owned)
        yield from _check_proxy(path, env)


def _check_proxy(path: str, env: Mapping[str, str]) -> Iterator[Problem]:
    """gRPC, Ray and every HTTP client ask the proxy for the other ranks, too."""
    said = {name.lower(): name for name in env}
    proxy = next((said[n] for n in ("http_proxy", "https_proxy", "all_proxy") if n in said), "")
    if proxy and "no_proxy" not in said:
        yield Problem(
            f"{path}.{proxy}",
            f"{proxy} without no_proxy: calls between ranks and to members go to the proxy, too",
            "add no_proxy with $(members.addresses) and the nodes' networks",
            warning=True,
        )


def unexpanded(path: str, value: str) -> Problem:
    """A variable in a value: where people paste a script, it is meant to be expanded."""
    found = SHELL.search(value)
    return Problem(
        path,
        f"{found[0] if found else value} is not expanded: no shell reads it",
        "write the value, or a reference such as $(node.address)",
        warning=True,
    )


NETWORK = ("NCCL_", "UCX_", "NVSHMEM_", "GLOO_")
"""Beginnings of variables that choose adapters and interfaces."""


def _check_secrets(profile: EngineProfile) -> Iterator[Problem]:
    """Values that nobody sees before the start: another fabric's adapter would pass unseen."""
    for name in profile.secrets:
        if name.startswith(NETWORK):
            yield Problem(
                f"secrets.{name}",
                f"{name} chooses the network, and a secret's value cannot be checked",
                "put it under env",
            )


def environments(profile: EngineProfile) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Every environment of `profile` with its key path."""
    yield "env", profile.env
    yield "leader.env", profile.leader.env
    yield "worker.env", profile.worker.env
    yield "secrets", profile.secrets
    for index, sidecar in enumerate(profile.sidecars):
        yield f"sidecars[{index}].env", sidecar.env


def check_loader_env(profile: EngineProfile) -> Iterator[Problem]:
    """Variables that load code; refused unless the fleet says `allow_loader_env`."""
    for path, env in environments(profile):
        for name, value in env.items():
            if name.startswith("NCCL_") and value == NO_PLUGIN:
                continue
            if name in LOADER_ENV or name.startswith("LD_"):
                yield Problem(
                    f"{path}.{name}",
                    f"{name} makes programs load other code",
                    "set allow_loader_env in fleet.yaml if that is wanted",
                )


def _check_variable(
    path: str, name: str, value: str, reserved: Mapping[str, str]
) -> Iterator[Problem]:
    if not ENV_NAME.fullmatch(name):
        yield Problem(path, f"{name!r} is no name of a variable", "use letters, digits and _")
    elif name in reserved or name.startswith("RECONCILE_"):
        why = reserved.get(name, "the node marks its processes by it")
        yield Problem(path, f"{name} is set by the reconciler ({why})", "remove it from env")
    elif CONTROL.search(value):
        yield Problem(
            path,
            f"the value of {name} has a control character (a line break, mostly)",
            "write it on one line; YAML's `|` adds a line break, `|-` does not",
        )
    elif not value.strip() and name.endswith(("_TOKEN", "_KEY")):
        yield Problem(
            path,
            f"{name} is empty: an empty credential fails even where none is needed",
            "remove it, or give it a value",
        )
    elif SHELL.search(value):
        yield unexpanded(path, value)
    elif name in ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME") and value.startswith("^"):
        yield Problem(
            path,
            f"{name}={value} excludes: whatever else a node has is used, also another fabric's",
            "name what is to be used: `=mlx5_1:1,mlx5_2:1`",
            warning=True,
        )
