"""Xid errors in the kernel's log: what the NVIDIA driver said of each GPU since boot.

NVML forgets why a GPU is unwell, and one that fell off its bus it may not even list; the kernel's
log has both, with the GPU's address and UUID. Pure: lines in, faults out; `kmsg` reads the lines.

Which of them take a GPU out of use is NVIDIA's Xid catalog for Ampere and newer
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, read December 2026): those whose
immediate action is RESET_GPU or RESTART_BM. What it leaves to the application (13, 31, 43, 45, …)
is told to nobody: any crash of an engine writes such lines.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from .wire import Json

RESET = "reset the GPU or reboot"
REBOOT = "reboot the node"


class Fault(NamedTuple):
    """One line of the catalog."""

    says: str
    then: str
    linked: int = 0
    """Driver branch since which the driver itself says whether it still stands (the catalog's
    column "Xid 154 linkage"); 0: never, so only a reboot or a reload of the driver ends it."""


FATAL = {
    46: Fault("GPU stopped processing", RESET),
    62: Fault("internal micro-controller halt", RESET, 565),
    64: Fault("memory remapping failed", RESET, 565),
    79: Fault("GPU has fallen off the bus", REBOOT, 565),
    95: Fault("uncontained memory error", RESET, 565),
    109: Fault("context switch timeout", RESET, 570),
    110: Fault("security fault", RESET, 565),
    119: Fault("GSP RPC timeout", RESET),
    120: Fault("GSP error", RESET, 565),
    136: Fault("link training failed", RESET, 565),
    140: Fault("unrecovered ECC error", RESET),
    143: Fault("GPU initialization error", RESET, 575),
    155: Fault("NVLink: link down", RESET, 565),
    156: Fault("resource retirement", RESET, 565),
    158: Fault("GPU fatal timeout", RESET),
}

NOTABLE = {
    48: "double bit ECC error",
    63: "memory remapping event",
    74: "NVLink error",
    92: "high single-bit ECC error rate",
    94: "contained memory error",
    157: "resource retirement failed",
    167: "PCIe fatal timeout",
    171: "uncorrectable DRAM error",
    172: "uncorrectable SRAM error",
}
"""Worth a word. Most of them come with another one where the GPU can no longer be used, or go away
when the application is started anew; 74 is reported by the healthy neighbour of a lost GPU, too."""

RECOVERY_CHANGED = 154
"""Says what the driver wants done with the GPU from now on, whichever Xid came before."""

RECOVERY = {
    1: "the driver asks for a reset of the GPU",
    2: "the driver asks for a reboot of the node",
    3: "the driver asks to end all peer-to-peer traffic of the GPU",
    4: "the driver asks to drain the GPU and reset it",
}
"""NVML_GPU_RECOVERY_ACTION_* (nvml.h); Xid 154 writes the same numbers."""

MAX_GPUS = 64
MAX_TEXT = 160

_RECORD = re.compile(r"(\d+),\d+,(\d+)(?:,[^;]*)?;(.*)")
"""`<facility and level>,<number>,<microseconds>,<flags>;<text>` (the kernel's
Documentation/ABI/testing/dev-kmsg)."""

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)[^)]*\): (\d+)(?:, *(.*))?")
_GPU_AT = re.compile(r"NVRM: GPU at (?:PCI:)?([0-9A-Fa-f:.]+): (GPU-[0-9a-f-]+)")
_LOADING = "NVRM: loading NVIDIA UNIX"
_NOISE = re.compile(r"(pid='?[^,]*|name=[^,]*), *")
_ACTION = re.compile(r" to 0x([0-9a-f]+)")


def address(text: str) -> str:
    """A PCI address in one spelling: NVML has `00000000:1B:00.0`, the kernel's log `0000:1b:00`."""
    domain, _, rest = text.lower().partition(":")
    try:
        return "%04x:%s" % (int(domain, 16), rest.partition(".")[0])
    except ValueError:
        return text.lower()


class Log:
    """What stood in the kernel's log so far, by the address of the GPU."""

    def __init__(self) -> None:
        self.uuids: Dict[str, str] = {}
        self._found: Dict[str, Dict[int, Json]] = {}

    def feed(self, line: str) -> None:
        """Take one line of /dev/kmsg; what is not the NVIDIA driver's is passed over."""
        record = _RECORD.match(line)
        # Facility 0 is the kernel; whatever a process writes into the log has another one.
        if record is None or int(record.group(1)) >> 3:
            return
        text = record.group(3)
        xid, gpu = _XID.match(text), _GPU_AT.match(text)
        if xid:
            at_s = int(record.group(2)) / 1e6
            self._xid(address(xid.group(1)), int(xid.group(2)), xid.group(3) or "", at_s)
        elif gpu and len(self.uuids) < MAX_GPUS:
            self.uuids[address(gpu.group(1))] = gpu.group(2)
        elif text.startswith(_LOADING):
            for bus in self._found:
                self._clear(bus)

    def _xid(self, bus: str, code: int, text: str, at_s: float) -> None:
        if code == RECOVERY_CHANGED:
            action = _ACTION.search(text)
            if action and int(action.group(1), 16) == 0:
                self._clear(bus)
                return
        elif code not in FATAL and code not in NOTABLE:
            return
        if bus not in self._found and len(self._found) >= MAX_GPUS:
            return
        known = self._found.setdefault(bus, {})
        before = known[code]["count"] if code in known else 0
        plain = _NOISE.sub("", text)[:MAX_TEXT]
        entry: Json = {"code": code, "count": before + 1, "at_s": round(at_s, 1), "text": plain}
        known[code] = {**entry, "cleared": False}

    def _clear(self, bus: str) -> None:
        for entry in self._found.get(bus, {}).values():
            entry["cleared"] = True

    def told(self) -> Dict[str, List[Json]]:
        """All faults, oldest first, by the address of the GPU."""
        return {
            bus: sorted(codes.values(), key=lambda e: (e["at_s"], e["code"]))
            for bus, codes in self._found.items()
        }


def judge(faults: List[Json], recovery: Optional[int], driver: str) -> Tuple[str, List[Json]]:
    """Why a GPU must not be used (empty: no reason), and its faults, each with `fatal`.

    `recovery`: what NVML says is to be done with the GPU (`NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`);
    None where the driver does not know the question. Zero ends the faults that the driver keeps
    account of: somebody has reset the GPU since.
    """
    shown, why = [], ""
    branch = int(driver.partition(".")[0]) if driver.partition(".")[0].isdigit() else 0
    for fault in faults:
        entry = FATAL.get(fault["code"])
        fatal = not fault["cleared"] and (
            (entry is not None and not (recovery == 0 and 0 < entry.linked <= branch))
            or (fault["code"] == RECOVERY_CHANGED and recovery is None)
        )
        shown.append({**{k: v for k, v in fault.items() if k != "cleared"}, "fatal": fatal})
        if fatal and entry is not None:
            why = "Xid %d, %s; %s" % (fault["code"], entry.says, entry.then)
        elif fatal and not why:
            why = "Xid %d, %s" % (fault["code"], fault["text"])
    if recovery and not why:
        why = RECOVERY.get(recovery, "the driver asks for recovery action %d" % recovery)
    return why, shown


def in_words(fault: Json) -> str:
    """A fault for people."""
    entry = FATAL.get(fault["code"])
    says = entry.says if entry else NOTABLE.get(fault["code"], fault["text"])
    times = ", %d times" % fault["count"] if fault["count"] > 1 else ""
    return "Xid %d, %s%s, last %.0f s after boot" % (fault["code"], says, times, fault["at_s"])
