"""spec.json of every rank: what it holds, and what is refused before anything starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines import vllm_profile
from engines.base import EngineProfile
from reconciler.core import build
from reconciler.core.changes import Seat
from reconciler.core.codec import from_json
from reconciler.core.model import ResolvedProfile
from reconciler.core.observed import Record
from tests.engines import cases

IB = {"kind": "ib", "adapters": [{"name": "mlx5_0"}, {"name": "mlx5_1"}]}
TWO = {"gpus_per_node": 8, "nodes": 2, "parallel": {"tp": 16}}


def refusal(data: dict[str, Any], engine: str = "vllm") -> str:
    """The text of the ValueError that building the case raises."""
    with pytest.raises(ValueError) as caught:
        cases.make(data, engine=engine).specs()
    return str(caught.value)


def on_fabric(*fabrics: dict[str, Any], name: str = "x") -> dict[str, Any]:
    """A two-node case on the fabric `x`, with these fabrics on the nodes."""
    return {
        "profile": TWO,
        "placement": {"fabric": name},
        "nodes": [{"fabrics": {"x": fabric}} if fabric else {} for fabric in fabrics],
    }


def test_a_spec_has_every_field_of_the_protocol() -> None:
    [spec] = cases.make({"profile": {"gpus_per_node": 1}}, engine="vllm").specs()
    assert set(spec.spec) == {
        *("format", "fleet", "launch", "replica", "seq", "rank", "places", "mode", "restart"),
        *("fingerprint", "profile", "gpu_source", "gpu_index", "address", "network", "commands"),
        *("files", "container", "health", "require_paths", "needs", "start_timeout_s"),
        *("stop_grace_s", "drain_s", "stop_signal", "drain", "engine_version"),
    }


def test_every_rank_asks_all_ranks_that_serve_for_requests_in_flight() -> None:
    specs = cases.make({"profile": TWO}, engine="vllm").specs()
    hosts = [spec.spec["health"]["host"] for spec in specs if spec.spec["health"]]
    assert len(hosts) == 1
    for spec in specs:
        drain = spec.spec["drain"]
        assert drain["at"] == [
            {"host": hosts[0], "port": specs[0].spec["places"][0]["ports"]["http"]}
        ]
        assert "vllm:num_requests_running" in drain["metrics"]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "sim"])
def test_an_engine_behind_a_sidecar_is_asked_at_its_own_port(engine: str) -> None:
    profile = {"gpus_per_node": 1, "ports": ["engine"], "listens": "engine"}
    case = cases.make({"profile": profile}, engine=engine)
    [spec] = case.specs()
    own = case.ports["engine"]
    argv = spec.spec["commands"][-1]["argv"]
    assert argv[argv.index("--port") + 1] == str(own)
    assert spec.spec["health"]["port"] == spec.spec["drain"]["at"][0]["port"] == own
    clients = cases.make({"profile": {**profile, "health": {"port": "http"}}}, engine=engine)
    assert clients.specs()[0].spec["health"]["port"] == case.ports["http"]


def test_an_engine_that_does_not_tell_its_requests_has_nothing_to_ask() -> None:
    data = {"profile": {"gpus_per_node": 1, "command": ["serve"]}}
    [spec] = cases.make(data, engine="command").specs()
    assert spec.spec["drain"] is None


def test_a_spec_reads_back_as_the_record_and_its_profile() -> None:
    case = cases.make({"profile": TWO}, engine="vllm")
    for rank, shard in enumerate(case.specs()):
        data = json.loads(json.dumps(shard.spec))
        record = from_json(Record, data)
        assert (record.rank, record.replica, record.seq) == (rank, "chat-0", 1)
        assert from_json(ResolvedProfile, record.profile) == case.resolved
        assert [place.node for place in record.places] == ["gpu-a", "gpu-b"]
        assert [place.machine_id for place in record.places] == ["0" * 32, "0" * 31 + "1"]


def test_every_rank_names_all_places_with_their_gpus_and_ports() -> None:
    case = cases.make({"profile": TWO}, engine="vllm")
    first, second = case.specs()
    assert first.spec["places"] == second.spec["places"]
    assert first.spec["places"][1]["gpus"] == [f"GPU-gpu-b-{n}" for n in range(8)]
    assert first.spec["places"][0]["ports"] == case.ports


def test_a_declared_gpu_has_the_index_of_its_place_in_the_inventory() -> None:
    gpus = {"klass": "x", "count": 3, "source": "declared", "ids": ["c", "a", "b"]}
    case = cases.make({"profile": {"gpus_per_node": 2}, "nodes": [{"gpus": gpus}]}, engine="sim")
    [shard] = case.specs()
    assert (shard.spec["gpu_source"], shard.spec["gpu_index"]) == ("declared", {"c": 0, "a": 1})


def test_nvml_gpus_have_no_index_in_the_record() -> None:
    [shard] = cases.make({"profile": {"gpus_per_node": 1}}, engine="vllm").specs()
    assert (shard.spec["gpu_source"], shard.spec["gpu_index"]) == ("nvml", {})


def test_the_models_path_and_files_are_looked_for_on_each_node_of_its_pool() -> None:
    model = {"path": "/models/m", "paths": {"l40s": "/data/m"}, "files": ["a.json", "/etc/b"]}
    case = cases.make({"model": model, "nodes": [{"pool": "l40s"}]}, engine="vllm")
    [shard] = case.specs()
    assert shard.spec["require_paths"] == ["/data/m", "/data/m/a.json", "/etc/b"]
    assert "/data/m" in shard.spec["commands"][0]["argv"]


def test_rpc_workers_need_no_weights_on_their_node() -> None:
    data = {"profile": {"gpus_per_node": 1, "nodes": 2}, "model": {"path": "/m.gguf"}}
    leader, worker = cases.make(data, engine="llamacpp").specs()
    assert leader.spec["require_paths"] == ["/m.gguf"]
    assert worker.spec["require_paths"] == []


def test_rpc_workers_on_ipv6_are_refused_because_the_program_cannot_bind_it() -> None:
    data = {"profile": {"nodes": 2}, "nodes": [{}, {"address": "2001:db8::11"}]}
    assert refusal(data, "llamacpp") == (
        "node gpu-b: llama.cpp's RPC takes IPv4 addresses alone, this is 2001:db8::11; "
        "set management.address"
    )


def test_the_same_arguments_give_the_same_specs() -> None:
    case = cases.make({"profile": TWO}, engine="vllm")
    assert case.specs() == case.specs()


def test_gpus_of_two_types_are_refused_but_for_llama_cpp() -> None:
    nodes = [{}, {"gpus": {"klass": "l40s-48gb", "count": 8}}]
    assert refusal({"profile": TWO, "nodes": nodes}) == (
        "launch chat-0-k3f9a: GPUs of 2 types (h100-80gb, l40s-48gb); engine vllm needs one type"
    )
    mixed = cases.make({"profile": {"nodes": 2}, "nodes": nodes}, engine="llamacpp")
    assert len(mixed.specs()) == 2
    assert build.allowed_gpus_mixed(mixed.resolved)


def test_a_node_without_the_fabric_is_refused_and_never_falls_back_to_tcp() -> None:
    assert refusal(on_fabric(IB, {})) == "node gpu-b: has no fabric x"


def test_different_numbers_of_adapters_are_refused() -> None:
    one = {"kind": "ib", "adapters": [{"name": "mlx5_0"}]}
    assert refusal(on_fabric(IB, one)) == (
        "fabric x: gpu-a has 2 ib adapters and gpu-b has 1 ib; ranks pair them by place in the list"
    )


def test_a_fabric_that_names_no_adapter_is_refused() -> None:
    assert refusal(on_fabric({"kind": "ib"}, {"kind": "ib"})) == (
        "node gpu-a: fabric x (ib) names no adapter"
    )


def test_roce_without_a_gid_index_is_refused() -> None:
    roce = {"kind": "roce", "adapters": [{"name": "mlx5_0"}]}
    assert "is roce and has no gid_index" in refusal(on_fabric({**roce, "gid_index": 3}, roce))


def test_infiniband_never_has_a_gid_index() -> None:
    case = cases.make(on_fabric({**IB, "gid_index": 3}, {**IB, "gid_index": 3}), engine="vllm")
    for shard in case.specs():
        assert "NCCL_IB_GID_INDEX" not in shard.spec["commands"][0]["env"]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([{"name": "mlx5_0", "port": 1}], "adapter mlx5_1 port 1, which the node does not have"),
        (
            [{"name": "mlx5_0", "port": 1}, {"name": "mlx5_1", "port": 1, "state": "1: DOWN"}],
            "adapter mlx5_1 port 1 of fabric x is 1: DOWN",
        ),
        (
            [
                {"name": "mlx5_0", "port": 1, "link_layer": "InfiniBand"},
                {"name": "mlx5_1", "port": 1, "link_layer": "Ethernet"},
            ],
            "adapter mlx5_1 port 1 of fabric x is Ethernet, its document says kind ib",
        ),
    ],
)
def test_an_adapter_that_is_absent_down_or_of_another_kind_is_refused(
    seen: list[dict[str, Any]], expected: str
) -> None:
    data = on_fabric(IB, IB) | {"network": {"gpu-a": {"adapters": seen}}}
    assert expected in refusal(data)


def test_a_node_that_shows_no_adapters_at_all_is_not_judged() -> None:
    assert len(cases.make(on_fabric(IB, IB), engine="vllm").specs()) == 2


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("mlx5_1", "mlx5_10:1"),
        ("=mlx5_10:1", "mlx5_10:1"),
        ("mlx5_0:1,mlx5_1", "mlx5_10:1"),
        ("=mlx5_0", "mlx5_0:2"),
        ("mlx5_0:2", "mlx5_0:2"),
    ],
)
def test_an_adapter_list_that_takes_another_fabrics_adapter_is_refused(
    value: str, taken: str
) -> None:
    data = on_two_fabrics(env={"NCCL_IB_HCA": value})
    assert f"NCCL_IB_HCA={value} takes {taken} of fabric y, the placement's is x" in refusal(data)


def on_two_fabrics(**profile: Any) -> dict[str, Any]:
    """Two nodes on fabric x, with fabric y on another adapter and on a second port of the first."""
    fabrics = {
        "x": IB,
        "y": {"kind": "ib", "adapters": [{"name": "mlx5_0", "port": 2}, {"name": "mlx5_10"}]},
    }
    return {
        "profile": {**TWO, **profile},
        "placement": {"fabric": "x"},
        "nodes": [{"fabrics": fabrics}, {"fabrics": fabrics}],
    }


@pytest.mark.parametrize(
    ("variable", "value", "taken"),
    [
        ("UCX_NET_DEVICES", "all", "mlx5_0:2"),
        ("UCX_NET_DEVICES", "mlx5_0:1,mlx5_0:2", "mlx5_0:2"),
        ("NVSHMEM_HCA_LIST", "mlx5_10:1", "mlx5_10:1"),
        ("NVSHMEM_HCA_PE_MAPPING", "mlx5_0:1:2,mlx5_10:1:2", "mlx5_10:1"),
    ],
)
def test_each_librarys_own_list_is_compared_with_the_inventory(
    variable: str, value: str, taken: str
) -> None:
    said = refusal(on_two_fabrics(env={variable: value}))
    assert f"{variable}={value} takes {taken} of fabric y" in said


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NCCL_IB_HCA", "=mlx5_0:1"),
        ("UCX_NET_DEVICES", "mlx5_1:1"),
        ("UCX_NET_DEVICES", "mlx5_0:1"),
        ("NVSHMEM_HCA_LIST", "mlx5_1"),
    ],
)
def test_a_name_is_no_prefix_outside_nccl_and_another_port_is_another_adapter(
    variable: str, value: str
) -> None:
    for spec in cases.make(on_two_fabrics(env={variable: value}), engine="vllm").specs():
        assert spec.spec["commands"][0]["env"][variable] == value


def test_a_flag_that_names_another_fabrics_adapter_is_refused_in_each_form() -> None:
    for value in ("mlx5_1,mlx5_10", '{"0": "mlx5_10", "1": "mlx5_1"}'):
        data = on_two_fabrics(args=["--disaggregation-ib-device", value])
        assert f"--disaggregation-ib-device={value} takes mlx5_10:1" in refusal(data, "sglang")


def test_an_exact_list_of_this_fabrics_adapters_is_respected() -> None:
    data = on_fabric(IB, IB)
    data["profile"] = {**TWO, "env": {"NCCL_IB_HCA": "=mlx5_1:1"}}
    for shard in cases.make(data, engine="vllm").specs():
        assert shard.spec["commands"][0]["env"]["NCCL_IB_HCA"] == "=mlx5_1:1"


def test_an_interface_named_for_all_nodes_must_be_on_each() -> None:
    network = {
        "gpu-a": {"interfaces": [{"name": "eno1"}]},
        "gpu-b": {"interfaces": [{"name": "eth0"}]},
    }
    data = {"profile": {**TWO, "env": {"NCCL_SOCKET_IFNAME": "eno"}}, "network": network}
    assert "node gpu-b: env NCCL_SOCKET_IFNAME=eno, but it has no interface eno" in refusal(data)


def test_a_host_name_with_several_addresses_is_refused_with_what_to_set() -> None:
    interfaces = [
        {"name": n, "up": True, "addresses": [a]}
        for n, a in (("a", "10.0.0.1/8"), ("b", "10.1.0.1/8"))
    ]
    data = {
        "nodes": [{"address": "gpu-a.example"}],
        "network": {"gpu-a": {"interfaces": interfaces}},
    }
    assert refusal(data).endswith("set management.address")


def test_bootstrap_over_a_fabric_needs_an_address_there() -> None:
    data = on_fabric(IB, IB)
    data["profile"] = {**TWO, "bootstrap": "fabric"}
    assert "the fabric has no address there" in refusal(data)
    assert "names no fabric" in refusal({"profile": {**TWO, "bootstrap": "fabric"}})


@pytest.mark.parametrize("args", [["-q", "fp8"], ["-qfp8"], ["--quantization=fp8"]])
def test_quantization_is_seen_in_every_spelling_that_the_engine_takes(args: list[str]) -> None:
    profile = EngineProfile("p", engine="vllm", args=tuple(args))
    assert vllm_profile.quantization(profile) == "fp8"


def test_quantization_that_the_gpu_cannot_do_names_the_node() -> None:
    data = {
        "profile": {"args": ["--quantization", "fp8"]},
        "nodes": [{"gpus": {"klass": "v100", "count": 8, "capability": "7.0"}}],
    }
    assert refusal(data) == (
        "node gpu-a: quantization fp8 needs compute capability 7.5, this GPU has 7.0"
    )


def test_a_node_that_gave_no_answer_is_refused() -> None:
    case = cases.make({}, engine="vllm")
    with pytest.raises(ValueError, match="node gpu-a: gave no answer"):
        build.build_specs(
            desired=case.desired,
            placement=case.placement,
            resolved=case.resolved,
            seats=case.seats,
            ports=case.ports,
            replica="chat-0",
            ordinal=0,
            launch="chat-0-x",
            seq=1,
            fingerprint="",
            answers={},
        )


@pytest.mark.parametrize(
    ("seats", "expected"),
    [
        ((Seat("gpu-a", ()),), "0 GPUs were given, profile chat takes 1"),
        ((Seat("gpu-a", ("GPU-gpu-a-0",)),) * 2, "runs on 1 nodes, 2 were given"),
    ],
)
def test_seats_that_do_not_fit_the_profile_are_refused(
    seats: tuple[Seat, ...], expected: str
) -> None:
    case = cases.make({}, engine="vllm")
    with pytest.raises(ValueError, match=expected):
        cases.Case(
            case.name, case.desired, case.placement, case.resolved, case.answers, seats
        ).specs()


def test_only_ranks_that_serve_have_health() -> None:
    def serving(**profile: Any) -> list[bool]:
        data = {"profile": {"gpus_per_node": 8, "nodes": 2, **profile}}
        return [s.spec["health"] is not None for s in cases.make(data, engine="vllm").specs()]

    assert serving(parallel={"tp": 16}) == [True, False]
    assert serving(parallel={"dp": 16}) == [True, False]
    assert serving(parallel={"dp": 16, "dp_balancing": "hybrid"}) == [True, True]
    assert serving(parallel={"tp": 8, "dp": 2, "dp_balancing": "external"}) == [True, True]
    assert serving(parallel={"tp": 16}, executor="ray") == [True, False]


def test_a_spec_names_secrets_and_where_they_will_lie_but_only_where_there_are_some() -> None:
    data = {"gpus_per_node": 1, "secrets": {"K": "reconciler:hf_token", "N": "/etc/n"}}
    [shard] = cases.make({"profile": data}, engine="vllm").specs()
    launch = shard.spec["launch"]
    [command] = shard.spec["commands"]
    assert shard.spec["secrets"] == ["hf_token"]
    assert command["env_files"]["N"] == "/etc/n"
    assert command["env_files"]["K"].endswith(f"/launches/{launch}/secrets/hf_token")
    [without] = cases.make({"profile": {"gpus_per_node": 1}}, engine="vllm").specs()
    assert "secrets" not in without.spec


def test_a_container_sees_the_folder_of_secrets_only_where_there_are_some() -> None:
    image = {"kind": "container", "image": "vllm:1", "tool": "podman"}
    for secrets, mounted in (({"K": "reconciler:k"}, True), ({"K": "/etc/k"}, False), ({}, False)):
        data = {"gpus_per_node": 1, "runtime": image, "secrets": secrets}
        [shard] = cases.make({"profile": data}, engine="vllm").specs()
        argv = shard.spec["commands"][-1]["argv"]
        mounts = [word for word in argv if word.startswith("type=bind") and "/secrets" in word]
        assert bool(mounts) == mounted, argv
        assert all(word.endswith("/secrets,readonly") for word in mounts)
