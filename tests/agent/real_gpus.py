"""What a look says of GPUs, held against the machine's own tools: real driver or stand-in library.

Standard library only, Python 3.9 and newer, so that a machine with GPUs needs nothing but python3:
`python3 -m tests.agent.real_gpus` with pynvml.py on the path (`make test-gpu` sees to it). A check
returns why it could not be made here, or nothing; it fails by AssertionError.
"""

from __future__ import annotations

import csv
import ctypes
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.agent.harness import Json, Node, Refused, Specs, on_gpu, poll

LOOK_S = 20.0
WHOLE_S = 280
"""After which the run is given up: a driver that hangs in a call cannot be waited for."""

IDLE_MIB = 2048
HELD_MIB = 4096

HOLD = r"""
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
size = ctypes.c_size_t(int(sys.argv[1]) << 20)
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
for what, code in (
    ("cuInit", cuda.cuInit(0)),
    ("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0)),
    ("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)),
    ("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context)),
    ("cuMemAlloc", cuda.cuMemAlloc_v2(ctypes.byref(memory), size)),
):
    if code:
        print(f"{what}: error {code}", flush=True)
        sys.exit(3)
print("held", flush=True)
time.sleep(600)
"""
"""Holds so many MiB of the first GPU that it sees, by the driver's own library alone."""


def real_node(folder: Path) -> Node:
    """A node that finds this machine's driver and reads its kernel's log."""
    node = Node(folder)
    (node.identity / "kmsg").symlink_to("/dev/kmsg")
    if "LD_LIBRARY_PATH" in os.environ:
        node.env["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    return node


def has_driver() -> bool:
    """Whether NVML is here and answers."""
    try:
        return int(ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2()) == 0
    except OSError:
        return False


def look(node: Node) -> Json:
    """The GPUs of one look."""
    answer = node.ask("observe", parts=["gpus", "shards"], deadline_s=LOOK_S)
    return dict(answer["gpus"])


def listed(node: Node) -> list[Json]:
    """GPUs that NVML lists and that are not in error."""
    return [gpu for gpu in look(node)["items"] if gpu["index"] >= 0 and not gpu["error"]]


def free_gpu(node: Node) -> Json | None:
    """A GPU that nobody uses: the last, which others take last."""
    idle = [g for g in listed(node) if not g["processes"] and (g["used_mib"] or 0) < IDLE_MIB]
    return idle[-1] if idle else None


# --- What is told -------------------------------------------------------------------------------


def every_gpu_is_told_with_its_driver(node: Node) -> str:
    part = look(node)
    assert part["error"] == "", part
    assert re.fullmatch(r"\d+(\.\d+)+", part["driver"]), part
    assert re.fullmatch(r"\d+\.\d+", part["cuda"]), part
    indices = [gpu["index"] for gpu in part["items"] if gpu["index"] >= 0]
    assert indices, "a driver without a GPU"
    assert indices == list(range(len(indices)))
    for gpu in listed(node):
        assert re.fullmatch(r"(GPU|MIG)-[0-9a-f-]+", gpu["uuid"]), gpu
        assert re.fullmatch(r"[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.0", gpu["bus"]), gpu
        assert gpu["name"], gpu
        assert re.fullmatch(r"\d+\.\d", gpu["capability"]), gpu
        assert 0 <= gpu["used_mib"] <= gpu["memory_mib"], gpu
    return ""


def nvidia_smi_says_the_same(node: Node) -> str:
    fields = "uuid,pci.bus_id,name,memory.total,driver_version,compute_cap"
    told = _nvidia_smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    if not told:
        return "nvidia-smi is not here"
    rows = {row[0]: row for row in csv.reader(told.splitlines(), skipinitialspace=True)}
    part = look(node)
    assert {gpu["uuid"] for gpu in listed(node)} <= rows.keys()
    for gpu in listed(node):
        _, bus, name, memory, driver, capability = rows[gpu["uuid"]]
        assert (gpu["bus"], gpu["name"]) == (bus, name)
        assert abs(gpu["memory_mib"] - int(memory)) <= 1
        assert (part["driver"], gpu["capability"]) == (driver, capability)
    return ""


def gpus_of_one_group_are_linked_each_with_each(node: Node) -> str:
    gpus = listed(node)
    assert {gpu["nvlink_group"] for gpu in gpus} <= {None, *range(len(gpus))}
    if len(gpus) == 1:
        assert gpus[0]["nvlink_group"] is not None
    told = _matrix(_nvidia_smi("topo", "-p2p", "n"))
    if not told:
        return "nvidia-smi tells no NVLink matrix here"
    by_group: dict[object, list[int]] = {}
    for gpu in gpus:
        by_group.setdefault(gpu["nvlink_group"], []).append(gpu["index"])
    for group, members in by_group.items():
        pairs = [(a, b) for a in members for b in members if a < b]
        assert group is None or all(told[pair] == "OK" for pair in pairs), (group, told)
    alone = [m[0] for g, m in by_group.items() if g is not None and len(m) == 1]
    assert not [(a, b) for a in alone for b in alone if a < b and told[a, b] == "OK"], told
    return ""


def the_numa_node_is_the_kernels(node: Node) -> str:
    paths = {
        gpu["uuid"]: Path("/sys/bus/pci/devices", gpu["bus"].lower()[4:], "numa_node")
        for gpu in listed(node)
    }
    if not all(path.exists() for path in paths.values()):
        return "the kernel shows no PCI devices here"
    for gpu in listed(node):
        told = int(paths[gpu["uuid"]].read_text())
        assert gpu["numa_node"] == (told if told >= 0 else None), gpu
    return ""


def past_xid_errors_are_told_or_why_they_are_not_known(node: Node) -> str:
    part = look(node)
    for gpu in part["items"]:
        assert (gpu.get("xids") is None) == bool(part["xid_error"]), part
        for fault in gpu.get("xids") or ():
            assert fault["code"] > 0, fault
            assert not fault["fatal"] or f"Xid {fault['code']}" in gpu["error"], gpu
    return f"past Xid errors are not known: {part['xid_error']}" if part["xid_error"] else ""


def a_second_look_says_the_same_and_is_quick(node: Node) -> str:
    first = look(node)
    began = time.monotonic()
    second = look(node)
    took = time.monotonic() - began
    assert took < 1.0, f"{took:.2f} s"
    fixed = ("uuid", "index", "name", "bus", "numa_node", "nvlink_group", "capability")
    before, after = (
        [[gpu.get(name) for name in fixed] for gpu in part["items"]] for part in (first, second)
    )
    assert before == after
    return ""


# --- What is given ------------------------------------------------------------------------------


def a_gpu_that_is_not_there_refuses_a_start(node: Node) -> str:
    absent = "GPU-00000000-0000-0000-0000-000000000000"
    spec = on_gpu(Specs(node).shell("job-0-absent", ["sleep", "60"]), absent)
    assert absent in _refusal(node, spec)
    return ""


def a_start_is_told_the_index_of_its_gpu(node: Node) -> str:
    gpu = free_gpu(node)
    if gpu is None:
        return "every GPU of this machine is in use"
    script = "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER; exit 3"
    node.start(on_gpu(Specs(node).shell("job-0-index", ["sh", "-c", script]), gpu["uuid"]))
    assert node.ended("job-0-index")["log_tail"] == [f"{gpu['index']} PCI_BUS_ID"]
    return ""


def a_strangers_memory_blocks_the_gpu_until_it_ends(node: Node) -> str:
    gpu = free_gpu(node)
    if gpu is None:
        return "every GPU of this machine is in use"
    uuid = gpu["uuid"]
    spec = on_gpu(Specs(node).shell("job-0-blocked", ["sleep", "600"]), uuid)
    with _holder(node, gpu["index"]) as (pid, why):
        if why:
            return why
        seen = poll(lambda: _gpu(node, uuid), lambda g: g["used_mib"] >= HELD_MIB)
        # A driver outside this pid namespace names another pid, or none: the memory is seen.
        named = [p for p in seen["processes"] if p["pid"] == pid]
        assert all(p["launch"] == "" and p["user"] for p in named), seen
        assert f"GPU {uuid} " in _refusal(node, spec), "it was given away beside a stranger"
    poll(lambda: _gpu(node, uuid), lambda g: not g["processes"] and g["used_mib"] < IDLE_MIB)
    assert node.start(spec) == "started"
    node.stop("job-0-blocked", grace_s=0)
    node.ended("job-0-blocked")
    return ""


def a_launchs_own_process_is_told_as_its_own(node: Node) -> str:
    gpu = free_gpu(node)
    if gpu is None:
        return "every GPU of this machine is in use"
    argv = [sys.executable, "-c", HOLD, str(HELD_MIB)]
    node.start(on_gpu(Specs(node).shell("job-0-own", argv), gpu["uuid"]))
    shard = node.until("job-0-own", lambda s: s["phase"] == "ended" or _held(node, "job-0-own"))
    if shard["phase"] == "ended":
        return "CUDA cannot be used here: " + " ".join(shard["log_tail"][-1:])
    seen = _gpu(node, gpu["uuid"])
    mine = [p for p in seen["processes"] if p["pid"] in shard["pids"]]
    assert seen["used_mib"] >= HELD_MIB
    assert all(p["launch"] == "job-0-own" for p in mine), seen
    node.stop("job-0-own", grace_s=0)
    node.ended("job-0-own")
    poll(lambda: _gpu(node, gpu["uuid"]), lambda g: g["used_mib"] < IDLE_MIB)
    return "" if mine else "the driver names pids of another pid namespace"


TOLD = (
    every_gpu_is_told_with_its_driver,
    nvidia_smi_says_the_same,
    gpus_of_one_group_are_linked_each_with_each,
    the_numa_node_is_the_kernels,
    past_xid_errors_are_told_or_why_they_are_not_known,
    a_second_look_says_the_same_and_is_quick,
)
GIVEN = (
    a_gpu_that_is_not_there_refuses_a_start,
    a_start_is_told_the_index_of_its_gpu,
    a_strangers_memory_blocks_the_gpu_until_it_ends,
    a_launchs_own_process_is_told_as_its_own,
)
CHECKS = (*TOLD, *GIVEN)


# --- Parts --------------------------------------------------------------------------------------


def _gpu(node: Node, uuid: str) -> Json:
    return next(gpu for gpu in look(node)["items"] if gpu["uuid"] == uuid)


def _refusal(node: Node, spec: Json) -> str:
    """Why it was not started; empty: it was."""
    try:
        node.start(spec)
    except Refused as refused:
        return refused.message
    return ""


def _held(node: Node, launch: str) -> bool:
    return "held" in node.ask("logs", launch=launch, lines=5)["lines"]


@contextmanager
def _holder(node: Node, index: int) -> Iterator[tuple[int, str]]:
    """A stranger's process with memory on a GPU: its pid, or why there is none."""
    env = {**os.environ, **node.env}
    env.update(CUDA_VISIBLE_DEVICES=str(index), CUDA_DEVICE_ORDER="PCI_BUS_ID")
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(HELD_MIB)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
    )
    try:
        assert child.stdout is not None
        said = child.stdout.readline()
        held = said == "held\n"
        why = "" if held else f"CUDA cannot be used here: {_last_line(said + child.stdout.read())}"
        yield child.pid, why
    finally:
        child.kill()
        child.communicate()


def _last_line(text: str) -> str:
    return ["", *filter(None, text.split("\n"))][-1]


def _nvidia_smi(*arguments: str) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout if done.returncode == 0 else ""


def _matrix(text: str) -> dict[tuple[int, int], str]:
    """`nvidia-smi topo -p2p n` by pairs of indices: OK, NS, …"""
    found = {}
    for line in text.splitlines():
        cells = re.sub(r"\x1b\[[0-9;]*m", "", line).split()
        row = re.fullmatch(r"GPU(\d+)", cells[0]) if cells else None
        if row and len(cells) > 1 and not cells[1].startswith("GPU"):
            for column, cell in enumerate(cells[1:]):
                found[int(row.group(1)), column] = cell
    return found


# --- By hand ------------------------------------------------------------------------------------


def _cost(node: Node) -> str:
    times = []
    for _ in range(20):
        began = time.monotonic()
        look(node)
        times.append(time.monotonic() - began)
    return f"a look at the GPUs takes {sorted(times)[10] * 1000:.2f} ms"


def main() -> int:
    """Make every check; 1: one failed, 77: there is nothing to check."""
    if not has_driver():
        print("skipped: no NVIDIA driver on this machine")
        return 77
    signal.alarm(WHOLE_S)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, check in enumerate(CHECKS):
            node = real_node(Path(folder, str(number)))
            said = f"{check.__name__.replace('_', ' ')}: "
            try:
                why = check(node)
                said += f"not checked: {why}" if why else "ok"
                if number == 0:
                    print(json.dumps(look(node), indent=1))
                    print(_cost(node))
            except AssertionError as error:
                failed += 1
                said += f"FAILED: {error}"
            finally:
                node.close()
            print(said, flush=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{failed} of {len(CHECKS)} failed; {used.ru_utime + used.ru_stime:.1f} s of CPU")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
