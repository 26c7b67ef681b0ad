"""Rule 5: what one revision may remove or replace before a person approves it."""

from __future__ import annotations

from reconciler.core.changes import GuardVerdict, Plan, Reason
from reconciler.core.model import GuardRails, Limit
from reconciler.core.observed import ApprovedChange
from tests.core.ask_plan import approve, chat, hold, holds, planned, proven, started, stopped, waits
from tests.core.build_world import World


def ten() -> World:
    return chat(10, gpus=5).with_fleet(max_parallel=Limit(count=100))


def guard(made: Plan, name: str) -> GuardVerdict:
    (found,) = (g for g in made.guards if g.name == name)
    return found


def test_three_of_ten_may_go_and_four_may_not() -> None:
    assert len(stopped(planned(ten().edit_placement("chat", replicas=7)))) == 3
    made = planned(ten().edit_placement("chat", replicas=6))
    assert stopped(made) == []
    assert set(waits(made).values()) == {Reason.BLAST_RADIUS}
    assert guard(made, "removed").value == "4 of 10"
    assert not guard(made, "removed").passed


def test_a_removed_placement_is_held_and_everything_else_goes_on() -> None:
    world = ten().profile("qwen", gpus_per_node=1).placement("new", "qwen").node("gpu-c")
    made = planned(world.remove_placement("chat"))
    assert stopped(made) == []
    assert set(started(made)) == {"new-0"}
    assert Reason.BLAST_RADIUS in holds(made).values()


def test_an_emptied_repo_removes_nothing() -> None:
    made = planned(ten().remove_placement("chat"))
    assert made.steps == ()
    assert len(guard(made, "removed").changes) == 10


def test_one_is_always_allowed_where_the_model_keeps_another_ready_one() -> None:
    assert stopped(planned(chat(2).edit_placement("chat", replicas=1))) == ["chat-1-s1"]


def test_the_last_replica_of_a_model_is_never_removed_unasked() -> None:
    world = chat(1)
    made = planned(world.remove_placement("chat"))
    assert stopped(made) == []
    assert guard(made, "removed").value == "1 of 1"


def test_the_one_that_stays_must_be_ready_for_one_to_go() -> None:
    world = chat(2).change_launch("chat-0-s1", fresh=False).edit_placement("chat", replicas=1)
    # The one that is not ready leaves first; what serves stays.
    assert stopped(planned(world)) != ["chat-1-s1"]


def test_an_approval_lets_exactly_its_set_through() -> None:
    world = ten().edit_placement("chat", replicas=6)
    changes = guard(planned(world), "removed").changes
    made = planned(approve(world, "gpu-a", *changes))
    assert guard(made, "removed").approved
    assert len(stopped(made)) == 4


def test_an_approval_covers_later_sets_that_are_part_of_it() -> None:
    world = ten().edit_placement("chat", replicas=5)
    changes = guard(planned(world), "removed").changes
    later = world.forget_launch(f"{changes[0].replica}-s1")
    assert len(stopped(planned(approve(later, "gpu-a", *changes)))) == 4


def test_an_approval_covers_no_more_than_its_set() -> None:
    changes = guard(planned(ten().edit_placement("chat", replicas=6)), "removed").changes
    more = approve(ten().edit_placement("chat", replicas=5), "gpu-a", *changes)
    assert stopped(planned(more)) == []


def test_an_approval_of_another_fingerprint_counts_for_nothing() -> None:
    world = ten().edit_placement("chat", replicas=6)
    wrong = tuple(
        ApprovedChange(c.replica, "p1:other", "") for c in guard(planned(world), "removed").changes
    )
    assert stopped(planned(approve(world, "gpu-a", *wrong))) == []


def test_a_removal_names_the_fingerprint_of_what_lives() -> None:
    world = chat(2).edit("llama", args=("--context", "8"))
    world = world.launch("chat-0", on="gpu-a", state="crashed", seq=9).remove_placement("chat")
    before = {c.replica: c.before for c in guard(planned(world), "removed").changes}
    assert before["chat-0"] == before["chat-1"]


def test_replacing_is_not_limited_by_default_and_can_be() -> None:
    assert guard(planned(proven(ten())), "replaced").passed
    rails = GuardRails(max_replaced=Limit(percent=50))
    made = planned(proven(ten()).with_fleet(guard=rails))
    assert stopped(made) == []
    assert set(waits(made).values()) == {Reason.BLAST_RADIUS}


def test_the_replaced_guard_counts_those_that_wait_for_the_canary() -> None:
    rails = GuardRails(max_replaced=Limit(percent=50))
    world = ten().edit("llama", args=("--context", "8")).with_fleet(guard=rails)
    made = planned(world)
    assert guard(made, "replaced").value == "10 of 10"
    assert stopped(made) == []


def test_repairs_go_on_under_a_failed_guard() -> None:
    world = ten().edit_placement("chat", replicas=6)
    world = world.forget_launch("chat-0-s1").launch("chat-0", on="gpu-a", state="rebooted")
    made = planned(world)
    assert stopped(made) == []


def test_too_many_nodes_out_of_sight_hold_every_voluntary_stop() -> None:
    names = [f"n{i}" for i in range(5)]
    world = World().with_nodes(*names, gpus=1).profile("llama", gpus_per_node=1)
    world = world.placement("chat", "llama", replicas=5, rollout={"max_unavailable": 4})
    for i, name in enumerate(names):
        world = world.launch(f"chat-{i}", on=name)
    world = proven(world)
    assert stopped(planned(world.silent("n4", remembered=True)))
    made = planned(world.silent("n3", "n4", remembered=True))
    assert stopped(made) == []
    assert not guard(made, "unseen").passed
    assert hold(made, "guard unseen: fleet").reason is Reason.BLAST_RADIUS
    assert "n3" in guard(made, "unseen").message
    assert stopped(planned(world.silent("n3", remembered=True))), "it ends when one answers again"


def test_nodes_out_of_sight_fail_no_plan_that_stops_nothing() -> None:
    made = planned(chat(4).with_nodes("x1", "x2").silent("x1", "x2", remembered=True))
    assert guard(made, "unseen").passed
    assert any("out of sight" in w for w in made.warnings)


def test_lost_nodes_are_not_out_of_sight() -> None:
    world = proven(chat(4)).with_nodes("x1", "x2", "x3")
    for name in ("x1", "x2", "x3"):
        world = world.edit_node(name, state="lost", reason="gone")
    assert guard(planned(world), "unseen").value == "0 of 2"


def test_removed_replicas_count_for_the_limits_too() -> None:
    world = ten().edit_placement("chat", replicas=8)
    for n in range(8):
        world = world.change_launch(f"chat-{n}-s1", fresh=False)
    assert [s for s in stopped(planned(world)) if s in ("chat-8-s1", "chat-9-s1")] == []


def test_removals_are_judged_per_model_and_pool() -> None:
    world = ten().node("l40", pool="l40s", klass="l40s", gpus=2)
    world = world.placement("small", "llama", pool="l40s", replicas=2)
    world = world.launch("small-0", on="l40").launch("small-1", on="l40")
    made = planned(world.remove_placement("small"))
    assert {g.scope: g.passed for g in made.guards if g.name == "removed"} == {
        "model llama in pool l40s": False
    }
