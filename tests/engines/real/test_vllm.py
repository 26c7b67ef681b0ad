"""A real vLLM serves by our commands: alone, and over two nodes, started by the reconciler."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.nodes.loopback import LoopbackFleet
from tests.e2e.world import World, until
from tests.engines.real.running import get

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

ARGS = ("--dtype", "float32", "--max-model-len", "128", "--enforce-eager")
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Two sshd nodes; ranks meet over the loopback interface."""
    with LoopbackFleet(tmp_path / "nodes", names=("gpu-a", "gpu-b")) as nodes:
        made = World(tmp_path, nodes)
        over_loopback = {"management": {"interface": "lo"}}
        made.node_documents(**{"gpu-a": over_loopback, "gpu-b": over_loopback})
        yield made


@pytest.fixture(scope="module")
def tiny(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 2 layers with random weights."""
    folder = tmp_path_factory.mktemp("tiny")
    maker = Path(__file__).parent / "tiny_model.py"
    subprocess.run([installed / "vllm/bin/python", maker, folder], check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_real_vllm_is_started_over_ssh_chats_and_leaves_nothing(
    world: World, installed: Path, tiny: Path, nodes: int
) -> None:
    world.model("tiny-llama", path=str(tiny), served_names=["tiny-llama"])
    profile: dict[str, Any] = {
        "engine": "vllm",
        "model": "tiny-llama",
        "runtime": {"kind": "venv", "path": str(installed / "vllm")},
        "nodes": nodes,
        "parallel": {"tp": nodes},
        "env": ENV,
        "start_timeout_s": 400,
        "stop_grace_s": 20,
    }
    world.profile("tiny-llama", args=ARGS, **profile)
    world.placement("real", profile="tiny-llama", replicas=1)
    world.commit()
    world.converge(420)
    ((launch, url),) = world.ready().items()
    shards = world.living()[launch]["shards"]
    assert len(shards) == nodes, "each rank on a node of its own"
    question = {"messages": [{"role": "user", "content": "hello world"}], "max_tokens": 4}
    # The first request compiles kernels: on two busy cores it takes minutes.
    body = get(f"{url}/v1/chat/completions", json.dumps(question).encode(), timeout_s=300)
    assert body is not None
    assert json.loads(body)["choices"][0]["finish_reason"] in ("stop", "length")
    assert all(world.nodes.processes(name) for name in shards)

    world.remove("placements/real.yaml")
    world.commit("gone")
    world.reconcile("--wait", "--timeout", "60", timeout_s=90)
    world.reconcile("approve", "--yes")
    world.converge(120)
    until(
        "neither server, engine core nor worker is left on any node",
        lambda: not any(world.nodes.processes(name) for name in world.nodes.nodes),
        60,
    )
