"""Exits are blamed on the profile, the place or neither, as the engines' own words allow."""

from __future__ import annotations

import pytest

import engines
from engines.base import FailureKind

COMMAND, PLACE, CRASH = FailureKind.COMMAND, FailureKind.PLACE, FailureKind.CRASH

CASES = [
    ("vllm", 2, ["vllm serve: error: unrecognized arguments: --nope"], COMMAND),
    ("vllm", 1, ["OSError: [Errno 98] Address already in use"], PLACE),
    ("vllm", 1, ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"], PLACE),
    ("vllm", 1, ["ValueError: The quantization method fp8 is not supported for the GPU"], COMMAND),
    ("vllm", 1, ["huggingface_hub.errors.HFValidationError: Repo id must be in the form"], PLACE),
    ("vllm", 1, ["NCCL WARN Call to ibv_modify_qp failed with error Connection timed out"], PLACE),
    ("sglang", 1, ["NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"], PLACE),
    ("vllm", 1, ["RuntimeError: Unable to find address for: eno7"], PLACE),
    ("vllm", 1, ["RuntimeError: Engine core initialization failed."], CRASH),
    ("vllm", 1, ["FileNotFoundError: [Errno 2] No such file or directory"], CRASH),
    ("vllm", 1, ["OSError: [Errno 2] No such file or directory: '/models/x/config.json'"], PLACE),
    ("vllm", -9, [], CRASH),
    ("vllm", 0, [], CRASH),
    ("vllm", None, [], CRASH),
    ("sglang", 2, ["launch_server.py: error: argument --tp-size: invalid int value: 'x'"], COMMAND),
    ("sglang", 1, ["/usr/bin/python3: No module named sglang"], PLACE),
    ("llamacpp", 1, ["error: invalid argument: --nope"], COMMAND),
    ("llamacpp", 1, ["main: couldn't bind HTTP server socket, hostname: 10.0.0.1"], PLACE),
    ("llamacpp", 1, ["gguf_init_from_file: failed to open GGUF file '/models/x.gguf'"], PLACE),
    ("llamacpp", 132, [], PLACE),
    ("llamacpp", 0, ["Failed to create server socket"], PLACE),
    ("sim", 2, ["sim: error: unrecognized arguments: --nope"], COMMAND),
    ("sim", 1, ["sim: failing as asked"], CRASH),
    ("sim", 2, ["python3: can't open file '/x/agent.pyz': [Errno 2] No such file"], PLACE),
    ("command", 3, ["whatever"], CRASH),
    ("command", 1, ["bind: Address already in use"], PLACE),
    ("vllm", 125, ["Error: creating container storage: the name is in use"], PLACE),
    ("vllm", 126, ["Error: crun: setrlimit `RLIMIT_NPROC`: OCI permission denied"], PLACE),
    ("vllm", 126, [], COMMAND),
    ("vllm", 127, [], COMMAND),
]


@pytest.mark.parametrize(("engine", "code", "log", "kind"), CASES)
def test_an_exit_is_classified(
    engine: str, code: int | None, log: list[str], kind: FailureKind
) -> None:
    assert engines.get(engine).classify_exit(code, tuple(log)) is kind


@pytest.mark.parametrize("engine", engines.names())
def test_what_is_not_recognised_is_a_crash_and_rejects_no_profile(engine: str) -> None:
    assert engines.get(engine).classify_exit(1, ("something new",)) is CRASH
