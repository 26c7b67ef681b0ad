"""The same look at GPUs as in test_gpus.py, against a real NVIDIA driver: `make test-gpu`.

Skipped by name where there is none. Needs no network and starts nothing on a GPU.
"""

from __future__ import annotations

import ctypes
import re
import time

import pytest

from reconciler.core.codec import from_json
from reconciler.core.observed import GpusPart, NodeAnswer
from tests.agent.harness import Node, Refused, Specs
from tests.agent.test_gpus import on_gpu


def _driver() -> bool:
    try:
        return ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2() == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not _driver(), reason="no NVIDIA driver on this machine")
LOOK_S = 10.0


def look(node: Node) -> GpusPart:
    answer = node.ask("observe", parts=["gpus", "shards"], deadline_s=LOOK_S)
    return from_json(NodeAnswer, answer).gpus


def test_every_gpu_is_told_with_its_driver(node: Node) -> None:
    part = look(node)
    assert part.error == ""
    assert part.items
    assert re.fullmatch(r"\d+(\.\d+)+", part.driver)
    assert re.fullmatch(r"\d+\.\d+", part.cuda)
    for index, gpu in enumerate(part.items):
        assert gpu.index == index
        assert re.match(r"(GPU|MIG)-[0-9a-f-]+\Z", gpu.uuid)
        assert gpu.name
        assert gpu.error or (gpu.memory_mib and gpu.used_mib is not None and gpu.capability)


def test_a_second_look_says_the_same_and_is_quick(node: Node) -> None:
    first = look(node)
    begin = time.monotonic()
    second = look(node)
    assert time.monotonic() - begin < 1.0
    assert [g.uuid for g in second.items] == [g.uuid for g in first.items]


def test_a_gpu_that_is_not_there_refuses_a_start(node: Node, specs: Specs) -> None:
    absent = "GPU-00000000-0000-0000-0000-000000000000"
    with pytest.raises(Refused) as refused:
        node.start(on_gpu(specs.shell("job-0-absent", ["sleep", "60"]), absent))
    assert absent in refused.value.message


def test_a_start_is_told_the_index_of_its_gpu(node: Node, specs: Specs) -> None:
    free = [
        g for g in look(node).items if not g.error and not g.processes and (g.used_mib or 0) < 2048
    ]
    if not free:
        pytest.skip("every GPU of this machine is in use")
    spec = on_gpu(
        specs.shell("job-0-real", ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES > gpu; sleep 60"]),
        free[-1].uuid,
    )
    node.start(spec)
    path = node.root / "launches/job-0-real/gpu"
    node.until("job-0-real", lambda _: path.exists() and path.read_text() != "")
    assert path.read_text().strip() == str(free[-1].index)
