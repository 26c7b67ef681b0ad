"""What a user watches: rollouts that never dip too low, wrong profiles that cost one replica,
crashes at every request that end well, and two reconcilers that leave each other in peace."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reconciler.core.changes import StartStep, Symbol
from reconciler.core.observed import NodeHold
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


# --- a canary that cannot be seen or acted on -----------------------------------------------------


def new_ones(play: Play) -> set[str]:
    """Replicas of which something runs with today's profile, in truth."""
    today = play.world.fingerprint("chat")
    return {
        s.labels.replica
        for node in play.fleet.nodes.values()
        for s in node.launches.values()
        if s.alive and s.spec["fingerprint"] == today
    }


def with_its_canary_cut_off(**rollout: object) -> Play:
    """Three replicas on three nodes; the canary is loading today's profile as its node falls
    silent."""
    play = Play(chat(3, gpus=2, nodes=3, **rollout))
    play.rest()
    play.edit(args=("--load-time", "60"))
    play_until(play, lambda: bool(new_ones(play)))
    assert new_ones(play) == {"chat-0"}
    play.fleet.nodes[node_of(play, "chat-0")].silent = True
    return play


def play_until(play: Play, there: Callable[[], bool]) -> None:
    for _ in range(60):
        if there():
            return
        play.one_pass()
        play.pass_time(5)
    raise AssertionError("not there after 60 passes")


def node_of(play: Play, replica: str) -> str:
    """Where its newest living launch is."""
    found = [
        (s.spec["seq"], node.name)
        for node in play.fleet.nodes.values()
        for s in node.launches.values()
        if s.alive and s.labels.replica == replica
    ]
    return max(found)[1]


def test_the_rest_does_not_wait_for_a_canary_whose_node_fell_silent() -> None:
    play = with_its_canary_cut_off()
    for _ in range(60):
        play.one_pass()
        play.pass_time(5)
    assert new_ones(play) == {"chat-0", "chat-1", "chat-2"}


def test_a_second_canary_takes_no_more_out_of_service_than_the_limits_allow() -> None:
    """The silent one is none of the ready ones: with one to spare, the second has to start beside
    what serves, and where there is no room for that it waits."""
    play = with_its_canary_cut_off(max_surge=0)
    for _ in range(60):
        play.one_pass()
        play.pass_time(5)
    assert new_ones(play) == {"chat-0"}
    assert play.ready() == 3, "the silent one serves too, which nobody can see"


def test_when_the_first_canary_returns_both_end_what_they_have_begun() -> None:
    play = with_its_canary_cut_off()
    play_until(play, lambda: new_ones(play) != {"chat-0"})
    before = play.running()
    for node in play.fleet.nodes.values():
        node.silent = False
    play.one_pass()
    play.pass_time(1)
    assert before <= play.running(), "nothing that had begun is stopped"
    play.rest()
    assert new_ones(play) == {"chat-0", "chat-1", "chat-2"}


def test_a_bad_profile_is_rejected_although_its_first_canary_cannot_be_seen() -> None:
    play = with_its_canary_cut_off()
    play.edit(args=("--fail", "--fail-code", "2"))
    bad = play.world.fingerprint("chat")
    for _ in range(60):
        made = play.one_pass()
        play.pass_time(5)
    assert "ProfileRejected" in [h.reason.value for h in made.plan.holds]
    failed = {
        s.labels.replica
        for node in play.fleet.nodes.values()
        for s in node.launches.values()
        if s.spec["fingerprint"] == bad
    }
    assert failed == {"chat-1"}


def test_a_node_that_a_person_holds_does_not_keep_the_rest_from_a_new_profile() -> None:
    play = Play(chat(3, gpus=2, nodes=3))
    play.rest()
    held = node_of(play, "chat-0")
    play.fleet.nodes[held].hold = NodeHold(who="Kim", reason="a fan")
    play.edit(args=("--load-time", "30"))
    for _ in range(60):
        play.one_pass()
        play.pass_time(5)
    assert new_ones(play) == {"chat-1", "chat-2"}
    play.fleet.nodes[held].hold = None
    play.rest()
    assert new_ones(play) == {"chat-0", "chat-1", "chat-2"}


def test_a_move_of_the_root_restarts_nothing_and_an_edit_replaces_what_lies_in_the_former() -> None:
    play = Play(chat(2))
    play.rest()
    before = play.running()
    for node in play.fleet.nodes.values():
        node.move_root("/new", ["/sim"])
    assert play.one_pass().plan.steps == ()
    play.edit(args=("--load-time", "30"))
    play.rest()
    assert play.running().isdisjoint(before)
    lies = {s.root for n in play.fleet.nodes.values() for s in n.launches.values() if s.alive}
    assert lies == {"/new"}


def test_what_lives_in_a_root_that_nobody_names_is_left_alone() -> None:
    play = Play(chat(2))
    play.rest()
    before = play.running()
    for node in play.fleet.nodes.values():
        node.move_root("/new")
    for _ in range(10):
        made = play.one_pass()
        play.pass_time(5)
        assert before <= play.running()
    assert {c.symbol for c in made.plan.changes} == {Symbol.UNKNOWN}


def test_without_its_secret_nothing_stops_that_it_should_replace_and_the_rest_runs_on() -> None:
    play = Play(chat(2, gpus=1))
    play.rest()
    before = play.running()
    play.edit(secrets={"HF_TOKEN": "reconciler:hf_token"})
    play.reconciler.lacks = {"hf_token"}
    for _ in range(10):
        made = play.one_pass()
        play.pass_time(5)
    assert play.running() == before
    assert "no secret hf_token" in " ".join(h.message for h in made.plan.holds)
    play.reconciler.lacks = ()
    play.rest()
    assert play.running().isdisjoint(before)
