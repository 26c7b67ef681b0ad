"""A real engine and a real model, over real SSH: `make engines-real` fetches them."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import World, chat, until

LLAMA = Path(__file__).parents[2] / ".cache" / "llama"
SERVER, MODEL = LLAMA / "run" / "llama-server", LLAMA / "model.gguf"

pytestmark = [
    pytest.mark.engine,
    # One at a time: the threads of two servers that wait for each other spin on two cores.
    pytest.mark.xdist_group("llama"),
    pytest.mark.skipif(
        not (SERVER.exists() and MODEL.exists()),
        reason="no real llama-server and model here: `make engines-real` fetches them",
    ),
]


def profile(world: World, context: int, **fields: Any) -> None:
    world.profile(
        "smol",
        engine="llamacpp",
        model="smol",
        runtime={"kind": "binary", "path": str(SERVER)},
        args=("--ctx-size", str(context), "--threads", "1", "--n-gpu-layers", "0"),
        **fields,
    )


def test_llama_server_is_started_chats_is_replaced_and_leaves_nothing(world: World) -> None:
    world.model("smol", path=str(MODEL), served_names=["smol"])
    profile(world, 512)
    world.placement("smol", profile="smol", replicas=1)
    world.commit()
    world.converge(120)
    ((launch, url),) = world.ready().items()
    answer = chat(url, "smol", "Say hello.")
    assert answer["choices"][0]["message"]["content"].strip()
    pids = world.nodes.processes(next(iter(world.living()[launch]["shards"])))
    assert pids

    profile(world, 1024)
    world.commit("a longer context")
    plan = world.plan()
    assert [c["verdict"] for c in plan["changes"]] == ["stale"]
    assert any("args" in path for path in plan["changes"][0]["changed_paths"])
    world.converge(120)
    ((again, url),) = world.ready().items()
    assert again != launch
    assert chat(url, "smol")["choices"]

    world.remove("placements/smol.yaml")
    world.commit("gone")
    world.reconcile("--wait", "--timeout", "30")
    world.reconcile("approve", "--yes")
    world.converge(60)
    until(
        "nothing is left",
        lambda: not any(world.nodes.processes(name) for name in world.nodes.nodes),
    )


def test_llama_server_finishes_a_stream_before_it_is_told_to_end(world: World) -> None:
    world.fleet(guard={"max_removed": "100%"})
    world.model("smol", path=str(MODEL), served_names=["smol"])
    profile(world, 2048, drain_s=300, stop_grace_s=2)
    world.placement("smol", profile="smol", replicas=1)
    world.commit()
    world.converge(120)
    ((launch, url),) = world.ready().items()
    body = {
        "messages": [{"role": "user", "content": "Count from one to one hundred."}],
        "stream": True,
        "max_tokens": 300,
        "ignore_eos": True,
    }
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=240) as answer:
        first = answer.readline()
        assert first.startswith(b"data: ")
        world.placement("smol", profile="smol", replicas=1, suspend=True)
        world.commit("not for now")
        world.reconcile(code=0)
        asked = time.monotonic()
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as told:
            assert b"llamacpp:requests_processing 1" in told.read(), "it was over before the stop"
        text = answer.read()
    assert text.rstrip().endswith(b"data: [DONE]")
    until("it has ended", lambda: launch not in world.living(), timeout_s=30)
    assert time.monotonic() - asked < 250, "the whole drain time was waited"
