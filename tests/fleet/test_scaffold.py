"""A Node document out of what a node answered: it validates, and says what the node has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.observed import (
    AdapterSeen,
    GpuSeen,
    GpusPart,
    InterfaceSeen,
    Network,
    NodeAnswer,
)
from reconciler.fleet.findings import as_text
from reconciler.fleet.limits import Limits
from reconciler.fleet.scaffold import gpu_class, node_document, scalar
from reconciler.fleet.strictyaml import parse
from tests.fleet.repos import BASE, desired, loaded

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGHmbPEiG0owmJkWrNjiCT17tx9CiolHcWBpjh1fRqOw"

H100 = tuple(
    GpuSeen(f"GPU-{n}", n, "NVIDIA H100 80GB HBM3", memory_mib=81559, capability="9.0")
    for n in range(8)
)
ADAPTERS = (
    *(AdapterSeen(f"mlx5_{n}", 1, "4: ACTIVE", "InfiniBand", interface="ib0") for n in (10, 2, 0)),
    AdapterSeen("mlx5_1", 1, "1: DOWN", "InfiniBand"),
    AdapterSeen("rocep1s0f0", 2, "4: ACTIVE", "Ethernet", interface="enp1s0f0"),
)
INTERFACES = (
    InterfaceSeen("lo", True, addresses=("127.0.0.1",)),
    InterfaceSeen("eno1", True, addresses=("10.0.0.9/24",)),
    InterfaceSeen("ib0", True, addresses=("10.1.0.9/24",)),
)
WHOLE = NodeAnswer("1.0", "m", "b", gpus=GpusPart(H100), network=Network(ADAPTERS, INTERFACES))


def document(answer: NodeAnswer) -> str:
    return node_document(
        answer, name="gpu-x", address="10.0.0.9", pool="new", user="ops", port=2222, host_key=KEY
    )


def test_the_document_tells_a_reader_which_gpus_are_linked() -> None:
    halves = tuple(replace(gpu, nvlink_group=gpu.index // 4) for gpu in H100)
    told = document(replace(WHOLE, gpus=GpusPart(halves)))
    assert "# Linked by NVLink: 0 1 2 3, 4 5 6 7.\n" in told
    assert loaded({**BASE, "nodes/x.yaml": told}).findings == ()
    apart = tuple(replace(gpu, nvlink_group=gpu.index) for gpu in H100)
    assert "# Linked by NVLink: none.\n" in document(replace(WHOLE, gpus=GpusPart(apart)))
    assert "NVLink" not in document(WHOLE)


def test_the_document_validates_and_says_what_the_node_has() -> None:
    files = {**BASE, "nodes/x.yaml": document(WHOLE)}
    assert loaded(files).findings == (), as_text(loaded(files).findings)
    node = desired(files).nodes["gpu-x"]
    assert (node.gpus.klass, node.gpus.count, node.gpus.memory_gib) == ("h100-80gb", 8, 79)
    assert node.gpus.capability == "9.0"
    assert (node.ssh.user, node.ssh.port, node.ssh.host_key) == ("ops", 2222, KEY)
    assert node.management.interface == "eno1"
    assert [a.name for a in node.fabrics["ib"].adapters] == ["mlx5_0", "mlx5_2", "mlx5_10"]
    assert node.fabrics["ib"].address == "10.1.0.9"
    assert node.fabrics["roce"].adapters[0].port == 2


def test_a_node_without_gpus_or_fabrics_has_a_document_too() -> None:
    bare = NodeAnswer("1.0", "m", "b")
    node = desired({**BASE, "nodes/x.yaml": document(bare)}).nodes["gpu-x"]
    assert (node.gpus.count, node.fabrics) == (0, {})


@pytest.mark.parametrize(
    ("name", "memory", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "h100-80gb"),
        ("NVIDIA H200", 143771, "h200-140gb"),
        ("NVIDIA L40S", 46068, "l40s-45gb"),
        ("Tesla T4", 15360, "t4-15gb"),
        ("NVIDIA GeForce RTX 4090", 24564, "geforce-rtx-4090-24gb"),
        ("NVIDIA A100-SXM4-80GB", 81920, "a100-80gb"),
        ("", None, "gpu"),
    ],
)
def test_a_gpu_class_comes_from_the_drivers_name(
    name: str, memory: int | None, expected: str
) -> None:
    assert gpu_class(GpuSeen("GPU-0", 0, name, memory_mib=memory)) == expected


@given(st.text(max_size=20))
def test_a_scalar_reads_back_as_itself_whatever_a_node_says(text: str) -> None:
    parsed = parse("a.yaml", f"k: {scalar(text)}\n".encode(), Limits())
    if parsed.findings:
        assert any(not c.isprintable() for c in text), "only control characters are refused"
        return
    assert parsed.documents[0].data == {"k": text}
    assert not parsed.documents[0].odd
