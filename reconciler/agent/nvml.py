"""The GPUs as NVML shows them; runs in a probe child only, because any call here may hang for ever.

Yields what is known as soon as it is known: first who is there, then each GPU's state, so that one
GPU whose query hangs does not hide the other seven. pynvml is nvidia-ml-py's module, shipped in the
agent.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from . import kmsg, links
from .wire import Json

_HUGE = 1 << 62
"""NVML says "not available" of a process's memory by a number of this size."""

LINKS_S = 60.0
"""How long what NVML said of the links is believed: with eight GPUs it is 28 questions. Not for
ever: until the fabric manager of an NVSwitch system runs, no two GPUs are linked."""


FACTS = ("name", "bus", "numa_node")


class Gpus:
    """Keeps NVML open between looks, what cannot change about a GPU, and the links."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._log = kmsg.KernelLog()
        self._facts: Dict[str, Json] = {}
        """By UUID: these questions alone would be half of a look."""
        self._links: Tuple[float, List[str], List[Optional[int]]] = (0.0, [], [])

    def look(self, kernel_log: str) -> Iterator[List[Json]]:
        """`log`, `driver`, then `gpu` per GPU with its identity, `state` per GPU, and `links`.

        What is yielded together was asked together. The kernel's log comes first (empty
        `kernel_log`: it is not asked for): it cannot hang, and it says why NVML does.
        """
        if kernel_log:
            yield [{"log": self._log.look(kernel_log)}]
        nvml = self._open()
        if nvml is None:
            yield [{"driver": "", "cuda": "", "count": 0}]
            return
        count = nvml.nvmlDeviceGetCount()
        head = {
            "driver": _text(nvml.nvmlSystemGetDriverVersion()),
            "cuda": _version(nvml.nvmlSystemGetCudaDriverVersion()),
            "count": count,
        }
        handles = [self._identify(nvml, index) for index in range(count)]
        self._facts = {i["uuid"]: self._facts[i["uuid"]] for _, i in handles if i["uuid"]}
        yield [head, *({"gpu": index, **identity} for index, (_, identity) in enumerate(handles))]
        for index, (handle, identity) in enumerate(handles):
            if handle is not None:
                yield [{"state": index, **self._state(nvml, handle, identity["uuid"])}]
        yield [{"links": self._groups(nvml, handles)}]

    def _identify(self, nvml: Any, index: int) -> Tuple[Any, Json]:
        """Handle and UUID are asked each time: a GPU that is gone shifts the others' numbers."""
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            if uuid not in self._facts:
                bus = _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
                self._facts[uuid] = {
                    "name": _text(nvml.nvmlDeviceGetName(handle)),
                    "bus": bus,
                    "numa_node": links.numa_node(bus, _read),
                }
        except nvml.NVMLError as error:
            return None, {"uuid": "", "name": "", "bus": "", "error": _word(nvml, error)}
        facts = self._facts[uuid]
        return handle, {"uuid": uuid, **{name: facts[name] for name in FACTS}}

    def _groups(self, nvml: Any, handles: List[Tuple[Any, Json]]) -> List[Optional[int]]:
        uuids = [str(identity["uuid"]) for _, identity in handles]
        asked, of, found = self._links
        if of != uuids or time.monotonic() - asked > LINKS_S:
            found = links.groups(len(handles), links.ask(nvml, [handle for handle, _ in handles]))
            self._links = (time.monotonic(), uuids, found)
        return found

    def _open(self) -> Any:
        """The module, initialised; None where there is no driver, which is no error."""
        if self._nvml is not None:
            return self._nvml
        try:
            ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            # Asked before pynvml is: to compile its 5,000 lines takes longer than all else here.
            return None
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
                return None
            raise
        self._nvml = pynvml
        return pynvml

    def _state(self, nvml: Any, handle: Any, uuid: str) -> Json:
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            state: Json = {"memory_mib": memory.total >> 20, "used_mib": memory.used >> 20}
            state["processes"] = _processes(nvml, handle)
        except nvml.NVMLError as error:
            return {"error": _word(nvml, error)}
        facts = self._facts[uuid]
        if "capability" not in facts:
            told = _maybe(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
            facts["capability"] = "%d.%d" % tuple(told) if told is not None else ""
        state["capability"] = facts["capability"]
        remapped = _maybe(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(handle))
        if remapped is not None and remapped[3]:
            state["error"] = "row remapping failed: the GPU needs to be replaced"
        state["recovery"] = _recovery(nvml, handle)
        state["warnings"] = _warnings(nvml, handle, remapped)
        return state


def _warnings(nvml: Any, handle: Any, remapped: Any) -> List[str]:
    """What will cost this GPU soon."""
    found = []
    errors = _maybe(
        nvml,
        lambda: nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
    )
    if errors:
        found.append("%d uncorrected ECC errors since the driver was loaded" % errors)
    if remapped is not None and remapped[2]:
        found.append("a row waits to be remapped: reset the GPU or reboot")
    if _maybe(nvml, lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)):
        found.append("a page waits to be retired: reset the GPU or reboot")
    return found


def _recovery(nvml: Any, handle: Any) -> Optional[int]:
    """What the driver wants done with the GPU (0: nothing); drivers of branch 565 and newer say."""
    values = _maybe(
        nvml,
        lambda: nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]),
    )
    if not values or values[0].nvmlReturn != nvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def _processes(nvml: Any, handle: Any) -> List[Json]:
    found = {}
    for ask in (
        nvml.nvmlDeviceGetComputeRunningProcesses,
        nvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        try:
            entries = ask(handle)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NOT_SUPPORTED:
                continue
            raise
        for entry in entries:
            used = entry.usedGpuMemory
            known = isinstance(used, int) and used < _HUGE
            found[entry.pid] = {"pid": entry.pid, "used_mib": used >> 20 if known else None}
    return [found[pid] for pid in sorted(found)]


def _maybe(nvml: Any, ask: Callable[[], Any]) -> Optional[Any]:
    """The answer, or None where this GPU or driver does not give it."""
    try:
        return ask()
    except (nvml.NVMLError, AttributeError):
        return None


def _word(nvml: Any, error: Any) -> str:
    if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
        return "lost"
    return str(error)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _version(number: int) -> str:
    return "%d.%d" % (number // 1000, number % 1000 // 10)
