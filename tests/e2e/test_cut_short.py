"""A pass that a signal ends in the middle of its work, and a launch of which nothing is left.

What was sent is awaited, what was not says so, and whoever comes next goes on from there.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from contextlib import suppress

from reconciler.nodes import processes
from tests.e2e.test_killed import assert_nothing_runs_twice
from tests.e2e.test_signals import led, started
from tests.e2e.world import GPUS, World, until

MANY = 3 * GPUS
"""Every GPU of the fleet: no successor finds room before its predecessor has gone."""


def test_a_pass_that_sigterm_ends_in_mid_apply_tells_what_it_left_and_another_goes_on(
    world: World,
) -> None:
    world.placement(replicas=MANY, rollout={"max_unavailable": MANY})
    world.commit()
    with started(world, "--output", "json") as process:
        until("it has begun", lambda: len(world.launches()) >= 3)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM, (out, err)
    begun = set(world.launches())
    steps = json.loads(out)["steps"]
    told = Counter(step["result"] for step in steps)
    assert 3 <= len(begun) < MANY, "the signal did not come in the middle"
    assert told == {"done": len(begun), "skipped": MANY - len(begun)}, steps
    assert {s["message"] for s in steps if s["result"] == "skipped"} == {"the pass was cancelled"}
    assert led(world) == []

    world.forget()
    world.converge(120)
    until("all are ready", lambda: len(world.ready()) == MANY)
    assert begun <= set(world.ready()), "what was started goes on"
    assert_nothing_runs_twice(world)

    world.placement(replicas=MANY, rollout={"max_unavailable": MANY}, restart="again")
    world.commit("a restart for which everything has to make way")
    with started(world, "--output", "json", "--wait") as process:
        until("some successors are there", lambda: len(world.launches()) >= MANY + 3)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM, (out, err)
    assert led(world) == []
    assert len(world.launches()) < 2 * MANY, "the signal did not come in the middle"
    world.forget()
    world.converge(120)
    until("all are ready anew", lambda: len(world.ready()) == MANY)
    assert_nothing_runs_twice(world)
    assert Counter(e["replica"] for e in world.launches().values()) == {
        f"chat-{n}": 2 for n in range(MANY)
    }
    assert world.plan()["changes"] == []


def test_engine_and_supervisor_killed_together_are_one_visible_exit_and_one_restart(
    world: World,
) -> None:
    world.placement(replicas=2)
    world.commit()
    world.converge()
    before = world.ready()
    victim = sorted(world.living())[0]
    replica = world.living()[victim]["replica"]
    ((node, shard),) = world.living()[victim]["shards"].items()
    status = shard["status"]
    pids = [status["supervisor"]["pid"], *(p["pid"] for p in status["processes"])]
    assert [processes.alive(pid) for pid in pids] == [True, True], status
    # First neither may see the other's end, as when the OOM killer or a person takes them both.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    until("nothing of it is left", lambda: not any(map(processes.alive, pids)))

    first = world.reconcile()
    assert first.code in (0, 3), first
    plan = world.plan()
    told = json.dumps(plan) + world.reconcile("status").out
    assert "nobody saw how" in told, told
    ended = world.launches()[victim]["shards"][node]["status"]
    assert ended["phase"] == "ended", ended
    assert ended["exit"]["kind"] == "unknown"

    world.converge(90)
    until("two again", lambda: len(world.ready()) == 2)
    launches = [n for n, e in world.launches().items() if e["replica"] == replica]
    assert len(launches) == 2, "one restart and no more"
    assert set(before) - {victim} <= set(world.ready()), "the other was left alone"
    assert_nothing_runs_twice(world)
    assert world.plan()["changes"] == []
