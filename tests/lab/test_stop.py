"""How a shard ends where nothing helps but watching: no cgroup, processes that cannot be killed.

The operator of a lab node is no root: no group can be made for its shards, and a program that sudo
runs as root is out of its reach, as one in an uninterruptible call is out of everybody's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reconciler.core.observed import ExitKind, Phase
from tests.lab.world import World
from tools.labfleet import LabFleet

pytestmark = pytest.mark.lab

ROOT = "/home/op/.local/state/reconcile"


@pytest.fixture
def node(lab: LabFleet) -> Iterator[str]:
    name = lab.names[1]
    yield name
    lab.power_cut(name)
    lab.start(name)
    lab.ssh(name, f"rm -rf {ROOT}")


@pytest.fixture
def world(lab: LabFleet, tmp_path: Path, node: str) -> Iterator[World]:
    """The node with `op` as its login."""
    world = World(lab, tmp_path)
    document = world.desired.nodes[node]
    operator = replace(document, ssh=replace(document.ssh, user="op"))
    world.desired = replace(world.desired, nodes={**world.desired.nodes, node: operator})
    yield world
    world.close()


def start(world: World, node: str, *argv: str, grace_s: int = 1) -> str:
    """A launch of one command that serves nothing."""
    launch, fields = world.spec(node, "chat")
    spec: dict[str, Any] = dict(fields["spec"])
    (command,) = spec["commands"]
    command = {**command, "argv": list(argv)}
    spec = {**spec, "commands": [command], "health": None, "stop_grace_s": grace_s}
    assert world.ask(node, "start", **world.fence(node), spec=spec, labels={})["state"] == "started"
    return launch


def status(lab: LabFleet, node: str, launch: str) -> dict[str, Any]:
    path = lab.root(node) / ROOT.lstrip("/") / "launches" / launch / "status.json"
    return dict(json.loads(path.read_text()))


def alive(lab: LabFleet, node: str, pattern: str) -> list[int]:
    return [int(p) for p in lab.ssh(node, f"pgrep -f '{pattern}'").stdout.split()]


def test_what_outlives_kill_reads_stuck_with_its_pids_and_keeps_its_gpu(
    world: World, lab: LabFleet, node: str
) -> None:
    ignores = "trap '' TERM; exec /usr/bin/sleep 98765"
    launch = start(world, node, "/usr/bin/sudo", "-n", "/bin/sh", "-c", ignores)
    world.until(node, launch, lambda s: len(s.pids) == 2)
    assert status(lab, node, launch)["containment"] == "subreaper and marks"
    world.stop(node, launch)
    stuck = world.until(node, launch, lambda s: s.stop_age_s > 5)
    assert (stuck.phase, stuck.alive, stuck.exit) == (Phase.STOPPING, True, None)
    (left,) = status(lab, node, launch)["remaining"]
    assert stuck.pids == (left,)
    gpu = stuck.record.places[0].gpus[0] if stuck.record else ""
    _, fields = world.spec(node, "talk", gpu=gpu)
    assert world.refusal(node, "start", **world.fence(node), **fields) == "gpu-taken"

    # The supervisor dies as well. What is left has no mark, and its command has ended.
    lab.ssh(node, f"kill -9 {status(lab, node, launch)['supervisor']['pid']}")
    orphan = world.until(node, launch, lambda s: not s.supervised)
    assert (orphan.alive, orphan.pids) == (True, (left,)), "what is left must not be forgotten"
    assert world.refusal(node, "start", **world.fence(node), **fields) == "gpu-taken"
    assert world.stop(node, launch) == "stopping"
    world.until(node, launch, lambda s: s.supervised and s.phase is Phase.STOPPING)

    lab.ssh(node, f"kill -9 {left}")
    ended = world.until(node, launch, lambda s: s.phase is Phase.ENDED and not s.alive)
    assert ended.exit is not None
    assert ended.exit.kind is ExitKind.STOPPED
    assert world.ask(node, "start", **world.fence(node), **fields)["state"] == "started"


CLEARED = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork(): os._exit(0)\n"
    "    os.execve('/usr/bin/sleep', ['sleep', '87654'], {})\n"
    "time.sleep(600)\n"
)
"""Leaves a daemon without environment: no mark, no group, no session and no parent lead to it."""


def test_a_daemon_without_a_mark_is_ended_though_the_supervisor_died_in_the_stop(
    world: World, lab: LabFleet, node: str
) -> None:
    launch = start(world, node, "/usr/bin/python3", "-c", CLEARED, grace_s=600)
    world.until(node, launch, lambda s: bool(alive(lab, node, "^sleep 87654")))
    world.stop(node, launch)
    world.until(node, launch, lambda s: s.phase is Phase.STOPPING)
    lab.ssh(node, f"kill -9 {status(lab, node, launch)['supervisor']['pid']}")
    world.until(node, launch, lambda s: not s.supervised)
    world.ask(node, "stop", **world.fence(node), launch=launch, grace_s=0)
    world.until(node, launch, lambda s: s.phase is Phase.ENDED and not s.alive)
    assert alive(lab, node, "^sleep 87654") == []
