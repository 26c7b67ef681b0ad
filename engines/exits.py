"""Why an engine ended, from its exit code and last log lines: the profile, the place, or a crash.

An ordered table, first match wins. What is not recognised is a crash: a wrong "command" would
reject a good profile at once, a wrong "place" would retry a broken one for ever, a crash is tried
three times.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from engines.base import FailureKind


class Row(NamedTuple):
    """One kind of end. `code` None: any. `pattern` '': whatever the log says."""

    code: int | None
    pattern: str
    kind: FailureKind
    why: str


COMMAND, PLACE, CRASH = FailureKind.COMMAND, FailureKind.PLACE, FailureKind.CRASH

COMMON: tuple[Row, ...] = (
    Row(None, r"Address already in use|EADDRINUSE|Errno 98\b", PLACE, "a port is taken"),
    Row(None, r"No space left on device|Errno 28\b", PLACE, "a disk or /dev/shm is full"),
    Row(None, r"Read-only file system|Errno 30\b", PLACE, "the disk is read-only"),
    Row(None, r"Cannot assign requested address|Errno 99\b", PLACE, "the address is not here"),
    Row(None, r"No CUDA GPUs are available|driver version is insufficient", PLACE, "no GPU"),
    Row(None, r"can't open file|No module named '?(vllm|sglang)", PLACE, "not installed here"),
    Row(None, r"crun: setrlimit|crun: .*cgroup|rlimit type", PLACE, "limits of the node"),
    Row(125, r"", PLACE, "docker or podman could not create the container"),
    Row(126, r"", COMMAND, "the program cannot be executed"),
    Row(127, r"", COMMAND, "the program is not in the image"),
)

ARGPARSE: tuple[Row, ...] = (Row(2, r"", COMMAND, "argparse refused a flag or a value"),)

TORCH: tuple[Row, ...] = (
    Row(None, r"CUDA out of memory|CUDA error: out of memory", PLACE, "GPU memory is taken"),
    Row(None, r"Free memory on device .* is less than desired", PLACE, "GPU memory is taken"),
    Row(None, r"quantization method .* is not supported", COMMAND, "quantization on this GPU"),
    Row(None, r"Unknown quantization method|Invalid quantization method", COMMAND, "quantization"),
    Row(None, r"attention heads .* must be divisible", COMMAND, "tp does not divide the heads"),
    Row(None, r"[Mm]odel architectures .* (are|is) not supported", COMMAND, "architecture"),
    Row(None, r"Repo id must be|not a local folder|Can't load the configuration of", PLACE, "path"),
    Row(None, r"No such file or directory: '", PLACE, "a file is not there"),
)

VLLM = (*COMMON, *ARGPARSE, *TORCH)
SGLANG = (*COMMON, *ARGPARSE, *TORCH)
SIM = (*COMMON, *ARGPARSE)

LLAMACPP: tuple[Row, ...] = (
    Row(None, r"couldn't bind HTTP server socket", PLACE, "the port is taken"),
    Row(None, r"error: invalid argument|error while handling argument", COMMAND, "a bad flag"),
    Row(None, r"error: unknown argument|expected value for argument", COMMAND, "a bad flag"),
    *COMMON,
    Row(None, r"cudaMalloc failed: out of memory|unable to allocate .* buffer", PLACE, "memory"),
    Row(None, r"failed to open GGUF file|No such file or directory", PLACE, "the file is absent"),
    Row(None, r"Failed to create server socket|Invalid host address", PLACE, "the RPC port"),
    Row(None, r"Failed to connect to|RPC .*(version|protocol) mismatch", PLACE, "an RPC worker"),
    Row(None, r"unknown model architecture", COMMAND, "this build does not know the model"),
    Row(132, r"", PLACE, "the build needs instructions that this CPU lacks (SIGILL)"),
)


def classify(rows: tuple[Row, ...], code: int | None, log_tail: tuple[str, ...]) -> FailureKind:
    """The kind of the first row that fits, else a crash (0 too: servers do not end)."""
    return next((row.kind for row in rows if _fits(row, code, log_tail)), CRASH)


def _fits(row: Row, code: int | None, log_tail: tuple[str, ...]) -> bool:
    if row.code is not None and row.code != code:
        return False
    return not row.pattern or any(re.search(row.pattern, line) for line in log_tail)
