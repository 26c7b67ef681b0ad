"""Documents that `reconcile init` writes: out of what a node answered, YAML that a person goes on
with.

Text only; looking over SSH, and where the host key came from, is the caller's. What an answer
cannot tell (which RoCE GID reaches the peers) is written with a comment that says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from reconciler.core.observed import AdapterSeen, GpuSeen, InterfaceSeen, NodeAnswer

SCHEMA_LINE = "# yaml-language-server: $schema={}/document.v1.json"

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9._/-]*").fullmatch
_WORDS = frozenset(["true", "false", "null", "yes", "no", "on", "off", "y", "n"])


def scalar(text: str) -> str:
    """A YAML scalar that every reader takes for exactly this text."""
    if _PLAIN(text) and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)


def gpu_class(gpu: GpuSeen) -> str:
    """`h100-80gb` for an `NVIDIA H100 80GB HBM3`; `gpu` where the driver names nothing."""
    words = [w for w in re.split(r"[^a-z0-9]+", gpu.name.lower()) if w not in ("nvidia", "tesla")]
    said = next((w for w in words if re.fullmatch(r"[0-9]+gb", w)), "")
    size = said or (f"{round(gpu.memory_mib / 1024)}gb" if gpu.memory_mib else "")
    known = [w for w in words if w and not re.fullmatch(r"[0-9]+gb|hbm[0-9]e?|pcie|sxm[0-9]?", w)]
    return "-".join([*(known[:3] or ["gpu"]), *([size] if size else [])])


def node_name(host: str) -> str:
    """A name out of a host name's first label, or out of an address."""
    label = host if re.fullmatch(r"[0-9.]+", host) or ":" in host else host.split(".")[0]
    name = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
    return name if name[:1].isalpha() else f"node-{name}".rstrip("-")


def pool_name(answer: NodeAnswer) -> str:
    """A pool for machines like this one: its GPU class, or `nodes`."""
    return gpu_class(answer.gpus.items[0]) if answer.gpus.items else "nodes"


def node_document(
    answer: NodeAnswer,
    *,
    name: str,
    address: str,
    pool: str,
    user: str,
    port: int,
    host_key: str,
    identity_file: str = "",
    jump: str = "",
) -> str:
    """The Node document of a machine as it answered."""
    gpus = answer.gpus.items
    kinds = sorted({gpu_class(gpu) for gpu in gpus})
    lines = [
        "kind: Node",
        f"name: {scalar(name)}",
        f"address: {scalar(address)}",
        f"pool: {scalar(pool)}",
    ]
    if len(kinds) > 1:
        lines.append(f"# It has GPUs of different kinds: {', '.join(kinds)}.")
    lines += _links(gpus)
    lines += _gpus(gpus, kinds)
    lines += _ssh(user, port, host_key, identity_file, jump)
    carrier = _carrier(address, answer.network.interfaces)
    if carrier:
        lines.append(f"management: {{interface: {scalar(carrier)}}}")
    lines += _fabrics(answer.network.adapters, answer.network.interfaces)
    return "\n".join(lines) + "\n"


def _gpus(gpus: Sequence[GpuSeen], kinds: Sequence[str]) -> list[str]:
    parts = [f"class: {kinds[0] if kinds else 'none'}", f"count: {len(gpus)}"]
    memory = min((gpu.memory_mib for gpu in gpus if gpu.memory_mib), default=0)
    if memory:
        # Rounded down, so that a profile's need is never met on paper alone.
        parts.append(f"memory_gib: {memory // 1024}")
    capability = next((gpu.capability for gpu in gpus if gpu.capability), "")
    if re.fullmatch(r"[0-9]{1,2}\.[0-9]", capability):
        parts.append(f'capability: "{capability}"')
    return [f"gpus: {{{', '.join(parts)}}}"]


def _links(gpus: Sequence[GpuSeen]) -> list[str]:
    """For the reader alone: `observe` tells it anew, and a replica is placed by that."""
    groups: dict[int, list[str]] = {}
    for gpu in gpus:
        if gpu.nvlink_group is not None:
            groups.setdefault(gpu.nvlink_group, []).append(str(gpu.index))
    linked = [" ".join(members) for members in groups.values() if len(members) > 1]
    if not groups or len(gpus) < 2:
        return []
    return [f"# Linked by NVLink: {', '.join(linked) or 'none'}."]


def _ssh(user: str, port: int, host_key: str, identity_file: str, jump: str) -> list[str]:
    lines = ["ssh:"]
    if user:
        lines.append(f"  user: {scalar(user)}")
    if port not in (0, 22):
        lines.append(f"  port: {port}")
    if identity_file:
        lines.append(f"  identity_file: {scalar(identity_file)}")
    if jump:
        lines.append(f"  jump: {scalar(jump)}")
    if host_key:
        lines.append(f"  host_key: {' '.join(host_key.split()[:2])}")
    return lines if len(lines) > 1 else []


def _carrier(address: str, interfaces: Iterable[InterfaceSeen]) -> str:
    for interface in interfaces:
        if address in (text.split("/")[0] for text in interface.addresses):
            return interface.name
    return ""


def _fabrics(adapters: Sequence[AdapterSeen], interfaces: Sequence[InterfaceSeen]) -> list[str]:
    active = [a for a in adapters if "active" in a.state.lower()]
    groups = (
        ("ib", [a for a in active if a.link_layer.lower() == "infiniband"]),
        ("roce", [a for a in active if a.link_layer.lower() == "ethernet"]),
    )
    lines: list[str] = []
    for kind, found in groups:
        if found:
            lines += _fabric(kind, sorted(found, key=_natural), interfaces)
    if not lines:
        return []
    note = "# One entry a fabric: take apart what cannot reach each other. Order is rail order."
    return [note, "fabrics:", *lines]


def _fabric(
    kind: str, adapters: Sequence[AdapterSeen], interfaces: Sequence[InterfaceSeen]
) -> list[str]:
    lines = [f"  {kind}:", f"    kind: {kind}"]
    carrier = next((a.interface for a in adapters if a.interface), "")
    own = next((i for i in interfaces if i.name == carrier and i.addresses), None)
    if own is not None:
        lines.append(f"    interface: {scalar(own.name)}")
        lines.append(f"    address: {scalar(own.addresses[0].split('/')[0])}")
    if kind == "roce":
        lines.append("    gid_index: 3 # look: show_gids; the RoCE v2 entry over IPv4")
    lines.append("    adapters:")
    for adapter in adapters:
        port = f", port: {adapter.port}" if adapter.port != 1 else ""
        lines.append(f"      - {{name: {scalar(adapter.name)}{port}}}")
    return lines


def _natural(adapter: AdapterSeen) -> tuple[list[tuple[int, str]], int]:
    """mlx5_2 before mlx5_10."""
    parts = re.findall(r"[0-9]+|[^0-9]+", adapter.name)
    return [(int(p), "") if p.isdigit() else (-1, p) for p in parts], adapter.port
