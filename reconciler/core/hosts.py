"""Nodes as the ranks of a launch see them: addresses, interfaces, fabric, GPUs, paths.

Everything comes from the node's document and, where it is silent, from the node's own answer. What
cannot hold is refused here with a ValueError: a rank that lacks the fabric would fall back to TCP
alone, and all ranks would hang.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from engines import capability
from engines.base import CUDA, Adapter, Fabric, Gpu, Host
from reconciler.core.changes import Seat
from reconciler.core.model import Desired, Model, Node, NodeFabric, Placement, ResolvedProfile
from reconciler.core.observed import NodeAnswer

RDMA = ("ib", "roce")
LINK_LAYERS = {"ib": "InfiniBand", "roce": "Ethernet"}
"""What /sys/class/infiniband/*/ports/*/link_layer says of a kind of fabric."""

DECLARED = "declared"
PARTS = re.compile(r"(.*)-(0*1)-of-([0-9]+)\.gguf")
MOST_PARTS = 1000
"""More are no model: a number in YAML must not become a list of its size."""


def host_of(
    desired: Desired,
    placement: Placement | None,
    resolved: ResolvedProfile,
    seat: Seat,
    launch: str,
    answer: NodeAnswer | None,
) -> Host:
    """One rank's host. Without an answer (a command shown offline) paths of the node are left out.

    Raises ValueError where the fabric or an address is missing.
    """
    node, profile = desired.nodes[seat.node], resolved.profile
    fabric = _fabric(node, placement.fabric if placement else "", answer)
    serve = serve_address(node, answer)
    address, interface = _bootstrap(node, profile.bootstrap, fabric, serve, answer)
    own = node.engines.get(profile.engine)
    fleet = desired.fleet.engines.get(profile.engine)
    binary = own.path if own and own.path else ""
    if not binary and not profile.runtime.path and fleet:
        binary = fleet.path
    return Host(
        node=node.name,
        address=address,
        serve_address="" if serve == address else serve,
        interface=interface,
        gpus=tuple(_gpu(node, uuid, answer) for uuid in seat.gpus),
        fabric=fabric,
        visible_by=node.gpus.visible_by or CUDA,
        model_path=model_path(resolved.model, node.pool),
        model_files=tuple(_files(resolved.model, node.pool)),
        launch_dir=f"{answer.root if answer else '<root>'}/launches/{launch}",
        agent=answer.agent if answer else "<agent>",
        python=(answer.python if answer else "") or "python3",
        binary=binary,
        programs=_programs(desired, node),
    )


def model_path(model: Model, pool: str) -> str:
    """Where the weights lie on the nodes of `pool`."""
    return model.paths.get(pool, model.path)


def required_paths(model: Model, pool: str) -> list[str]:
    """What must be there before a start: the weights, all parts of them, and the model's files."""
    path = model_path(model, pool)
    return [item for item in (*_parts(path), *_files(model, pool)) if item]


def _files(model: Model, pool: str) -> list[str]:
    path = model_path(model, pool)
    folder = posixpath.dirname(path) if path.endswith(".gguf") else path
    return [posixpath.normpath(posixpath.join(folder, name)) for name in model.files]


def _parts(path: str) -> list[str]:
    """llama.cpp is given the first of several parts; one that lacks ends it after minutes."""
    found = PARTS.fullmatch(path)
    if found is None or int(found[3]) > MOST_PARTS:
        return [path]
    width = len(found[2])
    return [f"{found[1]}-{n:0{width}}-of-{found[3]}.gguf" for n in range(1, int(found[3]) + 1)]


def serve_address(node: Node, answer: NodeAnswer | None) -> str:
    """The node's own address on the management network: HTTP is served there.

    `address` may be a name for SSH alone; then the management interface's, or the node's only
    address, is taken. Offline (no answer) the name stands. Raises ValueError where it is not
    clear.
    """
    if node.management.address:
        return node.management.address
    if answer is None or _ip(node.address) is not None:
        return node.address
    found = [
        address
        for interface in answer.network.interfaces
        if interface.name == (node.management.interface or interface.name) and interface.up
        for address in map(_bare, interface.addresses)
        if _is_usable(address)
    ]
    if len(found) == 1 or (found and node.management.interface):
        return found[0]
    raise ValueError(
        f"node {node.name}: address {node.address} is a name and the node has "
        f"{len(found)} addresses ({', '.join(found) or 'none seen'}); set management.address"
    )


def interface_of(address: str, answer: NodeAnswer | None) -> str:
    """The interface that carries `address`, as the node says; empty where it does not."""
    wanted = _ip(address)
    if answer is None or wanted is None:
        return ""
    for interface in answer.network.interfaces:
        if any(_ip(_bare(own)) == wanted for own in interface.addresses):
            return interface.name
    return ""


def check_fabric(desired: Desired, placement: Placement, seats: Sequence[Seat]) -> None:
    """Whether all ranks have the fabric in the same way. Raises ValueError with both sides."""
    if not placement.fabric:
        return
    found = [(seat.node, desired.nodes[seat.node].fabrics.get(placement.fabric)) for seat in seats]
    first_node, first = found[0]
    for name, fabric in found:
        if fabric is None:
            raise ValueError(f"node {name}: has no fabric {placement.fabric}")
        if fabric.kind in RDMA and not fabric.adapters:
            raise ValueError(
                f"node {name}: fabric {placement.fabric} ({fabric.kind}) names no adapter"
            )
        if fabric.kind == "roce" and fabric.gid_index is None:
            raise ValueError(
                f"node {name}: fabric {placement.fabric} is roce and has no gid_index; "
                "the default index may not reach the peer"
            )
        assert first is not None
        if (fabric.kind, len(fabric.adapters)) != (first.kind, len(first.adapters)):
            raise ValueError(
                f"fabric {placement.fabric}: {first_node} has {len(first.adapters)} {first.kind} "
                f"adapters and {name} has {len(fabric.adapters)} {fabric.kind}; ranks pair them by "
                "place in the list"
            )


def gpu_index(node: Node, gpus: Sequence[str]) -> dict[str, int]:
    """The index of each declared GPU: its place in the inventory."""
    listed = node.gpus.ids or tuple(f"{node.name}-gpu-{n}" for n in range(node.gpus.count))
    absent = [gpu for gpu in gpus if gpu not in listed]
    if absent:
        raise ValueError(f"node {node.name}: GPU {absent[0]} is not in its declared inventory")
    return {gpu: listed.index(gpu) for gpu in gpus}


# --- Parts ------------------------------------------------------------------------------------


def _bootstrap(
    node: Node, network: str, fabric: Fabric | None, serve: str, answer: NodeAnswer | None
) -> tuple[str, str]:
    if network != "fabric":
        interface = node.management.interface or interface_of(serve, answer)
        return serve, interface
    if fabric is None or not fabric.address:
        raise ValueError(
            f"node {node.name}: ranks find each other over the fabric (bootstrap: fabric), but "
            f"{'the fabric has no address there' if fabric else 'the placement names no fabric'}"
        )
    return fabric.address, fabric.interface or interface_of(fabric.address, answer)


def _fabric(node: Node, name: str, answer: NodeAnswer | None) -> Fabric | None:
    if not name:
        return None
    found = node.fabrics.get(name)
    if found is None:
        have = ", ".join(sorted(node.fabrics)) or "none"
        raise ValueError(f"node {node.name}: has no fabric {name} (it has {have})")
    _check_adapters(node, name, found, answer)
    adapters = tuple(Adapter(adapter.name, adapter.port) for adapter in found.adapters)
    return Fabric(name, found.kind, adapters, found.gid_index, found.interface, found.address)


def _check_adapters(node: Node, name: str, fabric: NodeFabric, answer: NodeAnswer | None) -> None:
    """A node that shows adapters must show these, with a live port; one that shows none is not
    judged: a container or an unprivileged look may not see them."""
    if answer is None or not answer.network.adapters:
        return
    seen = {(adapter.name, adapter.port): adapter for adapter in answer.network.adapters}
    for adapter in fabric.adapters:
        found = seen.get((adapter.name, adapter.port))
        if found is None:
            raise ValueError(
                f"node {node.name}: fabric {name} names adapter {adapter.name} port "
                f"{adapter.port}, which the node does not have"
            )
        expected = LINK_LAYERS.get(fabric.kind, "")
        if found.link_layer and expected and found.link_layer != expected:
            raise ValueError(
                f"node {node.name}: adapter {adapter.name} port {adapter.port} of fabric {name} is "
                f"{found.link_layer}, its document says kind {fabric.kind}; only RoCE needs a GID "
                "index, and InfiniBand must not have one"
            )
        if found.state and "ACTIVE" not in found.state.upper():
            raise ValueError(
                f"node {node.name}: adapter {adapter.name} port {adapter.port} of fabric {name} is "
                f"{found.state}"
            )


def _gpu(node: Node, uuid: str, answer: NodeAnswer | None) -> Gpu:
    memory = node.gpus.memory_gib * 1024 or None
    text = node.gpus.capability
    index: int | None = None
    if node.gpus.source == DECLARED:
        index = gpu_index(node, (uuid,))[uuid]
    for seen in answer.gpus.items if answer else ():
        if seen.uuid == uuid:
            index, memory = seen.index, seen.memory_mib or memory
            text = seen.capability or text
    return Gpu(uuid, index, node.gpus.klass, memory, capability.parse(text))


def _programs(desired: Desired, node: Node) -> Mapping[str, str]:
    layers = (desired.fleet.engines, node.engines)
    return {name: s.path for layer in layers for name, s in layer.items() if s.path}


def _bare(address: str) -> str:
    return address.split("/", 1)[0].split("%", 1)[0]


@lru_cache(maxsize=65536)
def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that `text` writes; None: a name. Every start on a node asks for the same few."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _is_usable(text: str) -> bool:
    address = _ip(text)
    if address is None:
        return False
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)
