"""Which GPUs of this node reach each other over NVLink, and next to which CPU each one sits.

A tensor-parallel group that straddles two NVLink groups runs at the speed of PCIe. NVML is asked
pair by pair with `nvmlDeviceGetP2PStatus(…, NVML_P2P_CAPS_INDEX_NVLINK)` (NVML API reference,
"Device Queries"; `nvidia-smi topo -p2p n` prints the same): it is the one question that is answered
alike for bridges, for meshes and across NVSwitches. The links' remote ends
(`nvmlDeviceGetNvLinkRemotePciInfo`) name a switch where there is one, never the GPU behind it.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

LINKED, NOT_LINKED = True, False

SYSFS = "/sys/bus/pci/devices"

Pairs = Dict[Tuple[int, int], Optional[bool]]


def ask(nvml: Any, handles: List[Any]) -> Pairs:
    """For each pair of GPUs whether NVLink joins them; None where the driver does not tell.

    `handles`: by place in the list, None for a GPU that has none.
    """
    found: Pairs = {}
    for first, one in enumerate(handles):
        for second in range(first + 1, len(handles)):
            other = handles[second]
            known = one is not None and other is not None
            found[first, second] = _linked(nvml, one, other) if known else None
    return found


def _linked(nvml: Any, one: Any, other: Any) -> Optional[bool]:
    try:
        status = nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except (nvml.NVMLError, AttributeError):
        # A driver older than the question, or one of the two is lost.
        return None
    if status == nvml.NVML_P2P_STATUS_UNKNOWN:
        return None
    return LINKED if status == nvml.NVML_P2P_STATUS_OK else NOT_LINKED


def groups(count: int, pairs: Pairs) -> List[Optional[int]]:
    """The group of each GPU: all of a group are linked with all others of it.

    A GPU that is linked with none is a group of its own; one of which no pair is known has none.
    In a mesh where not all reach all, GPUs join by their indices (the two fours of a DGX-1).
    """
    made: List[List[int]] = []
    found: List[Optional[int]] = []
    for gpu in range(count):
        told = [pairs[min(gpu, o), max(gpu, o)] for o in range(count) if o != gpu]
        if told and all(known is None for known in told):
            found.append(None)
            continue
        for number, members in enumerate(made):
            if all(pairs[member, gpu] is LINKED for member in members):
                members.append(gpu)
                found.append(number)
                break
        else:
            found.append(len(made))
            made.append([gpu])
    return found


def numa_node(bus: str, read: Callable[[str], str]) -> Optional[int]:
    """The NUMA node of a GPU by its PCI address as NVML writes it (`00000000:1B:00.0`).

    The kernel says -1 where the machine has one node only or its firmware does not tell
    (Documentation/ABI/testing/sysfs-bus-pci): None.
    """
    domain, _, rest = bus.lower().partition(":")
    text = read("%s/%s:%s/numa_node" % (SYSFS, domain[-4:], rest)) if rest else ""
    return int(text) if text.isdigit() else None
