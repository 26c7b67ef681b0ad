"""What a look tells of the machine itself: its clock, its limits, its driver."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler.core.codec import from_json
from reconciler.core.observed import NodeAnswer, Resources
from tests.agent.harness import FLEET, Node, Refused, Specs

YEAR_S = 365 * 24 * 3600.0


def look(node: Node) -> NodeAnswer:
    return from_json(NodeAnswer, node.ask("observe", fleet=FLEET))


# --- Clock --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wall clock that is off, as a library."""
    target = tmp_path_factory.mktemp("clock") / "clock.so"
    source = Path(__file__).parent / "clock" / "clock.c"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", str(target), str(source)], check=True)
    return target


class Clock:
    """Sets the wall clock of a node's agent while it runs."""

    def __init__(self, node: Node, library: Path) -> None:
        self._file = node.folder / "clock-off"
        node.env.update(LD_PRELOAD=str(library), CLOCK_OFF=str(self._file))
        self.off(0)

    def off(self, seconds: float) -> None:
        part = self._file.with_suffix(".part")
        part.write_text(f"{seconds:.0f}")
        part.rename(self._file)


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S], ids=["ahead", "behind"])
def test_a_clock_that_jumps_a_year_is_told_and_changes_nothing_else(
    make_node: Callable[[], Node], clock: Path, jump_s: float
) -> None:
    node = make_node()
    wall = Clock(node, clock)
    specs = Specs(node)
    node.start(specs.sim("chat-0-aaaaa"))
    node.ready("chat-0-aaaaa")
    before = look(node)
    assert abs(before.clock_s - time.time()) < 60

    wall.off(jump_s)
    after = look(node)
    assert abs(after.clock_s - time.time() - jump_s) < 60
    assert before.lease is not None
    assert after.lease is not None
    assert 500 < after.lease.remaining_s <= before.lease.remaining_s
    (was,), (shard,) = before.shards, after.shards
    assert (shard.phase, shard.alive, shard.fresh, shard.exit) == (was.phase, True, True, None)
    assert shard.health.ok
    assert was.started_age_s <= shard.started_age_s < was.started_age_s + 60
    assert after.uptime_s < before.uptime_s + 60

    node.start(specs.sim("chat-1-aaaaa"))
    node.ready("chat-1-aaaaa")
    for launch in ("chat-0-aaaaa", "chat-1-aaaaa"):
        node.stop(launch)
        ended = node.ended(launch)
        assert ended["exit"]["kind"] == "stopped"
        assert ended["exit"]["age_s"] < 60


# --- Limits -------------------------------------------------------------------------------------


def limited(node: Node, kind: int, soft: int, hard: int) -> None:
    """A limit of the login, before it has any child."""
    node.ask("hello")
    assert node._main is not None
    resource.prlimit(node._main.process.pid, kind, (soft, hard))


def test_limits_are_told_as_a_launch_can_have_them(node: Node) -> None:
    limited(node, resource.RLIMIT_NOFILE, 256, 512)
    limited(node, resource.RLIMIT_MEMLOCK, 64 * 1024, 128 * 1024)
    seen: Resources = look(node).resources
    assert (seen.nofile, seen.memlock) == (512, "128 KiB")

    specs = Specs(node)
    argv = ["sh", "-c", "ulimit -n; ulimit -l; exit 3"]
    for ordinal, needs in enumerate(({}, {"nofile": 512, "memlock": "128"}, {"memlock": "96"})):
        launch = f"job-{ordinal}-aaaaa"
        node.start({**specs.shell(launch, argv), "needs": needs})
        told = ["512", needs.get("memlock", "128")]
        assert node.ended(launch)["log_tail"] == told

    over = specs.shell("job-9-aaaaa", ["sleep", "60"])
    with pytest.raises(Refused, match=r"nofile: at most 512.*memlock: 128 KiB"):
        node.start({**over, "needs": {"nofile": 513, "memlock": "129"}})


def test_no_limit_is_told_as_unlimited(node: Node) -> None:
    own = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    seen = look(node).resources
    told = "unlimited" if own == resource.RLIM_INFINITY else f"{own // 1024} KiB"
    assert seen.memlock == told
