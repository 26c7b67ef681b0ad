"""Whether the adapters that a Node document gives to a fabric lie on it, by their addresses.

An adapter of another link in the list starts, and dies inside the first collective: the libraries
pair adapters by their place in the list. Judged for RoCE alone, and where the document gives the
node's address on the fabric: InfiniBand needs no addresses, and its subnet manager keeps fabrics
apart. An adapter below a bond or a VLAN has no address of its own, and nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface

from reconciler.core.model import Node, NodeFabric
from reconciler.core.observed import InterfaceSeen, NodeAnswer

Address = IPv4Interface | IPv6Interface


def misplaced(node: Node, answer: NodeAnswer, fabric: str) -> Iterator[str]:
    """What keeps adapters of a fabric from being used, each with the value that was seen."""
    own = _home(node.fabrics[fabric], answer)
    for named, addresses in _adapters(node, answer, fabric):
        routable = [a for a in addresses if not a.ip.is_link_local]
        local = [a for a in addresses if a.ip.is_link_local and a.version == 4]
        if local and not routable and not (own and own.ip.is_link_local):
            yield (
                f"{named} has a link-local address only ({local[0].ip}), which no peer on the"
                " fabric reaches; take it out of the list, or give it its address"
            )
        for other, there in _others(node, answer, fabric):
            if own is None or there.network != own.network:
                yield from (
                    f"{named} has {a.ip}, which is on fabric {other} ({there.network}); take it out"
                    " of this one's list"
                    for a in routable
                    if a.network == there.network
                )


def apart(node: Node, answer: NodeAnswer, fabric: str) -> Iterator[str]:
    """Adapters outside the network of the fabric's own address: right where each rail has a network
    of its own, wrong where one is a link to something else. Who wrote the document knows."""
    own = _home(node.fabrics[fabric], answer)
    if own is None or own.network.num_addresses == 1 or any(misplaced(node, answer, fabric)):
        return
    for named, addresses in _adapters(node, answer, fabric):
        routable = [a for a in addresses if not a.ip.is_link_local and a.version == own.version]
        if routable and all(a.network != own.network for a in routable):
            yield (
                f"{named} has {routable[0]}, outside the network of the fabric's address ({own}):"
                " right where each rail has a network of its own, else take it out of the list"
            )


def _adapters(
    node: Node, answer: NodeAnswer, fabric: str
) -> Iterator[tuple[str, tuple[Address, ...]]]:
    """Name, for people, and addresses of those whose interface was seen and is up."""
    own = node.fabrics[fabric]
    if own.kind != "roce" or not own.address or answer.network.error:
        return
    names = {(a.name, a.port): a.interface for a in answer.network.adapters}
    interfaces = {i.name: i for i in answer.network.interfaces}
    for adapter in own.adapters:
        interface = interfaces.get(names.get((adapter.name, adapter.port), ""))
        if interface is not None and interface.up:
            named = f"fabric {fabric}: {adapter.name}:{adapter.port} ({interface.name})"
            yield named, tuple(_parsed(interface))


def _others(node: Node, answer: NodeAnswer, fabric: str) -> Iterator[tuple[str, Address]]:
    for name, other in sorted(node.fabrics.items()):
        home = _home(other, answer) if name != fabric else None
        if home is not None:
            yield name, home


def _home(fabric: NodeFabric, answer: NodeAnswer) -> Address | None:
    """The fabric's address as the node has it; None where it is a name, or not on the node."""
    try:
        wanted = ip_address(fabric.address)
    except ValueError:
        return None
    found = (a for i in answer.network.interfaces for a in _parsed(i))
    return next((a for a in found if a.ip == wanted), None)


def _parsed(interface: InterfaceSeen) -> Iterator[Address]:
    """With their networks, or (from an older agent) each in a network of its own."""
    for text in interface.networks or interface.addresses:
        try:
            yield ip_interface(text)
        except ValueError:
            continue
