"""What a user watches: rollouts that never dip too low, wrong profiles that cost one replica,
crashes at every request that end well, and two reconcilers that leave each other in peace."""

from __future__ import annotations

import pytest

from reconciler.core.changes import StartStep
from reconciler.simulate.reconciler import Pass, Passing
from tests.core.build_world import World
from tests.sim.play import LIMIT, Lowest, Play, quick


def chat(replicas: int = 4, *, gpus: int = 2, nodes: int = 2, **rollout: object) -> World:
    names = [f"n{i}" for i in range(nodes)]
    world = World().with_nodes(*names, gpus=gpus).profile("llama", gpus_per_node=1)
    return quick(world.placement("chat", "llama", replicas=replicas, rollout=dict(rollout)))


def test_from_empty_to_rest_and_then_nothing() -> None:
    play = Play(chat())
    play.rest()
    assert play.ready() == 4
    assert play.one_pass().plan.steps == ()


@pytest.mark.parametrize(("gpus", "lowest"), [(2, 3), (3, 4)])
def test_a_rolling_replacement_never_dips_below_its_limit(gpus: int, lowest: int) -> None:
    play = Play(chat(gpus=gpus))
    play.rest()
    before = play.running()
    seen = play.watch = Lowest(play)
    play.edit(args=("--load-time", "30"))
    play.rest()
    assert seen.value == lowest
    assert play.running().isdisjoint(before)


def test_a_profile_that_never_gets_ready_costs_one_replica_and_its_fix_is_taken_at_once() -> None:
    play = Play(chat())
    play.rest()
    seen = play.watch = Lowest(play)
    play.edit(args=("--never-ready",), start_timeout_s=3600)
    for _ in range(30):
        play.one_pass()
        play.pass_time(5)
    assert seen.value == play.ready() == 3
    play.edit(args=("--load-time", "10"), start_timeout_s=120)
    stopped = [s.kind for s in play.one_pass().plan.steps]
    assert stopped == ["stop"]
    play.rest()
    assert seen.value == 3


def test_a_bad_flag_is_rejected_after_one_launch_and_the_last_ready_comes_back() -> None:
    play = Play(chat())
    play.rest()
    seen = play.watch = Lowest(play)
    play.edit(args=("--fail", "--fail-code", "2"))
    for _ in range(60):
        made = play.one_pass()
        play.pass_time(5)
    assert play.ready() == 4
    assert seen.value == 3
    assert [h.reason.value for h in made.plan.holds] == ["ProfileRejected"]
    tried = [n for n in play.fleet.nodes.values() for s in n.launches.values() if s.failed]
    assert len(tried) == 1


def test_the_effective_profile_never_swings() -> None:
    play = Play(chat())
    play.rest()
    play.edit(args=("--fail", "--fail-code", "2"))
    for _ in range(30):
        play.one_pass()
        play.pass_time(5)
    kept = play.running()
    for _ in range(60):
        play.one_pass()
        play.pass_time(5)
    assert play.running() == kept


def test_a_rejected_profile_stays_rejected_while_what_it_fell_back_on_crashes_too() -> None:
    """Else the fallback's failures would wipe out the evidence, and the two would take turns."""
    play = Play(chat(1, gpus=1, nodes=1))
    play.edit(args=("--load-time", "5", "--crash-after", "60"))
    for _ in range(3):
        play.one_pass()
        play.pass_time(5)
    play.edit(args=("--fail",))
    new = play.world.fingerprint("chat")
    tried = []
    for _ in range(LIMIT):
        steps = play.one_pass().plan.steps
        tried += [s.fingerprint == new for s in steps if isinstance(s, StartStep)]
        play.pass_time(5)
    assert tried.count(True) == 3
    assert tried.count(False) > 3


def test_a_crash_loop_starts_less_and_less_often() -> None:
    play = Play(chat(1))
    play.edit(args=("--crash-after", "1"))
    starts = []
    for _ in range(120):
        starts.append(sum(s.kind == "start" for s in play.one_pass().plan.steps))
        play.pass_time(5)
    assert sum(starts) <= 12


def test_every_replica_of_a_wide_profile_moves_as_one() -> None:
    world = World().with_nodes("n0", "n1", "n2", gpus=2, fabrics=("ib-a",))
    world = world.profile("llama", gpus_per_node=2, nodes=2)
    play = Play(quick(world.placement("chat", "llama", fabric="ib-a")))
    play.rest()
    (launch,) = play.running()
    (victim,) = (
        n.launches[launch]
        for n in play.fleet.nodes.values()
        if launch in n.launches and n.launches[launch].spec["rank"] == 1
    )
    victim.alive = False
    play.rest()
    (successor,) = play.running()
    assert successor != launch


def test_a_supervisor_that_died_is_given_back_and_the_engine_lives_on() -> None:
    play = Play(chat(2))
    play.rest()
    before = play.running()
    for node in play.fleet.nodes.values():
        for shard in node.launches.values():
            shard.supervised = False
    play.rest()
    assert play.running() == before


def test_a_rebooted_node_gets_back_what_is_wanted_now() -> None:
    play = Play(chat(2))
    play.rest()
    play.world = play.world.edit_placement("chat", nodes=("n1",))
    play.fleet.nodes["n0"].reboot()
    play.rest()
    alive = [s for s in play.fleet.nodes["n0"].launches.values() if s.alive]
    assert alive == []


def to_its_end(passing: Passing) -> Pass:
    while True:
        try:
            next(passing)
        except StopIteration as stop:
            made: Pass = stop.value
            return made


# --- crashes -------------------------------------------------------------------------------------


def edited(play: Play) -> None:
    play.world = play.world.edit_placement("chat", replicas=3, restart="please")
    play.world = play.world.profile("qwen", gpus_per_node=1, args=("--load-time", "5"))
    play.world = play.world.placement("more", "qwen", replicas=2)


@pytest.mark.parametrize("acts", range(6))
def test_any_prefix_of_a_plan_applied_and_planned_anew_converges(acts: int) -> None:
    play = Play(chat(4, gpus=3))
    play.rest()
    edited(play)
    play.one_pass(acts=acts)
    play.reconciler = play.anew()
    play.rest()
    assert (play.ready("chat"), play.ready("more")) == (3, 2)


@pytest.mark.parametrize("acts", range(4))
def test_a_first_start_cut_anywhere_runs_nothing_twice(acts: int) -> None:
    play = Play(chat(4))
    play.one_pass(acts=acts)
    play.reconciler = play.anew()
    play.rest()
    assert len(play.running()) == 4


def test_forgetting_all_memory_changes_nothing() -> None:
    plays = [Play(chat(4, gpus=3)), Play(chat(4, gpus=3))]
    for play, forget in zip(plays, (False, True), strict=True):
        play.rest(forget=forget)
        edited(play)
        play.rest(forget=forget)
    assert plays[0].running() == plays[1].running()


def test_two_reconcilers_settle_and_then_do_nothing() -> None:
    play = Play(chat())
    other = play.anew("two")
    for _ in range(40):
        play.one_pass()
        play.one_pass(by=other)
        play.pass_time(5)
    before = play.running()
    for _ in range(20):
        assert play.one_pass().plan.steps == ()
        assert play.one_pass(by=other).plan.steps == ()
        play.pass_time(70)
    assert play.running() == before


def test_the_one_that_slept_past_its_lease_does_nothing() -> None:
    play = Play(chat(1))
    sleeper = play.anew("sleeper").run(play.desired)
    for point in sleeper:
        if getattr(point, "plan", None):
            break
    play.pass_time(70)
    play.rest()
    before = play.running()
    assert [code for _, code in to_its_end(sleeper).done] == ["fenced"]
    assert play.running() == before
