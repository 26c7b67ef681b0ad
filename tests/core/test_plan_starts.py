"""Replicas that are wanted and do not run: started, or held with the reason."""

from __future__ import annotations

from reconciler.core import observed as seen
from reconciler.core.changes import Reason, StartStep, Symbol
from reconciler.core.model import EngineSettings, PortRange
from reconciler.core.observed import InterfaceSeen, Network
from tests.core.ask_plan import (
    change,
    chat,
    gpus,
    hold,
    holds,
    planned,
    started,
    stopped,
    symbols,
    waits,
)
from tests.core.build_world import World


def empty(replicas: int = 2, **over: object) -> World:
    world = World().with_nodes("gpu-a", "gpu-b", gpus=2).profile("llama", gpus_per_node=1)
    return world.placement("chat", "llama", replicas=replicas, **over)


def test_missing_replicas_are_started_without_any_budget() -> None:
    made = planned(empty(4))
    assert symbols(made) == {f"chat-{n}": "+" for n in range(4)}
    assert made.summary.start == 4
    assert made.holds == ()


def test_a_converged_fleet_plans_nothing() -> None:
    made = planned(chat(4))
    assert (made.changes, made.holds, made.steps, made.warnings) == ((), (), (), ())
    assert made.summary.unchanged == 4


def test_a_launch_carries_the_next_seq_and_the_labels_of_today() -> None:
    world = empty(1, labels={"tier": "gold"}, owner="team-a").launch(
        "chat-0", on="gpu-a", state="stopped", seq=7
    )
    (step,) = planned(world).steps
    assert (step.seq, step.launch) == (8, "chat-0-x0")  # type: ignore[union-attr]
    labels = step.shards[0].labels  # type: ignore[union-attr]
    assert (labels.replica, labels.owner, labels.labels) == ("chat-0", "team-a", {"tier": "gold"})


def test_an_exited_replica_goes_back_to_its_node_and_gpu() -> None:
    world = empty(1).launch("chat-0", on="gpu-b", state="rebooted", gpus=("GPU-gpu-b-1",))
    made = planned(world)
    assert started(made) == {"chat-0": ("gpu-b",)}
    assert gpus(made, "chat-0") == (("GPU-gpu-b-1",),)


def test_what_is_left_of_an_exited_replica_is_stopped_before_it_starts_anew() -> None:
    world = World().with_nodes("gpu-a", "gpu-b").profile("big", gpus_per_node=8, nodes=2)
    world = world.placement("big", "big").launch(
        "big-0", on=("gpu-a", "gpu-b"), ranks={1: "vanished"}
    )
    made = planned(world)
    assert stopped(made, voluntary=False) == ["big-0-s1"]
    repairs = [(s.kind, s.nodes) for s in made.repairs if not isinstance(s, StartStep)]
    assert repairs == [("stop", ("gpu-a",)), ("adopt", ("gpu-b",))]
    assert waits(made) == {"big-0": Reason.STOPPING}
    assert started(made) == {}


def test_a_replica_waits_for_its_own_gpus_while_its_launch_stops() -> None:
    world = empty(1).launch("chat-0", on="gpu-a", state="stopping")
    made = planned(world)
    assert waits(made) == {"chat-0": Reason.STOPPING}
    assert change(world, "chat-0").after_seats[0].node == "gpu-a"


def test_a_stuck_launch_holds_its_gpus_and_its_replica_is_placed_on_others() -> None:
    world = empty(1).launch("chat-0", on="gpu-a", state="stuck", gpus=("GPU-gpu-a-0",))
    made = planned(world)
    assert gpus(made, "chat-0") != (("GPU-gpu-a-0",),)
    assert hold(made, "launch chat-0-s1").reason is Reason.STUCK
    assert "4242" in hold(made, "launch chat-0-s1").message


def test_a_replica_in_back_off_waits_and_keeps_its_place() -> None:
    world = empty(1).launch("chat-0", on="gpu-a", state="crashed", gpus=("GPU-gpu-a-0",))
    world = world.change_launch("chat-0-s1", exit=_just_now(world))
    made = planned(world)
    assert waits(made) == {"chat-0": Reason.BACKOFF}
    assert "1 failed start; the next start in" in change(world, "chat-0").waits
    served = planned(world.change_launch("chat-0-s1", ever_ready=True))
    assert "1 failure; the next start in" in served.changes[0].waits, "its start did not fail"
    greedy = planned(world.placement("other", "llama", replicas=4))
    assert "GPU-gpu-a-0" not in {g for r in started(greedy) for t in gpus(greedy, r) for g in t}


def test_a_replica_whose_crashes_hold_its_start_is_counted_once() -> None:
    world = empty(1)
    for n in (1, 2, 3):
        world = world.launch("chat-0", on="gpu-a", state="crashed", gpus=("GPU-gpu-a-0",))
        world = world.change_launch(f"chat-0-s{n}", exit=_just_now(world), ever_ready=True)
    made = planned(world)
    assert hold(made, "replica chat-0").reason is Reason.CRASH_LOOP
    assert (made.summary.start, made.summary.held) == (1, 0)


def _just_now(world: World) -> object:
    import dataclasses

    (shard,) = world.launches[-1].shards.values()
    assert shard.exit is not None
    return dataclasses.replace(shard.exit, age_s=0.5)


def test_what_ran_before_gets_its_place_before_what_never_did() -> None:
    world = World().node("gpu-a", gpus=1).profile("llama", gpus_per_node=1)
    world = world.placement("aaa", "llama").placement("zzz", "llama")
    world = world.launch("zzz-0", on="gpu-a", state="stopped")
    made = planned(world)
    assert started(made) == {"zzz-0": ("gpu-a",)}
    assert holds(made) == {"replica aaa-0": Reason.NO_CAPACITY}


def test_of_a_placement_the_canary_gets_its_place_before_those_that_wait_for_it() -> None:
    world = World().node("gpu-a", gpus=1).profile("llama", gpus_per_node=1)
    world = world.placement("chat", "llama", replicas=2)
    world = world.launch("chat-0", on="gpu-a", state="rebooted")
    world = world.launch("chat-1", on="gpu-a", state="stopped")
    assert set(started(planned(world.edit("llama", args=("--context", "8"))))) == {"chat-1"}


def test_no_room_is_a_hold_that_counts_per_node_what_is_free() -> None:
    world = World().with_nodes("n1", "n2", "n3", gpus=4).node("n4", state="cordoned")
    world = world.profile("small", gpus_per_node=2).profile("large", gpus_per_node=4)
    world = world.placement("small", "small", replicas=3).placement("large", "large")
    for n in range(3):
        world = world.launch(f"small-{n}", on=f"n{n + 1}")
    made = hold(planned(world), "replica large-0")
    assert made.reason is Reason.NO_CAPACITY
    assert made.message == (
        "0 of 4 nodes fit: 3 have 2 free GPUs of 4, 1 cordoned; it needs 4 GPUs"
    )
    assert made.nodes["n1"] == "has 2 free GPUs of 4"


def test_one_placement_that_cannot_be_met_does_not_hold_up_the_rest() -> None:
    world = empty(1).profile("huge", gpus_per_node=16).placement("huge", "huge")
    made = planned(world)
    assert set(started(made)) == {"chat-0"}
    assert holds(made) == {"replica huge-0": Reason.NO_CAPACITY}


def test_what_may_run_out_of_sight_is_not_started() -> None:
    made = planned(chat(2).silent("gpu-a"))
    assert holds(made) == {
        "node gpu-a": Reason.NODE_UNREACHABLE,
        "replica chat-0": Reason.NODE_UNREACHABLE,
    }
    assert made.steps == ()


def test_a_lost_node_frees_what_it_held_and_its_replicas_start_elsewhere() -> None:
    world = chat(2, gpus=2).edit_node("gpu-a", state="lost", reason="burnt")
    made = planned(world)
    assert started(made) == {"chat-0": ("gpu-b",)}


def test_a_profile_that_cannot_be_built_is_infeasible() -> None:
    world = empty(1).edit("llama", env={"GLOO_SOCKET_IFNAME": "bond7"})
    network = Network(interfaces=(InterfaceSeen("eth0"),))
    made = planned(world.answers_with("gpu-a", network=network))
    assert holds(made) == {"replica chat-0": Reason.INFEASIBLE}
    assert "bond7" in hold(made, "replica chat-0").message


def test_ports_are_free_on_all_nodes_outside_the_ephemeral_range_and_kept_apart() -> None:
    listening = Network(listening=(("0.0.0.0", 20000),), ephemeral=(20002, 60999))
    world = empty(2, nodes=("gpu-a",)).answers_with("gpu-a", network=listening)
    made = planned(world)
    (step,) = made.steps
    assert step.shards[0].spec["places"][0]["ports"] == {"http": 20001}  # type: ignore[union-attr]
    assert "no port of" in hold(made, "replica chat-1").message


def test_a_listener_on_another_address_does_not_take_a_port() -> None:
    elsewhere = Network(listening=(("10.9.9.9", 20000), ("127.0.0.1", 20000)))
    made = planned(empty(1, nodes=("gpu-a",)).answers_with("gpu-a", network=elsewhere))
    (step,) = made.steps
    assert step.shards[0].spec["places"][0]["ports"] == {"http": 20000}  # type: ignore[union-attr]


def test_ports_of_a_living_launch_are_not_given_again_although_nobody_listens_yet() -> None:
    world = empty(2, nodes=("gpu-a",)).launch("chat-0", on="gpu-a", state="starting")
    (step,) = planned(world).steps
    (taken,) = world.launches[0].places
    given = step.shards[0].spec["places"][0]["ports"]  # type: ignore[union-attr]
    assert not set(given.values()) & set(taken.ports.values())


def test_the_port_range_of_the_fleet_is_obeyed() -> None:
    world = empty(1).with_fleet(ports=PortRange(25000, 25000))
    (step,) = planned(world).steps
    assert step.shards[0].spec["places"][0]["ports"] == {"http": 25000}  # type: ignore[union-attr]


def test_a_plan_does_not_depend_on_the_order_of_documents_or_answers() -> None:
    import dataclasses
    import itertools

    from reconciler.core.diff import diff
    from reconciler.core.plan import plan

    world = chat(4, gpus=3).edit_placement("chat", replicas=6).placement("b", "llama")
    desired, observed = world.desired, world.observed
    back = dataclasses.replace(
        desired,
        nodes=dict(reversed(desired.nodes.items())),
        placements=dict(reversed(desired.placements.items())),
    )
    turned = dataclasses.replace(observed, nodes=dict(reversed(observed.nodes.items())))
    plans = []
    for d, o in ((desired, observed), (back, turned)):
        numbers = itertools.count()
        plans.append(plan(d, o, diff(d, o), lambda n=numbers: f"x{next(n)}"))
    assert plans[0] == plans[1]


def test_an_engines_settings_do_not_change_where_a_replica_goes() -> None:
    world = empty(1)
    other = world.with_fleet(engines={"sim": EngineSettings(path="/opt/sim")})
    assert started(planned(world)) == started(planned(other))


def test_a_start_is_shown_with_its_reason_and_load_time() -> None:
    from reconciler.core.model import ModelFacts

    world = empty(1).model("llama", facts=ModelFacts(load_minutes=9))
    made = change(world, "chat-0")
    assert (made.symbol, made.load_minutes) == (Symbol.START, 9)
    assert made.reason


def test_what_a_nodes_wall_clock_says_changes_no_plan() -> None:
    world = chat(3, nodes=2).edit("llama", args=("--x",))
    plain = planned(world)
    assert plain.changes
    for off_s in (-31_536_000.0, 1.0, 31_536_000.0, 4e9):
        assert planned(world.answers_with("gpu-a", clock_s=1_700_000_000.0 + off_s)) == plain


def test_an_end_that_nobody_saw_is_written_down_or_its_back_off_would_never_end() -> None:
    world = World().node("gpu-a").profile("llama").placement("chat", "llama")
    made = planned(world.launch("chat-0", on="gpu-a", state="vanished"))
    assert [(s.kind, s.launch) for s in made.repairs] == [("adopt", "chat-0-s1")]
    told = seen.ShardExit(kind=seen.ExitKind.UNKNOWN, age_s=30.0)
    later = planned(world.launch("chat-0", on="gpu-a", state="vanished", exit=told))
    assert [s.kind for s in later.steps] == ["start"]
