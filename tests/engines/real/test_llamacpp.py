"""llama.cpp's own programs accept our command lines and serve by them, alone and with a worker."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reconciler.core.changes import ShardSpec
from tests.engines import cases
from tests.engines.real.running import Running, free, get
from tests.engines.test_golden import unwrapped

pytestmark = pytest.mark.engine

RPC_SERVER = "/usr/libexec/x86_64-linux-gnu/llama/bin/ggml-rpc-server"
MODEL = "/tmp/model.gguf"
NET = "127.0.51."
GOLDENS = [folder for folder in cases.folders() if folder.parent.name == "llamacpp"]

PARSED = ("failed to open GGUF file", "Failed to connect to", "unknown buffer type")
"""What it says once every flag was read: no such model, no such worker, no such GPU here."""


@pytest.fixture(scope="module")
def root(installed: Path) -> Path:
    """A folder to chroot into, with the engine and a small real model."""
    return installed / "rpc"


@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_every_golden_is_accepted_by_the_real_parser(root: Path, folder: Path) -> None:
    for rank in json.loads((folder / "expected.json").read_text()):
        for command in rank["commands"]:
            argv = unwrapped(command["argv"])
            if command["name"] == "rpc":
                assert_rpc_parses(root, argv)
            else:
                said = run(root, ["/usr/bin/llama-server", *argv[1:]])
                assert any(text in said for text in PARSED), said[-2000:]


@pytest.mark.parametrize("word", ["--port=1", "--por", "--no-such-flag"])
def test_the_real_parser_refuses_what_we_call_no_flag(root: Path, word: str) -> None:
    assert "error: invalid argument" in run(root, ["/usr/bin/llama-server", word, "8080"])


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_real_server_answers_alone_and_with_a_worker(
    root: Path, tmp_path: Path, nodes: int
) -> None:
    specs = launch(nodes)
    health: dict[str, Any] = specs[0].spec["health"]

    def inside(shard: ShardSpec, argv: Sequence[str]) -> list[str]:
        return ["chroot", str(root), *argv]

    with Running(specs, tmp_path, inside) as running:
        running.wait_ready(health, 60)
        base = f"http://{health['host']}:{health['port']}"
        models = get(f"{base}/v1/models") or b""
        assert health["model"] in models.decode()
        assert "llamacpp:requests_processing" in (get(f"{base}/metrics") or b"").decode()
        body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
        answer = get(f"{base}/v1/chat/completions", json.dumps(body).encode())
        assert answer is not None, running.log()
        assert json.loads(answer)["choices"][0]["message"]["content"]
    assert all(free(f"{NET}{n + 1}", port) for n in range(nodes) for port in (20000, 20001))


def launch(nodes: int) -> tuple[ShardSpec, ...]:
    """A launch over so many loopback addresses; layers go to the worker where there is one."""
    data = {
        "profile": {
            "gpus_per_node": 0,
            "nodes": nodes,
            "args": ["-c", "512", "-t", "2", *(["-ngl", "99"] if nodes > 1 else [])],
        },
        "model": {"path": MODEL, "served_names": ["smollm2", "tiny"]},
        "fleet": {
            "engines": {
                "llamacpp": {"path": "/usr/bin/llama-server"},
                "ggml-rpc-server": {"path": RPC_SERVER},
            }
        },
        "nodes": [{"address": f"{NET}{n + 1}"} for n in range(nodes)],
    }
    return cases.make(data, engine="llamacpp").specs()


def run(root: Path, argv: list[str]) -> str:
    """All that the program says until it ends by itself. It talks to loopback alone."""
    inside = ["chroot", str(root), *map(here, argv)]
    done = subprocess.run(inside, capture_output=True, timeout=60, check=False)
    return (done.stdout + done.stderr).decode(errors="replace")


def here(word: str) -> str:
    """`word` with a golden's addresses as loopback ones."""
    return re.sub(r"10\.0\.0\.(\d+)", rf"{NET}\1", word)


def assert_rpc_parses(root: Path, argv: list[str]) -> None:
    """The worker gets as far as its socket; its port is taken here, so it ends there."""
    with socket.socket() as taken:
        taken.bind((here(argv[argv.index("-H") + 1]), int(argv[argv.index("-p") + 1])))
        taken.listen()
        said = run(root, [RPC_SERVER, *argv[1:]])
    assert "Failed to create server socket" in said, said
