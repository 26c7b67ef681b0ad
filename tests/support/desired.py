"""A `Desired` over loopback nodes, for tests of what talks to nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reconciler.core.model import Desired, Fleet, GpuInventory, Node, NodeSsh, Revision
from reconciler.nodes.loopback import LoopbackFleet, LoopbackNode

FLEET_ID = "5f3c2c6e-0d5b-4c39-9d5e-0f4f7a3f2b11"


def node_of(node: LoopbackNode, gpus: int = 8, **changes: Any) -> Node:
    """The Node document of a loopback node, with declared GPUs."""
    return Node(
        name=node.name,
        address=node.address,
        pool="loopback",
        gpus=GpuInventory(klass="none", count=gpus, source="declared"),
        ssh=NodeSsh(
            user=node.user,
            port=node.port,
            host_key=node.host_key,
            identity_file=str(node.identity_file),
        ),
        **changes,
    )


def desired_of(fleet: LoopbackFleet, **settings: Any) -> Desired:
    """All nodes of `fleet`; `settings` are fields of the Fleet document."""
    document = Fleet(name="loopback", id=FLEET_ID, **{"observe_timeout_s": 10, **settings})
    nodes = {name: node_of(node) for name, node in fleet.nodes.items()}
    return Desired(Revision(commit="0" * 40), document, nodes)


def with_node(desired: Desired, node: Node) -> Desired:
    """`desired` with one Node document replaced."""
    return replace(desired, nodes={**desired.nodes, node.name: node})
