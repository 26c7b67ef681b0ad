"""The lab's own bridge: a private /24 that no route of this machine overlaps, with no way out.

Nodes have no default route, and the bridge has no port but theirs, so what they say stays on it.
Interfaces are ours by a random name (bridge) or by being a port of our bridge; others are never
touched.
"""

from __future__ import annotations

import ipaddress
import json
from typing import Any

from tools.labfleet.host import LabError, run, wait_for

RANGE = ipaddress.IPv4Network("10.213.0.0/16")
"""Labs take the first /24 in here that is free on this machine."""

ARP_MS = 100
LISTINGS = 20
INTERRUPTED = "Dump was interrupted"
"""What iproute2 writes, to stderr, when the kernel's list changed while it was read."""


def free_subnet() -> ipaddress.IPv4Network:
    """A /24 that overlaps no route of this machine (but the default route)."""
    routes = _json("ip", "-json", "-4", "route", "show", "table", "all")
    taken = [
        ipaddress.IPv4Network(route["dst"], strict=False)
        for route in routes
        if route["dst"] not in ("default", "broadcast")
    ]
    for subnet in RANGE.subnets(new_prefix=24):
        if not any(subnet.overlaps(other) for other in taken):
            return subnet
    raise LabError("lab", f"no /24 in {RANGE} is free", "take down labs: tools/lab down --all")


def make_bridge(name: str, subnet: ipaddress.IPv4Network) -> None:
    """Make the bridge with the machine's own address, the first of the subnet."""
    run(["ip", "link", "add", name, "type", "bridge", "forward_delay", "0"])
    run(["ip", "address", "add", f"{subnet[1]}/{subnet.prefixlen}", "dev", name])
    # The kernel's second between two ARP questions would be most of a boot's time to SSH.
    run(["ip", "ntable", "change", "name", "arp_cache", "dev", name, "retrans", str(ARP_MS)])
    run(["ip", "link", "set", name, "up"])


def remove_bridge(name: str) -> None:
    """Remove the bridge and what is left of its ports; absent is fine."""
    if not exists(name):
        return
    for port in _json("ip", "-json", "link", "show", "master", name):
        remove_port(port["ifname"], name)
    run(["ip", "link", "delete", name])


def cut(port: str, *, cable: bool) -> None:
    """Cut a node off. Silently at the bridge (its carrier stays, packets vanish), or by `cable`:
    the carrier goes too, which the node notices at once."""
    if cable:
        run(["ip", "link", "set", port, "down"])
    else:
        run(["bridge", "link", "set", "dev", port, "state", "0"])


def join(port: str) -> None:
    """Undo either cut, and wait until packets pass."""
    run(["ip", "link", "set", port, "up"])

    def forwards() -> bool:
        try:
            run(["bridge", "link", "set", "dev", port, "state", "3"])
        except LabError:
            # The carrier comes back a moment after the cable; until then the kernel refuses.
            return False
        return True

    wait_for(f"interface {port} forwarding", forwards, timeout_s=10)


def is_cut(port: str) -> bool:
    """Whether either cut is in force; an absent port (node off) is not cut."""
    link = _link(port)
    if link is None:
        return False
    ports = _json("bridge", "-json", "link", "show", "dev", port)
    return "UP" not in link["flags"] or any(p.get("state") == "disabled" for p in ports)


def remove_port(port: str, bridge: str) -> None:
    """Remove what a power cut left of a node's port, or the next boot finds its name taken."""

    def gone() -> bool:
        link = _link(port)
        if link is None or link.get("master") != bridge:
            return link is None
        try:
            run(["ip", "link", "delete", port])
        except LabError:
            return False  # the kernel is just taking it away itself: look again
        return True

    wait_for(f"interface {port} gone", gone, timeout_s=5)


def exists(name: str) -> bool:
    """Whether an interface of that name exists."""
    return _link(name) is not None


def _link(name: str) -> Any:
    links = _json("ip", "-json", "link", "show")
    # A veth end is listed without its `@peer`.
    return next((link for link in links if link["ifname"] == name), None)


def _json(*argv: str) -> Any:
    """What `ip` or `bridge` lists; asked again while interfaces come and go under its eyes."""
    for _ in range(LISTINGS):
        said = run(argv)
        if INTERRUPTED not in said:
            return json.loads(said or "[]")
    raise LabError(argv[0], f"was interrupted {LISTINGS} times: {' '.join(argv)}")
