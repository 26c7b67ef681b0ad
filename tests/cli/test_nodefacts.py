"""What doctor says of a node: a finding names the value and what to do."""

from __future__ import annotations

import pytest

from reconciler.cli import nodefacts
from reconciler.core.model import AdapterPort, Fleet, GpuInventory, Node, NodeFabric, NodeSsh
from reconciler.core.observed import (
    AdapterSeen,
    GpuSeen,
    GpusPart,
    InterfaceSeen,
    Network,
    NodeAnswer,
    NodeHold,
    NodeLook,
    Resources,
    Shard,
)

FLEET = Fleet("f", "id")
NODE = Node("gpu-a", "10.0.0.1", "p", GpuInventory("none", 0, "declared"))
NOW_S = 1_800_000_000.0
FINE = NodeAnswer(
    "1.0",
    "m",
    "b",
    agent_version="0.3",
    os="Debian GNU/Linux 12 (bookworm)",
    python_version="3.11.2",
    no_system="",
    user="root",
    root="/var/lib/reconcile",
    clock_s=NOW_S + 0.2,
    network=Network(ephemeral=(32768, 60999)),
    resources=Resources(1 << 20, 1 << 20, 1 << 20, "unlimited", 1048576),
)


def said(answer: NodeAnswer, node: Node = NODE) -> list[str]:
    return list(nodefacts.findings(FLEET, node, NodeLook("gpu-a", answer), NOW_S))


def with_(**changes: object) -> NodeAnswer:
    import dataclasses

    return dataclasses.replace(FINE, **changes)  # type: ignore[arg-type]


def test_a_node_in_order_has_no_finding() -> None:
    assert said(FINE) == []


@pytest.mark.parametrize(
    ("answer", "node", "words"),
    [
        (
            with_(no_system="mode system: needs root; set ssh.sudo to root, or use mode plain"),
            Node("gpu-a", "10.0.0.1", "p", GpuInventory("none", 0, "declared"), mode="system"),
            ("needs root", "set ssh.sudo to root", "nothing can be started"),
        ),
        (
            with_(resources=Resources(1, 1, 200, "unlimited", 1)),
            NODE,
            ("200 MiB are free under /var/lib/reconcile", "free some"),
        ),
        (with_(clock_s=NOW_S - 90), NODE, ("-90 s off", "synchronised")),
        (
            with_(resources=Resources(1, 1, None, "8192 KiB", 1)),
            Node(
                "gpu-a",
                "10.0.0.1",
                "p",
                GpuInventory("none", 0, "declared"),
                fabrics={"ib-a": NodeFabric("ib")},
            ),
            ("memlock is 8192 KiB", "ib-a", "limits.conf for root"),
        ),
        (
            with_(hold=NodeHold("ada", "a fan")),
            NODE,
            ("held by ada: a fan", "`reconcile hold gpu-a --clear`"),
        ),
    ],
)
def test_a_finding_names_the_value_and_what_to_do(
    answer: NodeAnswer, node: Node, words: tuple[str, ...]
) -> None:
    (found,) = said(answer, node)
    for word in words:
        assert word in found


def test_a_line_has_a_cell_for_every_head_whatever_is_known() -> None:
    sudo = Node(
        "gpu-a", "a", "p", GpuInventory("none", 0, "declared"), ssh=NodeSsh(user="op", sudo="root")
    )
    for look in (None, NodeLook("gpu-a"), NodeLook("gpu-a", FINE), NodeLook("gpu-a", with_(os=""))):
        told = nodefacts.facts(FLEET, sudo, look, NOW_S)
        assert len(nodefacts.row("gpu-a", told)) == len(nodefacts.HEADS)
    cells = nodefacts.row("gpu-a", nodefacts.facts(FLEET, sudo, NodeLook("gpu-a", FINE), NOW_S))
    assert "root (sudo root)" in cells
    assert "Debian GNU/Linux 12 (bookworm), Python 3.11.2" in cells
    assert "+0.2 s" in cells, "a look that took no time has no error but that of rounding"
    assert "±0.5 s" in nodefacts.row("gpu-a", told_at(look_ms=900.0, off_s=0.4))
    assert "+2.0 s" in nodefacts.row("gpu-a", told_at(look_ms=900.0, off_s=2.0))


def told_at(look_ms: float, off_s: float) -> dict[str, object]:
    """Of a node whose clock is ahead, read in the middle of the look."""
    answer = with_(clock_s=NOW_S + look_ms / 2000 + off_s)
    return nodefacts.facts(FLEET, NODE, NodeLook("gpu-a", answer, look_ms=look_ms), NOW_S)


def test_one_machine_has_one_clock_however_long_a_look_took() -> None:
    for look_ms in (0.0, 40.0, 400.0, 1200.0):
        for read in (0.0, 0.5, 1.0):
            answer = with_(clock_s=NOW_S + read * look_ms / 1000)
            look = NodeLook("gpu-a", answer, look_ms=look_ms)
            cell = nodefacts.row("gpu-a", nodefacts.facts(FLEET, NODE, look, NOW_S))[-1]
            assert cell.startswith("±"), (look_ms, read)


def test_a_former_root_is_told_with_what_lives_there_or_that_it_can_go() -> None:
    node = Node(
        "gpu-a", "a", "p", GpuInventory("none", 0, "declared"), previous_roots=("/old/", "/older")
    )
    living = Shard("chat-0-a", alive=True, former_root="/old")
    ended = Shard("chat-0-b", former_root="/older")
    look = NodeLook("gpu-a", with_(shards=(living, ended)))
    said = [text for text in nodefacts.notes(FLEET, node, look) if "former root" in text]
    assert said == [
        "former root /old/: chat-0-a lives there until it is replaced",
        "former root /older: nothing runs there; it can leave previous_roots",
    ]
    unseen = NodeLook("gpu-a", with_(shards_error="/old/launches: Permission denied"))
    assert not any("former root" in text for text in nodefacts.notes(FLEET, node, unseen))


def test_plain_mode_is_a_note_and_says_where_system_is_possible() -> None:
    def notes(answer: NodeAnswer) -> list[str]:
        return list(nodefacts.notes(FLEET, NODE, NodeLook("gpu-a", answer)))

    assert "it could use mode system" in notes(FINE)[0]
    assert "could use" not in notes(with_(no_system="mode system: needs root"))[0]


def test_a_gpu_is_named_by_its_uuid_where_the_driver_no_longer_numbers_it() -> None:
    uuids = tuple(f"GPU-{n}" for n in range(3))
    node = Node("gpu-a", "10.0.0.1", "p", GpuInventory("h100", 3, ids=uuids))
    left = (GpuSeen(uuids[0], 0, warnings=("Xid 63",)), GpuSeen(uuids[2], 1))
    gone = GpuSeen(uuids[1], -1, error="NVML no longer lists it: Xid 79")
    assert said(with_(gpus=GpusPart((*left, gone))), node) == [
        "GPU 0 (GPU-0): Xid 63",
        "GPU GPU-1: NVML no longer lists it: Xid 79",
    ]
    missing = said(with_(gpus=GpusPart(left)), node)
    assert "GPUs of its document are not there: GPU-1" in missing


def test_an_adapter_that_is_not_on_its_fabric_is_a_finding_and_one_apart_a_note() -> None:
    fabric = NodeFabric("roce", (AdapterPort("mlx5_0"), AdapterPort("mlx5_1")), 3, "", "10.1.0.1")
    node = Node(
        "gpu-a", "10.0.0.1", "p", GpuInventory("none", 0, "declared"), fabrics={"rails": fabric}
    )

    def answer(second: str) -> NodeAnswer:
        networks = ("10.1.0.1/24", second)
        return with_(
            network=Network(
                adapters=tuple(
                    AdapterSeen(f"mlx5_{n}", 1, "ACTIVE", interface=f"ens{n}") for n in range(2)
                ),
                interfaces=tuple(
                    InterfaceSeen(f"ens{n}", True, networks=(own,))
                    for n, own in enumerate(networks)
                ),
            )
        )

    assert any(
        "mlx5_1:1 (ens1) has a link-local" in f for f in said(answer("169.254.1.1/16"), node)
    )
    apart = answer("10.2.0.1/24")
    assert not any("mlx5_1" in finding for finding in said(apart, node))
    notes = nodefacts.notes(FLEET, node, NodeLook("gpu-a", apart))
    assert any("mlx5_1:1 (ens1) has 10.2.0.1/24, outside the network" in note for note in notes)
