"""Adapters of a fabric that do not lie on it: told before a start, which would hang."""

from __future__ import annotations

import dataclasses

from reconciler.core import rails
from reconciler.core.model import AdapterPort, GpuInventory, Node, NodeFabric
from reconciler.core.observed import AdapterSeen, InterfaceSeen, Network, NodeAnswer
from tests.core.ask_plan import planned
from tests.core.build_world import World

PORTS = ("rocep1s0f0", "roceP2p1s0f0", "rocep1s0f1", "roceP2p1s0f1")
FABRIC = NodeFabric("roce", tuple(map(AdapterPort, PORTS)), 3, "ens4", "198.51.100.13")
NODE = Node("a", "10.0.0.1", "p", GpuInventory("none", 0, "declared"), fabrics={"rails": FABRIC})


def seen(*networks: str, up: tuple[bool, ...] = (True,) * 4) -> NodeAnswer:
    """The n-th adapter belongs to interface `ens<n+1>`, which has the n-th network."""
    return NodeAnswer(
        "1.0",
        "m",
        "b",
        network=Network(
            adapters=tuple(
                AdapterSeen(name, 1, "ACTIVE", interface=f"ens{n + 1}")
                for n, name in enumerate(PORTS)
            ),
            interfaces=tuple(
                InterfaceSeen(
                    f"ens{n + 1}",
                    up[n],
                    addresses=tuple(own.split("/")[0] for own in networks[n].split()),
                    networks=tuple(networks[n].split()),
                )
                for n in range(len(PORTS))
            ),
        ),
    )


MIXED = seen("192.0.2.2/24", "169.254.7.9/16", "", "198.51.100.13/24", up=(True, True, False, True))


def test_a_link_local_address_never_counts() -> None:
    assert list(rails.misplaced(NODE, MIXED, "rails")) == [
        "fabric rails: roceP2p1s0f0:1 (ens2) has a link-local address only (169.254.7.9), which no"
        " peer on the fabric reaches; take it out of the list, or give it its address"
    ]


def test_an_adapter_on_another_fabric_of_the_node_is_named_with_it() -> None:
    direct = NodeFabric("roce", (), address="192.0.2.2")
    node = dataclasses.replace(NODE, fabrics={"rails": FABRIC, "direct": direct})
    assert "fabric rails: rocep1s0f0:1 (ens1) has 192.0.2.2, which is on fabric direct" in " ".join(
        rails.misplaced(node, MIXED, "rails")
    )


def test_a_network_of_its_own_is_worth_a_note_since_each_rail_may_have_one() -> None:
    apart = seen("192.0.2.2/24", "198.51.100.14/24", "198.51.100.15/24", "198.51.100.13/24")
    assert list(rails.misplaced(NODE, apart, "rails")) == []
    (note,) = rails.apart(NODE, apart, "rails")
    assert note.startswith(
        "fabric rails: rocep1s0f0:1 (ens1) has 192.0.2.2/24, outside the network of the fabric's"
        " address (198.51.100.13/24)"
    )


def test_nothing_is_said_of_what_cannot_be_told() -> None:
    below_a_bond = seen("", "", "", "198.51.100.13/24")
    older_agent = NodeAnswer(
        "1.0",
        "m",
        "b",
        network=dataclasses.replace(
            MIXED.network,
            interfaces=tuple(
                dataclasses.replace(i, networks=(), addresses=() if n == 1 else i.addresses)
                for n, i in enumerate(MIXED.network.interfaces)
            ),
        ),
    )
    unread = dataclasses.replace(MIXED, network=dataclasses.replace(MIXED.network, error="late"))
    for answer in (below_a_bond, older_agent, unread):
        assert list(rails.misplaced(NODE, answer, "rails")) == []
        assert list(rails.apart(NODE, answer, "rails")) == []
    for fabric in (
        dataclasses.replace(FABRIC, address=""),
        dataclasses.replace(FABRIC, kind="ib", gid_index=None),
    ):
        node = dataclasses.replace(NODE, fabrics={"rails": fabric})
        assert list(rails.misplaced(node, MIXED, "rails")) == []
        assert list(rails.apart(node, MIXED, "rails")) == []


def test_two_machines_on_link_local_addresses_alone_are_a_fabric_too() -> None:
    fabric = NodeFabric("roce", tuple(map(AdapterPort, PORTS[:1])), 3, "ens1", "169.254.7.9")
    node = dataclasses.replace(NODE, fabrics={"rails": fabric})
    answer = seen("169.254.7.9/16", "", "", "")
    assert list(rails.misplaced(node, answer, "rails")) == []


def test_a_replica_is_held_with_the_adapter_that_is_not_on_its_fabric() -> None:
    world = World().with_nodes("gpu-a", "gpu-b", fabrics=("rails",))
    world = world.edit_node("gpu-a", fabrics={"rails": FABRIC})
    world = world.edit_node(
        "gpu-b", fabrics={"rails": dataclasses.replace(FABRIC, address="198.51.100.14")}
    )
    world = world.profile("llama", engine="vllm", gpus_per_node=8, nodes=2)
    world = world.placement("chat", "llama", fabric="rails").answers_with(
        "gpu-a", network=MIXED.network
    )
    assert "link-local address only (169.254.7.9)" in str(planned(world).holds)
