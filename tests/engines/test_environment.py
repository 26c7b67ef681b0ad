"""What each library is told, in its own syntax, whatever the profile and the node's login say."""

from __future__ import annotations

from typing import Any

import pytest

from engines import environment
from engines.base import Adapter, Fabric, Host
from reconciler.agent.environment import base
from tests.engines import cases

IB = {"kind": "ib", "adapters": [{"name": "mlx5_0"}]}
TWO = {"gpus_per_node": 8, "nodes": 2, "parallel": {"tp": 16}}
NODES = [
    {"management": {"interface": "eno1"}, "fabrics": {"x": IB}},
    {"management": {"interface": "enp6s0"}, "fabrics": {"x": IB}},
]


def envs(engine: str = "vllm", **data: Any) -> list[dict[str, str]]:
    """The environment of each rank's last command."""
    made = cases.make({"profile": TWO, "nodes": NODES, **data}, engine=engine)
    return [spec.spec["commands"][-1]["env"] for spec in made.specs()]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_each_rank_is_told_its_own_address(engine: str) -> None:
    """Else both ask the kernel for the way to a public address: the default route's, or the
    127.0.1.1 that /etc/hosts has for the machine's own name."""
    name = {"vllm": "VLLM_HOST_IP", "sglang": "SGLANG_HOST_IP"}[engine]
    assert [env[name] for env in envs(engine)] == ["10.0.0.1", "10.0.0.2"]


def test_over_a_fabric_the_address_is_the_fabrics() -> None:
    fabrics = [
        {"fabrics": {"x": {**IB, "address": f"10.9.0.{n}", "interface": "ib0"}}} for n in (1, 2)
    ]
    data = {
        "profile": {**TWO, "bootstrap": "fabric"},
        "placement": {"fabric": "x"},
        "nodes": fabrics,
    }
    assert [env["SGLANG_HOST_IP"] for env in envs("sglang", **data)] == ["10.9.0.1", "10.9.0.2"]


def test_nvshmem_meets_over_the_nodes_own_interface_exactly() -> None:
    found = [env["NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"] for env in envs(placement={"fabric": "x"})]
    assert found == ["=eno1", "=enp6s0"]


def test_without_a_fabric_ucx_keeps_to_the_nodes_interface() -> None:
    assert [env["UCX_NET_DEVICES"] for env in envs()] == ["eno1", "enp6s0"]


def test_on_ipv6_the_libraries_take_the_interfaces_ipv6_address() -> None:
    nodes = [{**node, "address": f"2001:db8::{n}"} for n, node in enumerate(NODES, 10)]
    for env in envs(nodes=nodes, placement={"fabric": "x"}):
        assert env["NCCL_SOCKET_FAMILY"] == "AF_INET6"
        assert env["NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY"] == "AF_INET6"
    for env in envs(placement={"fabric": "x"}):
        assert "NCCL_SOCKET_FAMILY" not in env


def test_only_one_variable_tells_the_accelerators() -> None:
    gpus = {"klass": "mi300x", "count": 8, "source": "declared"}
    for visible_by in ("HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        data = {"nodes": [{"gpus": {**gpus, "visible_by": visible_by}}]}
        [spec] = cases.make(data, engine="vllm").specs()
        assert spec.spec["commands"][0]["gpu_env"] == [visible_by]
        assert "CUDA_DEVICE_ORDER" not in spec.spec["commands"][0]["env"]
    [spec] = cases.make({"nodes": [{"gpus": gpus}]}, engine="vllm").specs()
    assert spec.spec["commands"][0]["gpu_env"] == ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.parametrize(
    "leak",
    [
        "CUDA_VISIBLE_DEVICES",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
        "RAY_ADDRESS",
        "VLLM_HOST_IP",
        "VLLM_PORT",
        "HOST_IP",
        "SGLANG_PORT",
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_DISABLE",
        "HF_TOKEN",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "LLAMA_ARG_PORT",
        "http_proxy",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "PYTHONPATH",
        "LD_PRELOAD",
    ],
)
def test_what_a_login_carries_reaches_no_engine(leak: str) -> None:
    """A stale export in a profile file would set what no flag sets, on one node of several."""
    assert leak not in base({leak: "x", "PATH": "/bin"})


def test_every_variable_says_what_happens_without_it_and_stands_in_the_table_once() -> None:
    fabric = Fabric("x", "roce", (Adapter("mlx5_0"),), 3)
    for host in (Host("n", "10.0.0.1", ()), Host("n", "10.0.0.1", (), fabric=fabric)):
        rows = environment.GPU_ROWS + environment.rows(host)
        assert all(row.without for row in rows)
        assert len({row.name for row in rows}) == len(rows)
