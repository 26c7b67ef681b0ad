"""A real engine and a real model, over real SSH: `make engines-real` fetches them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.world import World, chat, until

LLAMA = Path(__file__).parents[2] / ".cache" / "llama"
SERVER, MODEL = LLAMA / "run" / "llama-server", LLAMA / "model.gguf"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not (SERVER.exists() and MODEL.exists()),
        reason="no real llama-server and model here: `make engines-real` fetches them",
    ),
]


def profile(world: World, context: int) -> None:
    world.profile(
        "smol",
        engine="llamacpp",
        model="smol",
        runtime={"kind": "binary", "path": str(SERVER)},
        args=("--ctx-size", str(context), "--threads", "2", "--n-gpu-layers", "0"),
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
    world.reconcile("approve")
    world.converge(60)
    until(
        "nothing is left",
        lambda: not any(world.nodes.processes(name) for name in world.nodes.nodes),
    )
