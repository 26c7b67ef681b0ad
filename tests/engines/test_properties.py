"""Whatever a fleet looks like, a command names only what its launch was given."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.core.changes import ShardSpec
from tests.engines import cases

FABRICS = ("fab-a", "fab-b", "fab-c")
MODES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("vllm", {"gpus_per_node": 4, "nodes": 2, "parallel": {"tp": 8}}),
    ("vllm", {"gpus_per_node": 2, "nodes": 3, "parallel": {"tp": 2, "pp": 3}, "executor": "ray"}),
    ("vllm", {"gpus_per_node": 4, "nodes": 2, "parallel": {"tp": 2, "dp": 4}}),
    (
        "vllm",
        {
            "gpus_per_node": 4,
            "nodes": 2,
            "parallel": {"tp": 1, "dp": 8, "dp_balancing": "hybrid"},
            "args": ["--kv-transfer-config", '{"kv_connector":"NixlConnector"}'],
        },
    ),
    ("vllm", {"gpus_per_node": 8, "parallel": {"tp": 4, "dp": 2}}),
    ("sglang", {"gpus_per_node": 4, "nodes": 2, "parallel": {"tp": 8}}),
    (
        "sglang",
        {
            "gpus_per_node": 2,
            "nodes": 2,
            "parallel": {"tp": 4, "dp": 4, "dp_attention": True},
            "args": ["--disaggregation-mode", "prefill"],
        },
    ),
    ("llamacpp", {"gpus_per_node": 2, "nodes": 3}),
    ("sim", {"gpus_per_node": 2, "nodes": 2}),
    (
        "command",
        {
            "gpus_per_node": 2,
            "nodes": 2,
            "ports": ["side"],
            "command": ["x", "$(members.side)", "$(port.http)", "$(gpus.ids)", "$(leader.host)"],
        },
    ),
)
RUNTIMES = (
    {},
    {"kind": "container", "tool": "docker", "image": "a/b:1"},
    {"kind": "container", "tool": "podman", "image": "a/b:1"},
)


@st.composite
def launches(draw: st.DrawFn) -> tuple[str, cases.Case]:
    """(fabric, case): every node has several fabrics, with adapters of every name's prefix."""
    engine, profile = draw(st.sampled_from(MODES))
    runtime = draw(st.sampled_from(RUNTIMES)) if profile.get("executor") != "ray" else {}
    fabric = draw(st.sampled_from(("", *FABRICS)))
    kinds = {name: draw(st.sampled_from(("ib", "roce"))) for name in FABRICS}
    names = draw(st.permutations([f"mlx5_{n}" for n in (0, 1, 2, 10, 11, 20, 21, 100, 101)]))
    rails = {name: list(names)[3 * n : 3 * n + 3] for n, name in enumerate(FABRICS)}
    nodes = []
    for number in range(profile.get("nodes", 1)):
        v6 = draw(st.booleans()) and engine != "llamacpp"
        fabrics = {
            name: {
                "kind": kinds[name],
                "gid_index": draw(st.integers(0, 7)),
                "adapters": [{"name": rail} for rail in rails[name]],
                "interface": f"if-{name}",
                "address": f"10.{n}.0.{number + 1}",
            }
            for n, name in enumerate(FABRICS)
        }
        address = f"2001:db8::{number + 1}" if v6 else f"192.0.2.{number + 1}"
        nodes.append({"address": address, "fabrics": fabrics, "management": {"interface": "eno1"}})
    bootstrap = draw(st.sampled_from(("management", "fabric"))) if fabric else "management"
    data = {
        "profile": {**profile, "runtime": runtime, "bootstrap": bootstrap},
        "model": {"path": "/models/m"},
        "placement": {"fabric": fabric},
        "nodes": nodes,
    }
    return fabric, cases.make(data, engine=engine)


def words(shard: ShardSpec) -> Iterator[str]:
    """Everything that a rank's processes are given: arguments and values of variables."""
    for command in shard.spec["commands"]:
        yield from command["argv"]
        yield from command["env"].values()
    for file in shard.spec["files"]:
        yield file["content"]


@settings(max_examples=150, deadline=None)
@given(launches())
def test_no_command_names_an_adapter_of_another_fabric(made: tuple[str, cases.Case]) -> None:
    fabric, case = made
    for shard in case.specs():
        node = case.desired.nodes[shard.node]
        own = {a.name for a in node.fabrics[fabric].adapters} if fabric else set()
        named = {name for word in words(shard) for name in re.findall(r"mlx5_\d+", word)}
        assert named <= own, f"a rank on fabric {fabric or 'none'} names {named - own}"


@settings(max_examples=150, deadline=None)
@given(launches())
def test_nccl_adapters_are_always_exact(made: tuple[str, cases.Case]) -> None:
    for shard in made[1].specs():
        for command in shard.spec["commands"]:
            assert command["env"].get("NCCL_IB_HCA", "=")[0] == "=", "a prefix takes other adapters"
            assert command["env"].get("NCCL_SOCKET_IFNAME", "=")[0] == "="
            assert "=" not in command["env"].get("GLOO_SOCKET_IFNAME", ""), "Gloo knows no ="


@settings(max_examples=150, deadline=None)
@given(launches())
def test_no_command_names_a_gpu_that_was_not_assigned(made: tuple[str, cases.Case]) -> None:
    _, case = made
    for shard, seat in zip(case.specs(), case.seats, strict=True):
        named = {uuid for word in words(shard) for uuid in re.findall(r"GPU-gpu-\w-\d+", word)}
        assert named <= set(seat.gpus), f"{named - set(seat.gpus)} belong to others"
        for command in shard.spec["commands"]:
            assert "CUDA_VISIBLE_DEVICES" not in command["env"], "indices are only known at start"
            assert command["env"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@settings(max_examples=150, deadline=None)
@given(launches())
def test_no_command_names_a_port_outside_its_block(made: tuple[str, cases.Case]) -> None:
    _, case = made
    block = {str(port) for port in case.ports.values()}
    for shard in case.specs():
        named = {
            n for word in words(shard) for n in re.findall(r"(?<![0-9a-f:])\d{5}(?![0-9a-f])", word)
        }
        named |= {n for word in words(shard) for n in re.findall(r"(?<=:)\d{5}$", word)}
        assert named <= block, f"{named - block} are outside the block"
        for command in shard.spec["commands"]:
            if command["wait_for"]:
                assert str(command["wait_for"]["port"]) in block


@settings(max_examples=150, deadline=None)
@given(launches())
def test_each_rank_binds_its_own_address_and_connects_to_another(
    made: tuple[str, cases.Case],
) -> None:
    _, case = made
    for shard in case.specs():
        own = case.desired.nodes[shard.node].address
        assert shard.spec["address"] == own
        if shard.spec["health"]:
            assert shard.spec["health"]["host"] == own


texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=40)
ENGINES = st.sampled_from(("vllm", "sglang", "llamacpp", "sim", "command"))


@settings(max_examples=150, deadline=None)
@given(ENGINES, st.lists(texts, max_size=6), st.sampled_from(RUNTIMES))
def test_arguments_reach_exec_byte_for_byte_in_order_repeats_kept(
    engine: str, args: list[str], runtime: dict[str, str]
) -> None:
    written = [arg.replace("$(", "$$(") for arg in args]
    profile = {"args": written, "command": ["x"] if engine == "command" else [], "runtime": runtime}
    [shard] = cases.make({"profile": profile}, engine=engine).specs()
    sent = json.loads(json.dumps(shard.spec, ensure_ascii=True))
    assert sent["commands"][-1]["argv"][-len(args) or None :] == args or not args


@settings(max_examples=200, deadline=None)
@given(ENGINES, st.dictionaries(st.from_regex(r"\AX_[A-Z]{1,8}\Z"), texts, max_size=4))
def test_variables_reach_exec_byte_for_byte(engine: str, env: dict[str, str]) -> None:
    written = {name: value.replace("$(", "$$(") for name, value in env.items()}
    profile = {"env": written, "command": ["x"] if engine == "command" else []}
    [shard] = cases.make({"profile": profile}, engine=engine).specs()
    sent = json.loads(json.dumps(shard.spec))
    assert env.items() <= sent["commands"][-1]["env"].items()
