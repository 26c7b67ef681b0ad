"""Why an engine ended, from its exit code and last log lines: the profile, the place, or a crash.

An ordered table, first match wins. What is not recognised is a crash: a wrong "command" would
reject a good profile at once, a wrong "place" would retry a broken one for ever, a crash is tried
three times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from engines.base import FailureKind


class Row(NamedTuple):
    """One kind of end. `code` None: any. `pattern` '': whatever the log says."""

    code: int | None
    pattern: str
    kind: FailureKind
    why: str


COMMAND, PLACE, CRASH = FailureKind.COMMAND, FailureKind.PLACE, FailureKind.CRASH


def _logged(kind: FailureKind, lines: Mapping[str, str]) -> tuple[Row, ...]:
    """Rows for any exit code: pattern of a log line → what it tells."""
    return tuple(Row(None, pattern, kind, why) for pattern, why in lines.items())


COMMON: tuple[Row, ...] = (
    *_logged(
        PLACE,
        {
            r"Address already in use|EADDRINUSE|Errno 98\b": "a port is taken",
            r"No space left on device|Errno 28\b": "a disk or /dev/shm is full",
            r"Read-only file system|Errno 30\b": "the disk is read-only",
            r"Cannot assign requested address|Errno 99\b": "the address is not here",
            r"No CUDA GPUs are available|driver version is insufficient": "no GPU",
            r"can't open file|No module named '?(vllm|sglang)": "not installed here",
            r"crun: setrlimit|crun: .*cgroup|rlimit type": "limits of the node",
        },
    ),
    Row(125, r"", PLACE, "docker or podman could not create the container"),
    Row(126, r"", COMMAND, "the program cannot be executed"),
    Row(127, r"", COMMAND, "the program is not in the image"),
)

ARGPARSE: tuple[Row, ...] = (Row(2, r"", COMMAND, "argparse refused a flag or a value"),)

TORCH: tuple[Row, ...] = (
    *_logged(
        PLACE,
        {
            r"CUDA out of memory|CUDA error: out of memory": "GPU memory is taken",
            r"Free memory on device .* is less than desired": "GPU memory is taken",
            r"ibv_\w+ (failed|timed out)|ibv_\w+ call failed": "an adapter cannot do or reach it",
            r"Unable to find address for": "Gloo's interface is not here",
        },
    ),
    *_logged(
        COMMAND,
        {
            r"quantization method .* is not supported": "quantization on this GPU",
            r"Unknown quantization method|Invalid quantization method": "quantization",
            r"attention heads .* must be divisible": "tp does not divide the heads",
            r"[Mm]odel architectures .* (are|is) not supported": "architecture",
        },
    ),
    *_logged(
        PLACE,
        {
            r"Repo id must be|not a local folder|Can't load the configuration of": "path",
            r"No such file or directory: '": "a file is not there",
        },
    ),
)

VLLM = (*COMMON, *ARGPARSE, *TORCH)
SGLANG = (*COMMON, *ARGPARSE, *TORCH)
SIM = (*COMMON, *ARGPARSE)

LLAMACPP: tuple[Row, ...] = (
    *_logged(PLACE, {r"couldn't bind HTTP server socket": "the port is taken"}),
    *_logged(
        COMMAND,
        {
            r"error: invalid argument|error while handling argument": "a bad flag",
            r"error: unknown argument|expected value for argument": "a bad flag",
        },
    ),
    *COMMON,
    *_logged(
        PLACE,
        {
            r"cudaMalloc failed: out of memory|unable to allocate .* buffer": "memory",
            r"failed to open GGUF file|No such file or directory": "the file is absent",
            r"Failed to create server socket|Invalid host address": "the RPC port",
            r"Failed to connect to|RPC .*(version|protocol) mismatch": "an RPC worker",
        },
    ),
    *_logged(COMMAND, {r"unknown model architecture": "this build does not know the model"}),
    Row(132, r"", PLACE, "the build needs instructions that this CPU lacks (SIGILL)"),
)


def classify(rows: tuple[Row, ...], code: int | None, log_tail: tuple[str, ...]) -> FailureKind:
    """The kind of the first row that fits, else a crash (0 too: servers do not end)."""
    return next((row.kind for row in rows if _fits(row, code, log_tail)), CRASH)


def _fits(row: Row, code: int | None, log_tail: tuple[str, ...]) -> bool:
    if row.code is not None and row.code != code:
        return False
    return not row.pattern or any(re.search(row.pattern, line) for line in log_tail)
