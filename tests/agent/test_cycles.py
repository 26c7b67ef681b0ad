"""Start and stop, two hundred times: nothing is left behind of any of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.agent.harness import Json, Node, Specs, poll

CYCLES = 200
AT_ONCE = 10
SEGMENT = (
    "import sys, time; from multiprocessing import resource_tracker, shared_memory; "
    "resource_tracker.register = lambda *_: None; "
    "s = shared_memory.SharedMemory(create=True, size=4096); "
    "open('name', 'w').write(s.name); time.sleep(600)"
)


def state_of(node: Node) -> dict[str, object]:
    """What the agent itself holds open."""
    assert node._main is not None
    pid = node._main.process.pid
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "children": sorted(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()),
    }


def group_of(node: Node, launch: str) -> str:
    import json

    path = node.root / "launches" / launch / "status.json"
    return str(json.loads(path.read_text()).get("cgroup") or "")


def test_two_hundred_starts_and_stops_leave_nothing(node: Node, specs: Specs) -> None:
    node.shards()
    fence = node.fence()
    shared: list[str] = []

    def cycle(number: int) -> list[str]:
        names = [f"r{number + i}-0-x" for i in range(AT_ONCE)]
        made: dict[str, Json] = {}
        for name in names:
            # One in each round makes shared memory as well, and leaves it.
            leaves = name == names[0]
            argv = [sys.executable, "-c", SEGMENT] if leaves else ["sleep", "600"]
            made[name] = specs.shell(name, argv)
            node.ask("start", **fence, spec=made[name], labels={})
        path = node.root / "launches" / names[0]
        poll(lambda: (path / "name").exists() and (path / "name").read_text() != "", bool)
        poll(lambda: '"psm_' in (path / "status.json").read_text(), bool)
        shared.append((path / "name").read_text().lstrip("/"))
        groups = [group_of(node, name) for name in names]
        for name in names:
            node.ask("stop", **fence, launch=name, grace_s=0)
        poll(
            lambda: [n for n in names if node.shards()[n]["alive"]],
            lambda left: not left,
        )
        return [group for group in groups if group]

    groups = cycle(0)
    first = state_of(node)
    for number in range(AT_ONCE, CYCLES, AT_ONCE):
        groups += cycle(number)
    assert poll(node.processes, lambda left: not left) == []
    assert state_of(node) == first
    assert [name for name in shared if Path("/dev/shm", name).exists()] == []
    assert [group for group in groups if os.path.isdir(group)] == []
