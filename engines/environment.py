"""The environment of a rank: each variable in its own library's syntax, beside what happens
without it.

Three layers, later ones win: generated (what the launch needs), fabric (which adapters and
interface), profile (with the role's own on top). `CUDA_VISIBLE_DEVICES` (for a declared accelerator
the variable that its node's document names) is in none of them: the node sets it from GPU UUIDs
when it starts the command, because indices may change with every boot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from engines.addresses import is_v6
from engines.base import CUDA, Fabric, Host, LaunchRequest
from engines.references import References

RDMA_KINDS = ("ib", "roce")


class Row(NamedTuple):
    """One variable: its value for a host ('' leaves it out), and what happens without it."""

    name: str
    value: Callable[[Host, Fabric], str]
    without: str


def _exact_adapters(fabric: Fabric) -> str:
    return "=" + _adapter_ports(fabric) if fabric.adapters else ""


def _adapter_ports(fabric: Fabric) -> str:
    return ",".join(f"{adapter.name}:{adapter.port}" for adapter in fabric.adapters)


def _exact_interface(host: Host, fabric: Fabric) -> str:
    return f"={host.interface}" if host.interface else ""


def _family(host: Host, fabric: Fabric) -> str:
    return "AF_INET6" if is_v6(host.address) else ""


def _gid_index(fabric: Fabric) -> str:
    return str(fabric.gid_index) if fabric.kind == "roce" and fabric.gid_index is not None else ""


GPU_ROWS = (
    Row(
        "CUDA_DEVICE_ORDER",
        lambda host, fabric: "PCI_BUS_ID" if host.visible_by == CUDA else "",
        "CUDA orders by speed and NVML by bus: on a mixed box the index names another card",
    ),
)

SOCKET_ROWS = (
    Row(
        "NCCL_SOCKET_IFNAME",
        _exact_interface,
        "NCCL takes the first interface; without `=` it is a prefix: bond0 takes bond0.2973",
    ),
    Row(
        "GLOO_SOCKET_IFNAME",
        lambda host, fabric: host.interface,
        "Gloo resolves the host name, often to 127.0.1.1; it knows no `=`, a wrong name is fatal",
    ),
    Row(
        "NCCL_SOCKET_FAMILY",
        _family,
        "NCCL takes the interface's first address, IPv4 where there is one, which peers may lack",
    ),
)

TCP_ROWS = (
    Row(
        "NCCL_IB_DISABLE",
        lambda host, fabric: "1",
        "NCCL finds adapters that cannot reach each other, and waits for them",
    ),
    Row(
        "UCX_NET_DEVICES",
        lambda host, fabric: host.interface,
        "UCX (NIXL, KV transfer) takes every adapter that it finds, and waits for those",
    ),
)

RDMA_ROWS = (
    Row(
        "NCCL_IB_DISABLE",
        lambda host, fabric: "0",
        "a 1 from the node's own settings makes this rank talk TCP alone, and all ranks hang",
    ),
    Row(
        "NCCL_IB_HCA",
        lambda host, fabric: _exact_adapters(fabric),
        "NCCL takes every adapter, also another fabric's; without `=`, mlx5_1 also takes mlx5_10",
    ),
    Row(
        "NCCL_IB_GID_INDEX",
        lambda host, fabric: _gid_index(fabric),
        "RoCE: the default index may be link-local and cannot reach the peer; not for InfiniBand",
    ),
    Row(
        "UCX_NET_DEVICES",
        lambda host, fabric: _adapter_ports(fabric),
        "UCX (NIXL, KV transfer) takes every device, also another fabric's",
    ),
    Row(
        "NVSHMEM_HCA_LIST",
        lambda host, fabric: _adapter_ports(fabric),
        "NVSHMEM (DeepEP) takes every adapter, also another fabric's",
    ),
    Row(
        "NVSHMEM_ENABLE_NIC_PE_MAPPING",
        lambda host, fabric: "1",
        "NVSHMEM ignores the adapter list",
    ),
    Row(
        "NVSHMEM_IB_GID_INDEX",
        lambda host, fabric: _gid_index(fabric),
        "RoCE: as NCCL_IB_GID_INDEX, for NVSHMEM",
    ),
    # Read from NVSHMEM's source (modules/bootstrap/uid, 2026): NCCL's syntax, also its `=`.
    Row(
        "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME",
        _exact_interface,
        "NVSHMEM meets over any interface whose name begins with ib, then over any but docker's",
    ),
    Row(
        "NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY",
        _family,
        "as NCCL_SOCKET_FAMILY, for NVSHMEM",
    ),
)


EXCLUDES = {"NVSHMEM_HCA_PE_MAPPING": "NVSHMEM_HCA_LIST"}
"""A profile's own mapping, and the list that would override it."""


def rows(host: Host) -> tuple[Row, ...]:
    """The rows that apply to an engine whose ranks talk through NCCL and its kin."""
    fabric = host.fabric
    rdma = fabric is not None and fabric.kind in RDMA_KINDS and fabric.adapters
    return SOCKET_ROWS + (RDMA_ROWS if rdma else TCP_ROWS)


def visible(host: Host) -> tuple[str, ...]:
    """What the node sets to accelerator indices at start: one variable. With two, ROCm's second
    filters what the first left over, or the process aborts where they differ."""
    return (host.visible_by,)


def gpu_env(host: Host) -> dict[str, str]:
    """What every command that may touch a GPU needs."""
    return _render(GPU_ROWS, host)


def collective_env(host: Host) -> dict[str, str]:
    """What NCCL, Gloo, UCX and NVSHMEM need on this host."""
    return _render(rows(host), host)


def layered(
    request: LaunchRequest, rank: int, refs: References, *layers: Mapping[str, str]
) -> dict[str, str]:
    """`layers` in order, then the profile's env and the role's, references resolved."""
    role = request.profile.leader if rank == 0 else request.profile.worker
    env: dict[str, str] = {}
    for layer in layers:
        env.update(layer)
    env.update(refs.env(request.profile.env))
    env.update(refs.env(role.env))
    for name, other in EXCLUDES.items():
        if name in env:
            env.pop(other, None)
    return env


def _render(table: tuple[Row, ...], host: Host) -> dict[str, str]:
    fabric = host.fabric or Fabric("", "none")
    pairs = ((row.name, row.value(host, fabric)) for row in table)
    return {name: value for name, value in pairs if value}
