"""A shard's environment: a declared base of the node, then the command's own.

Never more: whatever the login or the reconciler happens to carry must not change how a model runs.
"""

from __future__ import annotations

from typing import Dict, List, Mapping

from .procs import MARK, SUPERVISES

BASE = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "HF_HOME",
    "LD_LIBRARY_PATH",
    "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR",
)
"""Taken from the node as its login sets them. XDG_CACHE_HOME: compile caches of the engines;
XDG_RUNTIME_DIR: rootless podman keeps its state there."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

OWN = ("RECONCILE_IDENTITY_DIR", "RECONCILE_ROOT")
"""The agent's own; passed to the supervisor, which must be the same node, and to nothing else."""


def base(env: Mapping[str, str]) -> Dict[str, str]:
    """The declared base as this node has it."""
    found = {name: env[name] for name in BASE if name in env}
    found.setdefault("PATH", DEFAULT_PATH)
    return found


def of_supervisor(env: Mapping[str, str], mark: str) -> Dict[str, str]:
    """The supervisor's environment: base, the agent's own two, and what names it to a cleaner."""
    own = {name: env[name] for name in OWN if name in env}
    return {**base(env), **own, SUPERVISES: mark}


def of_command(
    env: Mapping[str, str],
    mark: str,
    command_env: Mapping[str, str],
    gpu_env: List[str],
    indices: List[int],
) -> Dict[str, str]:
    """A command's environment: base < GPU indices < the command's own < the mark."""
    merged = base(env)
    if gpu_env:
        # Without it CUDA numbers GPUs by speed, and NVML's index names another card.
        merged["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    merged.update({name: ",".join(str(i) for i in indices) for name in gpu_env})
    merged.update(command_env)
    merged[MARK] = mark
    return merged
