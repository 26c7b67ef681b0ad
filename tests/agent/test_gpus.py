"""GPUs through the real pynvml, over a stand-in of the driver's library."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler.core.codec import from_json, to_json
from reconciler.core.observed import GpusPart, NodeAnswer
from tests.agent import real_gpus
from tests.agent.harness import Node, Refused, Specs, gone, on_gpu, poll

UUIDS = [f"GPU-0000000{n}-1111-2222-3333-444444444444" for n in range(8)]


def built(source: str, target: Path) -> Path:
    """A stand-in library of the driver."""
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    path = str(Path(__file__).parent / source)
    subprocess.run(["gcc", *flags, "-o", str(target), path, "-ldl"], check=True)
    return target


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in `libnvidia-ml.so.1`."""
    return built("nvml/nvml.c", tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1")


FELL = "GPU has fallen off the bus"


class GpuNode:
    """A node with eight GPUs, each described by a line of the stand-in's file."""

    def __init__(self, node: Node, library: Path) -> None:
        self.node = node
        folder = node.folder / "driver"
        folder.mkdir()
        shutil.copy(library, folder)
        self.file = folder / "gpus"
        self.lines = [f"{uuid} ok 0 0" for uuid in UUIDS]
        node.env["LD_LIBRARY_PATH"] = str(folder)
        self.write()

    def set(self, index: int, state: str = "ok", pids: str = "0", used_mib: int = 0) -> None:
        self.lines[index] = f"{UUIDS[index]} {state} {pids} {used_mib}"
        self.write()

    def write(self) -> None:
        part = self.file.with_suffix(".part")
        part.write_text("\n".join(self.lines) + "\n")
        part.rename(self.file)

    def link(self, groups: str) -> None:
        """For each GPU the number of its NVLink group or `-`; or `old`: the driver cannot tell."""
        self.file.with_name("links").write_text(groups)

    def logs(self, *lines: str) -> None:
        """Lines of the kernel's log, each with the facility of the kernel."""
        with (self.node.identity / "kmsg").open("a") as file:
            file.writelines(f"4,{n},{60 + n}000000,-;{line}\n" for n, line in enumerate(lines))

    def falls(self, index: int, *, named: bool = True) -> None:
        """The driver says that this GPU fell off its bus."""
        bus = f"PCI:0000:{index + 1:02x}:00"
        if named:
            self.logs(f"NVRM: GPU at {bus}: {UUIDS[index]}")
        self.logs(f"NVRM: Xid ({bus}): 79, pid='<unknown>', name=<unknown>, {FELL}.")

    def runs(self, driver: str) -> None:
        """The driver's version."""
        self.file.with_name("driver").write_text(driver)

    def look(self, deadline_s: float = 20.0) -> GpusPart:
        answer = self.node.ask("observe", parts=["gpus", "shards"], deadline_s=deadline_s)
        return from_json(NodeAnswer, answer).gpus


@pytest.fixture
def gpus(make_node: Callable[[], Node], library: Path) -> GpuNode:
    return GpuNode(make_node(), library)


def test_a_node_without_a_driver_has_no_gpus_and_no_error(node: Node) -> None:
    part = from_json(NodeAnswer, node.ask("observe")).gpus
    assert part == GpusPart()


def test_eight_gpus_are_seen(gpus: GpuNode) -> None:
    part = gpus.look()
    assert part.error == ""
    assert (part.driver, part.cuda) == ("570.00", "12.8")
    assert from_json(GpusPart, to_json(part)) == part
    assert [gpu.uuid for gpu in part.items] == UUIDS
    assert [gpu.index for gpu in part.items] == list(range(8))
    first = part.items[0]
    assert (first.capability, first.memory_mib, first.used_mib, first.error) == (
        "9.0",
        81559,
        0,
        "",
    )


@pytest.mark.parametrize("check", real_gpus.TOLD, ids=lambda check: check.__name__)
def test_what_a_real_driver_is_held_to_holds_for_the_stand_in(
    gpus: GpuNode, check: Callable[[Node], str]
) -> None:
    gpus.logs("a line of another device")
    needs_more = {real_gpus.nvidia_smi_says_the_same, real_gpus.the_numa_node_is_the_kernels}
    needs_more.add(real_gpus.gpus_of_one_group_are_linked_each_with_each)
    assert (check(gpus.node) == "") == (check not in needs_more)


@pytest.mark.parametrize("check", real_gpus.GIVEN, ids=lambda check: check.__name__)
def test_gpus_are_given_by_the_stand_in_as_by_a_real_driver(
    gpus: GpuNode, check: Callable[[Node], str]
) -> None:
    built("cuda/cuda.c", gpus.file.with_name("libcuda.so.1"))
    assert check(gpus.node) == ""


def test_a_strangers_process_is_told_with_user_and_memory(gpus: GpuNode) -> None:
    gpus.set(3, pids=str(os.getpid()), used_mib=1234)
    (process,) = gpus.look().items[3].processes
    assert (process.pid, process.used_mib, process.launch) == (os.getpid(), 1234, "")
    assert process.user
    assert process.name


def test_a_process_of_a_launch_is_told_as_its_own(gpus: GpuNode) -> None:
    gpus.node.start(on_gpu(Specs(gpus.node).shell("job-0-aaaaa", ["sleep", "60"]), UUIDS[2]))
    (pid,) = gpus.node.until("job-0-aaaaa", lambda s: s["pids"] != [])["pids"]
    gpus.set(2, pids=str(pid), used_mib=70000)
    (process,) = gpus.look().items[2].processes
    assert process.launch == "job-0-aaaaa"


def test_a_gpu_that_will_fail_soon_says_so_and_can_still_be_used(gpus: GpuNode) -> None:
    gpus.set(1, state="ecc")
    gpus.set(2, state="pending")
    items = gpus.look().items
    assert items[0].warnings == ()
    assert items[1].warnings == ("2 uncorrected ECC errors since the driver was loaded",)
    assert [text.split(":")[0] for text in items[2].warnings] == [
        "a row waits to be remapped",
        "a page waits to be retired",
    ]
    assert {gpu.error for gpu in items} == {""}


@pytest.mark.parametrize("state", ["lost", "fallen"])
def test_a_lost_gpu_is_there_with_its_error_and_the_others_are_well(
    gpus: GpuNode, state: str
) -> None:
    gpus.set(5, state)
    part = gpus.look()
    assert part.error == ""
    assert len(part.items) == 8
    assert part.items[5].error == "lost"
    assert [gpu.error for gpu in part.items if gpu.index != 5] == [""] * 7


@pytest.mark.parametrize(
    ("links", "groups"),
    [
        ("0 0 0 0 0 0 0 0", [0, 0, 0, 0, 0, 0, 0, 0]),
        ("0 0 0 0 1 1 1 1", [0, 0, 0, 0, 1, 1, 1, 1]),
        ("a b c d d c b a", [0, 1, 2, 3, 3, 2, 1, 0]),
        ("- - - - - - - -", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("- 7 7 - - - - -", [0, 1, 1, 2, 3, 4, 5, 6]),
        ("old", [None] * 8),
    ],
    ids=["one switch", "two fours", "four bridges", "pcie only", "one bridge", "older driver"],
)
def test_gpus_that_nvlink_joins_are_one_group(
    gpus: GpuNode, links: str, groups: list[int | None]
) -> None:
    gpus.link(links)
    part = gpus.look()
    assert part.error == ""
    assert [gpu.nvlink_group for gpu in part.items] == groups
    assert [gpu.error for gpu in part.items] == [""] * 8


@pytest.mark.parametrize("state", ["lost", "fallen"])
def test_a_lost_gpu_is_in_no_group_and_leaves_the_others_in_theirs(
    gpus: GpuNode, state: str
) -> None:
    gpus.link("0 0 0 0 1 1 1 1")
    gpus.set(5, state)
    groups = [gpu.nvlink_group for gpu in gpus.look().items]
    assert groups == [0, 0, 0, 0, 1, None, 1, 1]


def test_gpus_are_told_with_their_pci_address(gpus: GpuNode) -> None:
    first = gpus.look().items[0]
    assert first.bus == "00000000:01:00.0"


# --- Xid errors in the kernel's log -------------------------------------------------------------


def test_a_log_that_cannot_be_read_is_told_and_says_nothing_of_the_gpus(gpus: GpuNode) -> None:
    part = gpus.look()
    assert part.xid_error.endswith("kmsg: No such file or directory")
    assert {gpu.xids for gpu in part.items} == {None}
    gpus.logs("a line of another device")
    part = gpus.look()
    assert part.xid_error == ""
    assert {gpu.xids for gpu in part.items} == {()}


def test_a_gpu_that_its_driver_gave_up_is_not_used_though_nvml_still_answers(gpus: GpuNode) -> None:
    gpus.runs("535.129.03")
    gpus.falls(4)
    part = gpus.look()
    said = [gpu.error for gpu in part.items]
    assert said == ["", "", "", "", f"Xid 79, {FELL}; reboot the node", "", "", ""]
    (fault,) = part.items[4].xids or ()
    assert (fault.code, fault.count, fault.fatal, fault.text) == (79, 1, True, f"{FELL}.")
    with pytest.raises(Refused, match=f"GPU {UUIDS[4]}: Xid 79"):
        gpus.node.start(on_gpu(Specs(gpus.node).shell("job-0-aaaaa", ["sleep", "60"]), UUIDS[4]))


def test_a_lost_gpu_is_told_with_the_reason_of_its_driver(gpus: GpuNode) -> None:
    gpus.set(5, "lost")
    gpus.falls(5)
    assert gpus.look().items[5].error == f"lost: Xid 79, {FELL}; reboot the node"


def test_a_gpu_without_a_handle_is_named_by_the_kernels_log(gpus: GpuNode) -> None:
    gpus.set(2, "fallen")
    assert gpus.look().items[2].uuid == ""
    gpus.falls(2)
    item = gpus.look().items[2]
    assert (item.uuid, item.bus) == (UUIDS[2], "0000:03:00")
    assert item.error == f"lost: Xid 79, {FELL}; reboot the node"


def test_a_gpu_that_is_no_longer_listed_is_named_and_the_others_keep_their_names(
    gpus: GpuNode,
) -> None:
    gpus.set(2, "gone")
    assert len(gpus.look().items) == 7
    gpus.falls(2)
    part = gpus.look()
    left = [uuid for uuid in UUIDS if uuid != UUIDS[2]]
    assert [(g.uuid, g.index) for g in part.items] == [
        *((uuid, index) for index, uuid in enumerate(left)),
        (UUIDS[2], -1),
    ]
    assert part.items[-1].error.startswith("NVML no longer lists it: Xid 79")
    assert {gpu.error for gpu in part.items[:-1]} == {""}


def test_a_gpu_that_nobody_names_is_not_made_up(gpus: GpuNode) -> None:
    gpus.set(2, "gone")
    gpus.falls(2, named=False)
    assert len(gpus.look().items) == 7


def test_a_gpu_is_used_again_once_the_driver_says_so(gpus: GpuNode) -> None:
    gpus.falls(1)
    gpus.set(1, "reboot")
    assert gpus.look().items[1].error == f"Xid 79, {FELL}; reboot the node"
    # Reset, and no word of it in the log.
    gpus.set(1, "ok")
    item = gpus.look().items[1]
    assert item.error == ""
    assert item.warnings == (f"Xid 79, {FELL}, last 60 s after boot",)


def test_a_gpu_that_its_driver_wants_reset_is_not_used(gpus: GpuNode) -> None:
    gpus.set(6, "reset")
    assert gpus.look().items[6].error == "the driver asks for a reset of the GPU"


def test_a_gpu_that_hangs_is_unknown_and_does_not_hold_up_the_look(gpus: GpuNode) -> None:
    gpus.look()
    gpus.set(7, "hangs")
    started = time.monotonic()
    part = gpus.look(deadline_s=3)
    assert time.monotonic() - started < 3
    assert "did not answer within" in part.items[7].error
    assert [gpu.error for gpu in part.items[:7]] == [""] * 7
    # Until it is asked again nothing is known, and that is not "no GPUs".
    again = gpus.look(deadline_s=3)
    assert again.items == ()
    assert "hung before" in again.error


def test_a_hung_probe_is_ended(gpus: GpuNode) -> None:
    gpus.look()
    gpus.set(0, "hangs")
    assert "did not answer" in gpus.look(deadline_s=3).items[0].error

    def hung() -> list[str]:
        found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
        own = [line for line in found.stdout.splitlines() if str(gpus.node.root) in line]
        return [line for line in own if line.endswith("probe nvml")]

    poll(hung, lambda lines: lines == [])


def test_a_launch_gets_the_indices_of_its_uuids_at_start(gpus: GpuNode) -> None:
    # The record names UUIDs; since it was planned the numbering has shifted.
    gpus.lines = [gpus.lines[n] for n in (3, 1, 2, 0, 4, 5, 6, 7)]
    gpus.write()
    script = "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER; exit 3"
    spec = on_gpu(Specs(gpus.node).shell("job-0-aaaaa", ["sh", "-c", script]), UUIDS[0], UUIDS[1])
    gpus.node.start(spec)
    assert gpus.node.ended("job-0-aaaaa")["log_tail"] == ["3,1 PCI_BUS_ID"]


@pytest.mark.parametrize(
    ("index", "state", "pids", "used_mib", "finding"),
    [
        (1, "ok", "own", 500, f"GPU {UUIDS[1]} is held by a stranger: pid"),
        (1, "ok", "0", 70000, f"GPU {UUIDS[1]} has 70000 MiB in use by processes that cannot"),
        (1, "lost", "0", 0, f"GPU {UUIDS[1]}: lost"),
        (1, "fallen", "0", 0, f"GPU {UUIDS[1]} is not on this node"),
        (1, "hangs", "0", 0, f"GPU {UUIDS[1]}: nvml did not answer"),
    ],
)
def test_a_gpu_that_is_not_seen_free_is_not_given(
    gpus: GpuNode, index: int, state: str, pids: str, used_mib: int, finding: str
) -> None:
    gpus.set(index, state, str(os.getpid()) if pids == "own" else pids, used_mib)
    spec = on_gpu(Specs(gpus.node).shell("job-0-aaaaa", ["sleep", "60"]), UUIDS[1])
    with pytest.raises(Refused) as refused:
        gpus.node.start(spec)
    assert refused.value.code == "preflight"
    assert finding in refused.value.message
    if state != "hangs":
        # Its neighbours are given all the same.
        other = on_gpu(Specs(gpus.node).shell("job-1-aaaaa", ["sleep", "60"]), UUIDS[2])
        assert gpus.node.start(other) == "started"


def test_a_gpu_that_goes_between_preflight_and_start_reads_preflight(gpus: GpuNode) -> None:
    """The supervisor looks by itself: what it cannot find is never taken for a neighbour."""
    node = gpus.node
    spec = on_gpu(Specs(node).shell("job-0-aaaaa", ["sleep", "60"]), UUIDS[6])
    sidecar = {"name": "side", "argv": ["sleep", "600"], "env": {}, "gpu_env": []}
    spec["commands"].insert(0, sidecar)
    spec["commands"][1]["wait_for"] = {"host": node.address, "port": 29_999}
    node.start(spec)
    (side,) = node.until("job-0-aaaaa", lambda s: s["pids"] != [])["pids"]
    gpus.set(6, "fallen")
    import socket

    with socket.socket() as leader:
        leader.bind((node.address, 29_999))
        leader.listen()
        shard = node.ended("job-0-aaaaa")
    assert shard["exit"]["kind"] == "preflight"
    assert f"GPU {UUIDS[6]} is not on this node" in shard["exit"]["message"]
    assert gone(side)
