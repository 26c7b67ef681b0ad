"""Eight GPUs by the stand-in NVML library, seen over SSH on a machine of their own."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.core.observed import GpusPart
from tests.lab.conftest import lab_name
from tests.lab.world import OBSERVE_S, World
from tools.labfleet import LabFleet, LabOptions, nvml

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not shutil.which("gcc"), reason="lab: apt-get install gcc libc6-dev"),
]


@pytest.fixture(scope="module")
def gpu_lab() -> Iterator[LabFleet]:
    """Two nodes with eight GPUs each."""
    options = LabOptions(nvml=str(nvml.SOURCE))
    with LabFleet.create(2, name=lab_name("g"), options=options) as lab:
        yield lab


@pytest.fixture
def world(gpu_lab: LabFleet, tmp_path: Path) -> Iterator[World]:
    """All GPUs idle and well, before and after."""
    world = World(gpu_lab, tmp_path, source="nvml")
    yield world
    world.close()
    for name in gpu_lab.names:
        for index in range(nvml.COUNT):
            gpu_lab.set_gpu(name, index, state="ok", pids=(), used_mib=0)


def gpus(world: World, node: str) -> GpusPart:
    return world.answer(node).gpus


def test_every_node_has_eight_gpus_of_its_own(world: World) -> None:
    seen = {node: gpus(world, node) for node in world.lab.names}
    assert [part.error for part in seen.values()] == ["", ""]
    assert [len(part.items) for part in seen.values()] == [nvml.COUNT, nvml.COUNT]
    uuids = [gpu.uuid for part in seen.values() for gpu in part.items]
    assert len(set(uuids)) == 2 * nvml.COUNT


def test_a_machine_that_may_not_read_the_kernels_log_says_so(world: World) -> None:
    part = gpus(world, world.lab.names[0])
    # A container has something in its place that nobody writes to.
    assert part.xid_error.startswith("/dev/kmsg: ")
    assert {gpu.xids for gpu in part.items} == {None}
    assert {gpu.error for gpu in part.items} == {""}


def test_a_gpu_that_its_driver_wants_reset_gets_no_launch(world: World) -> None:
    node = world.lab.names[0]
    gpu = world.lab.set_gpu(node, 4, state="reset")
    assert gpus(world, node).items[4].error == "the driver asks for a reset of the GPU"
    _, fields = world.spec(node, "chat", gpu=gpu.uuid)
    assert world.refusal(node, "start", **world.fence(node), **fields) == "preflight"


def test_gpus_keep_their_uuids_over_a_reboot(world: World) -> None:
    node = world.lab.names[1]
    before = [gpu.uuid for gpu in gpus(world, node).items]
    world.lab.reboot(node)
    assert [gpu.uuid for gpu in gpus(world, node).items] == before


def test_a_lost_gpu_says_so_and_hides_no_other(world: World) -> None:
    node = world.lab.names[0]
    world.lab.set_gpu(node, 3, state="lost")
    items = gpus(world, node).items
    assert [gpu.error for gpu in items] == ["", "", "", "lost", "", "", "", ""]


def test_a_hung_gpu_neither_hangs_the_look_nor_hides_the_node(world: World) -> None:
    node = world.lab.names[0]
    world.lab.set_gpu(node, 5, state="hangs")
    begin = time.monotonic()
    look = world.look(node)
    assert time.monotonic() - begin < OBSERVE_S + 1
    assert look.answer is not None, look
    part = look.answer.gpus
    fine = [gpu.index for gpu in part.items if not gpu.error]
    assert 5 not in fine
    assert [i for i in range(5) if i in fine] == [0, 1, 2, 3, 4]


def test_a_strangers_process_is_shown_with_its_user_and_blocks_the_gpu(world: World) -> None:
    node = world.lab.names[0]
    run = "setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $!"
    pid = int(world.lab.ssh(node, run, user="op").stdout)
    gpu = world.lab.set_gpu(node, 2, pids=(pid,), used_mib=700)
    (seen,) = gpus(world, node).items[2].processes
    assert (seen.pid, seen.user, seen.used_mib, seen.launch) == (pid, "op", 700, "")
    launch, fields = world.spec(node, "chat", gpu=gpu.uuid)
    assert world.refusal(node, "start", **world.fence(node), **fields) == "preflight"
    assert world.shard(node, launch) is None
    assert world.lab.ssh(node, f"kill {pid}", user="op").returncode == 0, "it was killed"


def test_a_launch_gets_the_gpu_of_its_record_and_no_other(world: World) -> None:
    node = world.lab.names[0]
    gpu = world.lab.gpus(node)[6]
    launch, fields = world.spec(node, "chat", gpu=gpu.uuid)
    assert world.ask(node, "start", **world.fence(node), **fields)["state"] == "started"
    shard = world.until_ready(node, launch)
    environs = " ".join(f"/proc/{pid}/environ" for pid in shard.pids)
    given = world.lab.ssh(node, f"grep -zha ^CUDA_VISIBLE_DEVICES= {environs} | tr '\\0' '\\n'")
    assert set(given.stdout.split()) == {"CUDA_VISIBLE_DEVICES=6"}
    world.stop(node, launch)
    world.until(node, launch, lambda s: not s.alive)
