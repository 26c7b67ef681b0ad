"""The fault matrix over whole machines: a row a fault, each with what must hold after it.

Loopback nodes show the faults of processes and connections; here it is the machine that fails:
reboot, power cut, freeze, network cut, full disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.core.observed import ExitKind, LookError, Phase
from reconciler.core.verdict import Verdict
from reconciler.errors import NodeError
from tests.lab.world import OBSERVE_S, World
from tools.labfleet import LabFleet, NodeState

pytestmark = pytest.mark.lab

QUIET_S = 1.5
"""How long a node is watched for something that must not happen: supervisors act within 0.2 s."""


@pytest.fixture(params=["plain", "system"])
def world(lab: LabFleet, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """Nodes without a launch, before and after."""
    world = World(lab, tmp_path, request.param)
    yield world
    world.close()
    for name in lab.names:
        if lab.state(name) is NodeState.FROZEN:
            lab.thaw(name)
        if lab.state(name) is NodeState.OFF:
            lab.start(name)
        if lab.is_cut(name):
            lab.join(name)
        lab.unfill(name)
        if records(lab, name).exists():
            lab.power_cut(name)
            wipe(records(lab, name))
            lab.start(name)


def records(lab: LabFleet, name: str) -> Path:
    """The node's folder of records, made by its first start."""
    return lab.root(name) / "var/lib/reconcile/launches"


def wipe(root: Path) -> None:
    """Remove a folder with all that is in it, and nothing that a link leads to."""
    for path in sorted(root.rglob("*"), key=lambda p: len(p.parts), reverse=True):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
    root.rmdir()


def assert_nothing_restarts(world: World, node: str, launch: str) -> None:
    """Ended by a reboot, said so, and nothing but a new launch would change that."""
    shard = world.shard(node, launch)
    assert shard is not None, "the record is gone"
    assert shard.exit is not None
    assert (shard.phase, shard.exit.kind, shard.alive) == (Phase.ENDED, ExitKind.REBOOT, False)
    until = time.monotonic() + QUIET_S
    while time.monotonic() < until:
        assert world.marked(node) == [], "something restarted by itself"
    again = world.shard(node, launch)
    assert again is not None
    assert (again.phase, again.alive, again.pids) == (Phase.ENDED, False, ())


def test_after_a_reboot_a_launch_reads_exited_reboot_and_nothing_restarts_by_itself(
    world: World, lab: LabFleet
) -> None:
    node = lab.names[0]
    launch = world.start(node, "chat")
    before = world.until_ready(node, launch)
    assert world.verdict("chat", node) is Verdict.MATCHING
    boot = lab.boot_id(node)
    lab.reboot(node)
    assert lab.boot_id(node) != boot
    assert_nothing_restarts(world, node, launch)
    after = world.shard(node, launch)
    assert after is not None
    assert after.record == before.record, "the record must outlive the reboot unchanged"
    assert world.verdict("chat", node) is Verdict.EXITED
    _, fields = world.spec(node, "chat")
    assert world.ask(node, "start", **world.fence(node), **fields)["state"] == "ended"
    assert world.marked(node) == []


def test_after_a_power_cut_a_running_launch_reads_exited_reboot(
    world: World, lab: LabFleet
) -> None:
    node = lab.names[0]
    launch = world.start(node, "chat")
    world.until_ready(node, launch)
    lab.power_cut(node)
    assert world.look(node).error is LookError.UNREACHABLE
    assert world.verdict("chat", node) is Verdict.UNREACHABLE
    lab.start(node)
    assert_nothing_restarts(world, node, launch)


def test_after_a_power_cut_a_loading_launch_reads_exited_reboot(
    world: World, lab: LabFleet
) -> None:
    node = lab.names[0]
    launch = world.start(node, "chat", "--load-time", "60")
    world.until(node, launch, lambda s: s.phase is Phase.STARTING and bool(s.pids))
    lab.power_cut(node)
    lab.start(node)
    assert_nothing_restarts(world, node, launch)


def test_after_a_power_cut_in_the_middle_of_a_stop_nothing_of_the_launch_lives(
    world: World, lab: LabFleet
) -> None:
    node = lab.names[0]
    launch = world.start(node, "chat")
    world.until_ready(node, launch)
    world.stop(node, launch)
    lab.power_cut(node)
    lab.start(node)
    shard = world.shard(node, launch)
    assert shard is not None
    assert shard.exit is not None
    # The cut may have come just after the supervisor wrote that it had stopped it.
    assert shard.exit.kind in (ExitKind.REBOOT, ExitKind.STOPPED)
    assert (shard.phase, shard.alive, shard.stop_asked) == (Phase.ENDED, False, True)
    assert world.marked(node) == []
    assert world.stop(node, launch) == "ended"


@pytest.mark.parametrize("after_ms", [0, 10, 25, 50, 100, 150, 200, 300, 500, 900])
def test_a_power_cut_at_any_moment_of_a_start_leaves_a_whole_record_or_none(
    world: World, lab: LabFleet, after_ms: int
) -> None:
    node = lab.names[0]
    launch, fields = world.spec(node, "chat")
    fence = world.fence(node)

    def start() -> None:
        try:
            world.ask(node, "start", **fence, **fields)
        except NodeError:
            # No answer, or the repeated request was refused: a lease ends with the boot.
            return

    asking = threading.Thread(target=start)
    asking.start()
    time.sleep(after_ms / 1000)
    lab.power_cut(node)
    lab.start(node)
    asking.join()
    shards = world.answer(node).shards
    if shards:
        assert [(s.launch, s.record_error) for s in shards] == [(launch, "")]
        assert_nothing_restarts(world, node, launch)
    assert world.marked(node) == []


def test_a_frozen_node_reads_unreachable_is_held_and_goes_on_when_it_thaws(
    world: World, lab: LabFleet
) -> None:
    node, other = lab.names[0], lab.names[1]
    launch = world.start(node, "chat")
    before = world.until_ready(node, launch)
    world.fence(node)
    world.look(node)
    lab.freeze(node)
    begin = time.monotonic()
    observed = world.pool.look(world.desired)
    assert time.monotonic() - begin < OBSERVE_S + 1
    assert observed.nodes[node].error is LookError.UNREACHABLE
    assert observed.nodes[other].answer is not None, "a frozen node must not hold up the others"
    last = observed.nodes[node].last
    assert last is not None
    assert [s.launch for s in last.shards] == [launch], "what it held stays known"
    assert world.verdict("chat", node) is Verdict.UNREACHABLE
    assert world.unseen(node)
    lab.thaw(node)
    after = world.until_ready(node, launch)
    assert (after.pids, after.restarts, after.boot_id) == (before.pids, 0, before.boot_id)
    assert world.verdict("chat", node) is Verdict.MATCHING


@pytest.mark.parametrize("cable", [False, True], ids=["silent", "cable"])
def test_a_node_that_is_cut_off_reads_unreachable_and_its_engine_lives_on(
    world: World, lab: LabFleet, cable: bool
) -> None:
    node = lab.names[0]
    launch = world.start(node, "chat")
    before = world.until_ready(node, launch)
    lab.cut(node, cable=cable)
    begin = time.monotonic()
    assert world.look(node).error is LookError.UNREACHABLE
    assert world.verdict("chat", node) is Verdict.UNREACHABLE
    away_s = time.monotonic() - begin
    lab.join(node)
    after = world.until_ready(node, launch)
    assert (after.pids, after.restarts) == (before.pids, 0)
    assert after.health.ready_for_s > away_s, "its health broke off while it was out of sight"
    assert world.verdict("chat", node) is Verdict.MATCHING


def test_on_a_full_disk_nothing_starts_without_a_record_and_what_runs_goes_on(
    world: World, lab: LabFleet
) -> None:
    node = lab.names[0]
    running = world.start(node, "runs")
    before = world.until_ready(node, running)
    launch, fields = world.spec(node, "chat")
    fence = world.fence(node)
    lab.fill(node)
    assert world.refusal(node, "start", **fence, **fields) in ("io", "preflight")
    assert world.shard(node, launch) is None
    assert not (world.folder(node, launch) / "spec.json").exists()
    after = world.until_ready(node, running)
    assert (after.pids, after.restarts) == (before.pids, 0)
    lab.unfill(node)
    assert world.ask(node, "start", **world.fence(node), **fields)["state"] == "started"
    world.until_ready(node, launch)


@pytest.mark.parametrize("leave_kib", [4, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128])
def test_with_room_for_only_some_of_a_starts_files_it_is_refused_whole_or_done_whole(
    world: World, lab: LabFleet, leave_kib: int
) -> None:
    node = lab.names[0]
    launch, fields = world.spec(node, "chat")
    fence = world.fence(node)
    lab.fill(node, leave_kib=leave_kib)
    refusal = world.refusal(node, "start", **fence, **fields)
    shard = world.shard(node, launch)
    if refusal:
        assert refusal in ("io", "preflight")
        assert (shard, world.marked(node)) == (None, [])
    else:
        assert shard is not None
        assert (shard.record_error, shard.alive) == ("", True)
