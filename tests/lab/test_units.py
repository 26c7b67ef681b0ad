"""System mode on machines that run systemd: a unit per launch, and an engine that outlives it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.core.observed import ExitKind, Phase
from tests.lab.test_faults import records, wipe
from tests.lab.world import World
from tools.labfleet import LabFleet

pytestmark = pytest.mark.lab


@pytest.fixture
def world(lab: LabFleet, tmp_path: Path) -> Iterator[World]:
    """Nodes whose launches are units."""
    world = World(lab, tmp_path, "system")
    yield world
    world.close()
    for name in lab.names:
        if records(lab, name).exists():
            lab.power_cut(name)
            wipe(records(lab, name))
            lab.start(name)


def shown(lab: LabFleet, node: str, unit: str) -> dict[str, str]:
    """The unit's properties, as systemd has them."""
    text = lab.ssh(node, f"systemctl show {unit}").stdout
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def supervisor(world: World, lab: LabFleet, node: str, launch: str) -> int:
    """Its pid inside the node."""
    import json

    status = json.loads((world.folder(node, launch) / "status.json").read_text())
    return int(status["supervisor"]["pid"])


def test_a_launch_is_a_unit_with_limits_and_rules_of_its_own(world: World, lab: LabFleet) -> None:
    node = lab.names[0]
    launch = world.start(node, "chat")
    world.until_ready(node, launch)
    unit = shown(lab, node, f"reconcile-{launch}.service")
    assert (unit["ActiveState"], unit["Transient"], unit["Delegate"]) == ("active", "yes", "yes")
    assert (unit["KillMode"], unit["OOMPolicy"], unit["Restart"]) == ("process", "continue", "no")
    assert (unit["LimitMEMLOCK"], unit["TasksMax"]) == ("infinity", "infinity")
    assert unit["OOMScoreAdjust"] == "-900"
    assert int(unit["LimitNOFILE"]) >= 1048576
    (pid,) = world.until_ready(node, launch).pids
    assert lab.ssh(node, f"cat /proc/{pid}/oom_score_adj").stdout.strip() == "0"
    group = lab.ssh(node, f"cat /proc/{pid}/cgroup").stdout.strip()
    assert f"/reconcile-{launch}.service/reconcile-{launch}-0-" in group


def test_the_engine_outlives_its_unit_and_a_new_one_takes_it_over(
    world: World, lab: LabFleet
) -> None:
    node = lab.names[0]
    launch = world.start(node, "chat")
    pids = world.until_ready(node, launch).pids
    lab.ssh(node, f"kill -9 {supervisor(world, lab, node, launch)}")
    shard = world.until(node, launch, lambda s: not s.supervised)
    assert (shard.alive, shard.pids) == (True, pids)
    answer = world.ask(node, "adopt", **world.fence(node), launch=launch)
    assert answer["state"] == "adopted"
    assert world.until_ready(node, launch).pids == pids
    world.stop(node, launch)
    ended = world.until(node, launch, lambda s: s.phase is Phase.ENDED and not s.alive)
    assert ended.exit is not None
    assert ended.exit.kind is ExitKind.STOPPED
    assert world.marked(node) == []


def test_a_unit_that_an_admin_stops_ends_its_shard_in_good_order(
    world: World, lab: LabFleet
) -> None:
    node = lab.names[0]
    launch = world.start(node, "chat")
    world.until_ready(node, launch)
    lab.ssh(node, f"systemctl stop reconcile-{launch}.service")
    ended = world.until(node, launch, lambda s: s.phase is Phase.ENDED)
    assert ended.exit is not None
    assert (ended.exit.kind, ended.exit.code) == (ExitKind.STOPPED, 0)
    assert world.marked(node) == []


def test_an_ended_launch_leaves_no_unit_and_no_group(world: World, lab: LabFleet) -> None:
    node = lab.names[0]
    launch = world.start(node, "chat")
    world.until_ready(node, launch)
    world.stop(node, launch)
    world.until(node, launch, lambda s: s.phase is Phase.ENDED and not s.supervised)
    script = (
        "for i in $(seq 50); do systemctl list-units --all --no-legend 'reconcile-*' | grep -q . "
        "|| break; sleep 0.1; done; systemctl list-units --all --no-legend 'reconcile-*'; "
        "find /sys/fs/cgroup -name 'reconcile-*'"
    )
    assert lab.ssh(node, script).stdout.strip() == ""
