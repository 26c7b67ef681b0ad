"""Node documents: inventories that contradict themselves or each other."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Iterator

from reconciler.core.changes import Reason
from reconciler.core.model import Fleet, Node, NodeState
from reconciler.fleet.findings import Finding, quoted
from reconciler.fleet.repo import EXAMPLE_FLEET_ID, Entry, Repo
from reconciler.fleet.strictyaml import Path

HOST_KEY_TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)
"""Key types as OpenSSH 9 names them in `ssh-keyscan`'s answer; DSA is refused everywhere today."""

_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""As nvmlDeviceGetUUID writes it (NVML API reference)."""

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_DOCUMENTATION = tuple(
    ipaddress.ip_network(n)
    for n in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
)
"""RFC 5737 and RFC 3849: addresses that no machine has."""


def check(repo: Repo) -> Iterator[Finding]:
    """Findings about nodes alone and about pairs of nodes."""
    fleet = next(iter(repo.values("Fleet").values()), None)
    for entry in repo.of("Fleet").values():
        yield from _identity(repo, entry, entry.value.ssh.identity_file)
    addresses: dict[tuple[str, int], Entry] = {}
    keys: dict[str, Entry] = {}
    gpus: dict[str, Entry] = {}
    for name in sorted(repo.of("Node")):
        entry = repo.of("Node")[name]
        node = entry.value
        yield from _state(repo, entry, node)
        yield from _gpus(repo, entry, node, gpus)
        yield from _links(repo, entry, node)
        yield from _host_key(repo, entry, node, keys)
        yield from _identity(repo, entry, node.ssh.identity_file)
        yield from _address(repo, entry, node, fleet, addresses)
        yield from _usable(repo, entry, node)
        if node.management.interface.startswith("ib"):
            message = f"{quoted(node.management.interface)} looks like IP over InfiniBand"
            hint = "ranks then meet on the fabric's own network: all nodes of a replica need one"
            path: Path = ("management", "interface")
            yield repo.finding(entry, path, message, hint, reason=Reason.INFEASIBLE, warning=True)


def _state(repo: Repo, entry: Entry, node: Node) -> Iterator[Finding]:
    if node.state is NodeState.ACTIVE or node.reason.strip():
        return
    lost = node.state is NodeState.LOST
    message = f"it is {node.state.value} without a reason"
    hint = (
        "say who knows that it is off, and how: what it held is taken as free"
        if lost
        else "say why, for the next person"
    )
    yield repo.finding(
        entry, ("state",), message, hint, reason=Reason.SCHEMA_FAILED, warning=not lost
    )


def _gpus(repo: Repo, entry: Entry, node: Node, seen: dict[str, Entry]) -> Iterator[Finding]:
    inventory = node.gpus
    path: Path
    failed = Reason.SCHEMA_FAILED
    if inventory.ids and len(inventory.ids) != inventory.count:
        message = f"{len(inventory.ids)} ids for {inventory.count} GPUs"
        hint = "give one id a GPU, or none"
        yield repo.finding(entry, ("gpus", "ids"), message, hint, reason=failed)
    if inventory.source == "nvml" and inventory.visible_by:
        message = "visible_by is only for source 'declared'; with NVML it is CUDA_VISIBLE_DEVICES"
        yield repo.finding(entry, ("gpus", "visible_by"), message, "remove it", reason=failed)
    for index, gpu in enumerate(inventory.ids):
        if gpu.startswith("MIG-"):
            message = f"{quoted(gpu)} is a MIG instance; these are not placed yet"
            path = ("gpus", "ids", index)
            yield repo.finding(entry, path, message, "list whole GPUs", reason=Reason.INFEASIBLE)
        elif inventory.source == "nvml" and not _UUID.fullmatch(gpu):
            message = f"{quoted(gpu)} is no UUID of a GPU, and the driver names its GPUs itself"
            hint = "list what `nvidia-smi -L` shows on the node, or remove the ids"
            yield repo.finding(entry, ("gpus", "ids", index), message, hint, reason=failed)
        known = seen.setdefault(gpu, entry)
        if known is not entry:
            message = f"{known.subject} has the GPU {quoted(gpu)} too"
            hint = "ids are unique in the fleet: put the node's name in front"
            yield repo.finding(entry, ("gpus", "ids", index), message, hint)
    if "mig" in inventory.klass.replace("_", "-").replace(".", "-").split("-"):
        message = f"{quoted(inventory.klass)} names MIG instances; these are not placed yet"
        path = ("gpus", "class")
        yield repo.finding(entry, path, message, "list whole GPUs", reason=Reason.INFEASIBLE)


def _links(repo: Repo, entry: Entry, node: Node) -> Iterator[Finding]:
    inventory = node.gpus
    failed = Reason.SCHEMA_FAILED
    if inventory.source == "nvml" and inventory.link_groups:
        message = "link_groups are only for source 'declared'; the driver tells which are linked"
        yield repo.finding(entry, ("gpus", "link_groups"), message, "remove them", reason=failed)
        return
    seen: dict[int, int] = {}
    for number, group in enumerate(inventory.link_groups):
        for place, gpu in enumerate(group):
            path: Path = ("gpus", "link_groups", number, place)
            if gpu >= inventory.count:
                message = f"there is no GPU {gpu}: the node has {inventory.count}, counted from 0"
                hint = "name GPUs by their place in the list of the node's GPUs"
                yield repo.finding(entry, path, message, hint, reason=failed)
            elif seen.setdefault(gpu, number) != number:
                message = f"GPU {gpu} is in group {seen[gpu]} and in group {number}"
                hint = "put each GPU into one group: all of a group are linked with each other"
                yield repo.finding(entry, path, message, hint, reason=failed)


def _host_key(repo: Repo, entry: Entry, node: Node, seen: dict[str, Entry]) -> Iterator[Finding]:
    key = node.ssh.host_key
    if not key:
        return
    path = ("ssh", "host_key")
    problem = host_key_problem(key)
    if problem:
        hint = "paste the machine's own /etc/ssh/ssh_host_ed25519_key.pub: 'ssh-ed25519 AAAA…'"
        yield repo.finding(entry, path, problem, hint, reason=Reason.SCHEMA_FAILED)
        return
    known = seen.setdefault(key.split()[1], entry)
    if known is not entry:
        message = f"{known.subject} has the same host key"
        hint = "machines from one image share keys: make new ones, or either can pose as the other"
        yield repo.finding(
            entry, path, message, hint, reason=Reason.HOST_KEY_MISMATCH, warning=True
        )


def _identity(repo: Repo, entry: Entry, path: str) -> Iterator[Finding]:
    if not path or path.startswith(("/", "~/")):
        return
    message = f"{quoted(path)} is relative: it is looked for in the home folder, wherever it runs"
    hint = f"write {quoted('~/' + path)} if that is meant, else the whole path"
    at: Path = ("ssh", "identity_file")
    yield repo.finding(entry, at, message, hint, reason=Reason.SCHEMA_FAILED, warning=True)


def host_key_problem(key: str) -> str:
    """What is wrong with a public host key; empty: nothing."""
    parts = key.split()
    if len(parts) < 2:
        return "it is not of the form 'type base64'"
    kind, blob = parts[0], parts[1]
    if kind not in HOST_KEY_TYPES:
        if blob in HOST_KEY_TYPES:
            return f"it starts with the host {quoted(kind)}"
        return f"{quoted(kind)} is no type of host key that OpenSSH offers"
    try:
        raw = base64.b64decode(blob, validate=True)
    except (binascii.Error, ValueError):
        return "the key is not base64"
    length = int.from_bytes(raw[:4], "big")
    if len(raw) < 36 or raw[4 : 4 + length] != kind.encode():
        return f"the key inside is not of type {kind}, or is cut"
    return ""


def _address(
    repo: Repo,
    entry: Entry,
    node: Node,
    fleet: Fleet | None,
    seen: dict[tuple[str, int], Entry],
) -> Iterator[Finding]:
    port = node.ssh.port or (fleet.ssh.port if fleet else 0) or 22
    known = seen.setdefault((node.address.lower(), port), entry)
    if known is not entry:
        message = f"{known.subject} has the same address and SSH port"
        hint = "two documents for one machine would give its GPUs out twice"
        yield repo.finding(entry, ("address",), message, hint)
    if fleet and fleet.id == EXAMPLE_FLEET_ID and not harmless(node.address):
        message = f"{quoted(node.address)} is a real machine, and the fleet has the example's id"
        hint = "give the fleet an id of its own: 'python3 -c \"import uuid; print(uuid.uuid4())\"'"
        yield repo.finding(entry, ("address",), message, hint, reason=Reason.INFEASIBLE)


def _usable(repo: Repo, entry: Entry, node: Node) -> Iterator[Finding]:
    """Addresses that no peer can dial, or that stand for another machine after the next boot."""
    for path, address, ip in repo.memory.of(node, _special_addresses):
        if ip.is_unspecified or ip.is_multicast or ip.version == 6:
            what = "link-local, and needs a zone" if ip.is_link_local else "no machine's address"
            hint = "write an address that the other nodes reach"
            yield repo.finding(
                entry, path, f"{quoted(address)} is {what}", hint, reason=Reason.INFEASIBLE
            )
        else:
            message = f"{quoted(address)} is link-local: another boot may give it another one"
            hint = "give the interface a fixed address"
            yield repo.finding(entry, path, message, hint, reason=Reason.INFEASIBLE, warning=True)


def _special_addresses(node: Node) -> list[tuple[Path, str, IPAddress]]:
    """Those that no single machine keeps: unspecified, multicast, link-local. Most nodes: none."""
    places: list[tuple[Path, str]] = [(("address",), node.address)]
    places.append((("management", "address"), node.management.address))
    for name, fabric in node.fabrics.items():
        places.append((("fabrics", name, "address"), fabric.address))
    found = []
    for path, address in places:
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            continue
        if ip.is_unspecified or ip.is_multicast or ip.is_link_local:
            found.append((path, address, ip))
    return found


def harmless(address: str) -> bool:
    """Whether an address is on loopback or is one that documentation uses (no machine has it)."""
    if address == "localhost" or address.endswith((".example", ".invalid", ".localhost")):
        return True
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    return ip.is_loopback or any(ip in net for net in _DOCUMENTATION if net.version == ip.version)
