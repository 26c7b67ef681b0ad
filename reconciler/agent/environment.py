"""A shard's environment: a declared base of the node, then the command's own.

Never more: whatever the login or the reconciler happens to carry must not change how a model runs.
"""

from __future__ import annotations

import errno
import os
from typing import Dict, List, Mapping

from .procs import MARK, SUPERVISES
from .spec import Command

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

MAX_SECRET = 65536
"""Bytes of one secret; a key or a token, not a document."""

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
    env: Mapping[str, str], mark: str, command: Command, indices: List[int], secrets: Dict[str, str]
) -> Dict[str, str]:
    """A command's environment: base < GPU indices < the command's own < secrets < the mark."""
    merged = base(env)
    if command.gpu_env:
        # Without it CUDA numbers GPUs by speed, and NVML's index names another card.
        merged["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    merged.update({name: ",".join(str(i) for i in indices) for name in command.gpu_env})
    merged.update(command.env)
    merged.update(secrets)
    merged[MARK] = mark
    return merged


def read_secrets(files: Mapping[str, str]) -> Dict[str, str]:
    """The values by variable. OSError names the file and what is wrong, never its content."""
    found = {}
    for name, path in files.items():
        with open(path, "rb") as file:
            data = file.read(MAX_SECRET + 1)
        # Editors end files with a newline, and a token with one is refused by whoever checks it.
        value = data[:-1] if data.endswith(b"\n") else data
        value = value[:-1] if value.endswith(b"\r") else value
        why = unfit(value)
        if why:
            raise OSError(errno.EINVAL, why, path)
        found[name] = os.fsdecode(value)
    return found


def unfit(value: bytes) -> str:
    """What keeps `value` from being a secret; empty: nothing. Does not repeat it."""
    if not value:
        return "is empty, or no text"
    if b"\0" in value:
        return "holds a NUL"
    if len(value) > MAX_SECRET:
        return "has more than %d bytes" % MAX_SECRET
    # A second newline, or a blank pasted along: an "illegal header value" in some library, later.
    return "begins or ends with white space" if value.strip() != value else ""
