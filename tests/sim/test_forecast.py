"""A rollout played forward: from a fleet as it was seen, with the profiles' own load times."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from reconciler.core.changes import Reason
from reconciler.core.diff import diff
from reconciler.core.model import Freeze, Limit, Management, ModelFacts, Needs
from reconciler.core.observed import (
    GpuProcess,
    InterfaceSeen,
    Lease,
    Network,
    NodeHold,
    NodeLook,
    Observed,
    Resources,
)
from reconciler.report.forecast import forecast_text
from reconciler.simulate.engine import Behaviour
from reconciler.simulate.fleet import SimFleet
from reconciler.simulate.forecast import Assumptions, Forecast, Outcome, forecast
from reconciler.simulate.history import Event, What
from reconciler.simulate.reconciler import SimReconciler
from reconciler.simulate.seen import fleet_as_seen
from tests.core.build_world import FLEET_ID, World, gpus_part

LOAD_S = 240.0
NEW = ("--max-model-len", "4096")


def model(minutes: int = 4) -> ModelFacts:
    return ModelFacts(load_minutes=minutes)


def chat(replicas: int = 4, *, gpus: int = 8, per_replica: int = 2, running: bool = True) -> World:
    """`replicas` of a vLLM profile, spread over two nodes of `gpus`, all of them ready."""
    made = (
        World()
        .with_fleet(max_parallel=Limit(percent=100))
        .with_nodes("gpu-a", "gpu-b", gpus=gpus)
        .model("llama", facts=model())
        .profile("llama", engine="vllm", gpus_per_node=per_replica, stop_grace_s=30, drain_s=60)
        .placement("chat", "llama", replicas=replicas)
    )
    for n in range(replicas if running else 0):
        made = made.launch(f"chat-{n}", on="gpu-a" if n % 2 == 0 else "gpu-b")
    return made


def play(world: World, **given: object) -> Forecast:
    return forecast(world.desired, world.observed, Assumptions(**given))  # type: ignore[arg-type]


def told(made: Forecast, what: What) -> list[Event]:
    return [e for e in made.events if e.what is what]


def lowest(made: Forecast, placement: str = "chat") -> int:
    return next(c.lowest for c in made.capacity if c.placement == placement)


# --- From nothing, and from what is there --------------------------------------------------------


def test_from_empty_nodes_it_takes_as_long_as_the_model_loads() -> None:
    made = play(chat(running=False))
    assert (made.outcome, made.took_s) == (Outcome.CONVERGED, LOAD_S)
    assert len(told(made, What.START)) == 4


def test_a_fleet_that_runs_as_wanted_has_nothing_to_do() -> None:
    made = play(chat())
    assert (made.outcome, made.events, made.took_s, made.passes) == (Outcome.CONVERGED, (), 0.0, 1)


def test_what_serves_nothing_is_ready_when_it_is_alive() -> None:
    world = chat(2, running=False).edit(
        "llama", engine="command", command=("/opt/work",), serves="none"
    )
    made = play(world)
    assert made.outcome is Outcome.CONVERGED
    ready = told(made, What.READY)
    assert [e.at_s for e in ready] == [e.at_s for e in told(made, What.START)]
    assert {e.replica for e in ready} == {"chat-0", "chat-1"}


def test_what_serves_nothing_and_runs_as_wanted_has_nothing_to_do() -> None:
    world = World().with_nodes("gpu-a", gpus=2).model("llama", facts=model())
    world = world.profile("llama", engine="command", command=("/opt/work",), serves="none")
    world = world.placement("chat", "llama", replicas=2)
    begun = SimFleet.of(world.desired, lambda spec: Behaviour(load_s=0.0))
    numbers = itertools.count()
    first = SimReconciler(begun, "one", lambda: f"s{next(numbers)}")
    for _ in first.run(world.desired):
        pass
    begun.advance(5.0)
    seen = Observed(
        "one", {"gpu-a": NodeLook("gpu-a", answer=begun.nodes["gpu-a"].answer(FLEET_ID))}
    )
    fleet = fleet_as_seen(world.desired, seen, lambda spec: Behaviour(load_s=0.0))
    shards = fleet.nodes["gpu-a"].launches.values()
    assert [(s.serves, s.sick, s.failing_since) for s in shards] == [(False, False, None)] * 2
    made = forecast(world.desired, seen, Assumptions())
    assert (made.outcome, made.events) == (Outcome.CONVERGED, ())


def test_what_is_loading_is_ready_when_its_load_is_over_and_not_after_a_whole_one() -> None:
    made = play(
        chat(3).launch("chat-3", on="gpu-b", state="starting").edit_placement("chat", replicas=4)
    )
    assert (made.outcome, made.took_s) == (Outcome.CONVERGED, LOAD_S - 20)


def test_what_loads_for_longer_than_usual_is_given_a_minute_more() -> None:
    late = chat(1).edit_placement("chat", replicas=2)
    made = play(late.launch("chat-1", on="gpu-b", state="starting", started_age_s=900.0))
    assert (made.outcome, made.took_s) == (Outcome.CONVERGED, 60.0)


def test_a_load_above_the_start_timeout_is_told_as_a_failure() -> None:
    made = play(chat(1, running=False).edit("llama", start_timeout_s=180))
    assert told(made, What.FAILED)[0].reason == "timeout"
    assert told(made, What.FAILED)[0].at_s == 180
    assert made.outcome is Outcome.HELD
    assert Reason.REJECTED in {h.reason for h in made.standing}


def test_the_look_at_a_fleet_in_memory_is_judged_like_the_one_that_it_was_made_from() -> None:
    states = ["ready", "starting", "unhealthy", "unsupervised", "stopping", "crashed", "stopped"]
    states += ["timed-out", "rebooted", "vanished", "preflight", "stuck"]
    world = chat(0, gpus=16).edit_placement("chat", replicas=len(states))
    for n, state in enumerate(states):
        world = world.launch(f"chat-{n}", on="gpu-a" if n % 2 else "gpu-b", state=state)
    real = diff(world.desired, world.observed)
    fleet = fleet_as_seen(world.desired, world.observed, lambda spec: _slow())
    seen = {
        n: dataclasses.replace(look, answer=fleet.nodes[n].answer(FLEET_ID))
        for n, look in world.observed.nodes.items()
    }
    again = diff(world.desired, Observed(world.observed.owner, seen))
    assert [(r.replica, r.verdict) for r in again.replicas] == [
        (r.replica, r.verdict) for r in real.replicas
    ]
    assert [r.backoff for r in again.replicas] == [r.backoff for r in real.replicas]


def _slow() -> Behaviour:
    return Behaviour(load_s=5000.0, stop_s=1000.0)


# --- A rollout ------------------------------------------------------------------------------------


def test_where_gpus_are_free_a_rollout_costs_no_capacity() -> None:
    made = play(chat(3).edit("llama", args=NEW))
    assert made.outcome is Outcome.CONVERGED
    assert lowest(made) == 3
    first = [e.what for e in made.events if e.replica == "chat-0"]
    assert first == [What.START, What.READY, What.STOP, What.STOPPED]


def test_where_gpus_are_not_free_it_costs_what_max_unavailable_allows() -> None:
    made = play(chat(4, gpus=4).edit("llama", args=NEW))
    assert (made.outcome, lowest(made)) == (Outcome.CONVERGED, 3)
    capacity = made.capacity[0]
    assert (capacity.wanted, capacity.before, capacity.after) == (4, 4, 4)


def test_a_stop_takes_its_drain_and_its_grace_before_its_gpus_are_free() -> None:
    made = play(
        chat(1, gpus=2)
        .edit_placement("chat", nodes=("gpu-a",), rollout={"max_surge": 0})
        .edit("llama", args=NEW)
    )
    stop, stopped = told(made, What.STOP)[0], told(made, What.STOPPED)[0]
    assert stopped.at_s - stop.at_s == 60 + 30
    assert told(made, What.START)[0].at_s >= stopped.at_s


def test_the_canary_goes_first_and_the_rest_when_it_has_been_ready_for_as_long_as_asked() -> None:
    world = chat(3).edit_placement("chat", rollout={"ready_for_s": 600, "max_surge": 3})
    made = play(world.edit("llama", args=NEW))
    starts = told(made, What.START)
    assert starts[0].replica == "chat-0"
    assert starts[1].at_s >= LOAD_S + 600
    assert starts[1].at_s <= LOAD_S + 600 + 2 * world.fleet.interval_s


def test_a_profile_that_fails_costs_one_replica_and_is_held_as_rejected() -> None:
    made = play(chat(4, gpus=4).edit("llama", args=NEW), failing=frozenset({"llama"}))
    assert (made.outcome, lowest(made)) == (Outcome.HELD, 3)
    assert {e.replica for e in told(made, What.FAILED)} == {"chat-0"}
    assert made.capacity[0].after == 4, "it falls back to what was last ready"


def test_two_plays_of_one_situation_are_the_same() -> None:
    world = chat(4, gpus=4).edit("llama", args=NEW)
    assert play(world) == play(world)


# --- What is held ---------------------------------------------------------------------------------


def test_what_has_no_place_is_held_to_the_end_and_the_rest_goes_on() -> None:
    made = play(chat(6, gpus=4, running=False))
    assert made.outcome is Outcome.HELD
    assert [(h.subject, h.reason) for h in made.standing] == [
        ("replica chat-4", Reason.NO_CAPACITY),
        ("replica chat-5", Reason.NO_CAPACITY),
    ]
    assert made.capacity[0].after == 4


def test_a_guard_holds_and_as_if_approved_it_goes_on() -> None:
    gone = chat(4).placement("other", "llama", replicas=0).remove_placement("chat")
    held = play(gone)
    assert (held.outcome, held.events) == (Outcome.HELD, ())
    assert {h.reason for h in held.standing} == {Reason.BLAST_RADIUS}
    made = play(gone, approved=True)
    assert made.outcome is Outcome.CONVERGED
    assert len(told(made, What.STOPPED)) == 4


def test_a_freeze_holds_to_the_end() -> None:
    made = play(chat(2).with_fleet(freeze=Freeze("release night")).edit("llama", args=NEW))
    assert (made.outcome, made.events) == (Outcome.HELD, ())
    assert Reason.FROZEN in {h.reason for h in made.standing}


def test_a_manual_update_waits_for_a_person_and_goes_on_as_if_approved() -> None:
    world = chat(2).edit_placement("chat", rollout={"update": "manual"}).edit("llama", args=NEW)
    assert Reason.MANUAL_UPDATE in {h.reason for h in play(world).standing}
    assert play(world).events == ()
    assert play(world, approved=True).outcome is Outcome.CONVERGED


def test_a_node_held_by_hand_is_waited_for() -> None:
    world = chat(1, running=False).edit_placement("chat", nodes=("gpu-a",))
    made = play(world.answers_with("gpu-a", hold=NodeHold("Kim", "fan", remaining_s=600.0)))
    assert made.outcome is Outcome.CONVERGED
    assert told(made, What.START)[0].at_s == pytest.approx(600, abs=world.fleet.interval_s)
    held = {(h.subject, h.reason): h.until_s for h in made.held}
    assert held["node gpu-a", Reason.NODE_HELD] == told(made, What.START)[0].at_s
    (by_hand,) = (h for h in made.held if h.reason is Reason.NODE_HELD)
    assert "for another 10 min" in by_hand.message, "as it was told when it began to wait"
    (line,) = (s for s in forecast_text(made).splitlines() if "NodeHeld" in s)
    assert "until 0:" in line
    assert "another" not in line, "one end of a wait, by one clock"


def test_what_swings_for_ever_ends_at_the_limit() -> None:
    world = chat(1).edit("llama", args=NEW)
    made = play(world, failing=frozenset({"llama"}), limit_s=600.0)
    assert made.outcome is Outcome.UNFINISHED
    assert made.took_s <= 660


def test_a_large_fleet_ends_before_whoever_waits_for_it_gives_up() -> None:
    world = chat(8).edit("llama", args=NEW)
    whole = play(world)
    assert (whole.outcome, whole.passes > 25) == (Outcome.CONVERGED, True)
    made = play(world, most_work=275)
    assert (made.outcome, made.passes) == (Outcome.UNFINISHED, 275 // (8 + 2 + 1))
    assert any("cut short after 25 passes" in note for note in made.notes)


# --- What a node would find before a start --------------------------------------------------------


def test_what_a_node_is_not_fit_for_is_held_and_what_it_should_replace_stays() -> None:
    world = chat(2, gpus=2).edit("llama", args=NEW, needs=Needs(nofile=65_536))
    world = world.edit_placement("chat", rollout={"max_surge": 0})
    few = Resources(ram_free_mib=512_000, shm_free_mib=64_000, nofile=1024)
    made = play(world.answers_with("gpu-a", resources=few).answers_with("gpu-b", resources=few))
    assert (made.outcome, lowest(made)) == (Outcome.HELD, 2)
    (held,) = [h for h in made.standing if h.reason is Reason.PREFLIGHT_FAILED]
    assert held.message == (
        "chat-0-s1 is left running: its successor could not start;"
        " gpu-a: nofile: at most 1024, the profile needs 65536"
    )
    assert told(made, What.STOPPED) == []
    enough = Resources(ram_free_mib=512_000, shm_free_mib=64_000, nofile=1_048_576)
    fit = world.answers_with("gpu-a", resources=enough).answers_with("gpu-b", resources=enough)
    assert play(fit).outcome is Outcome.CONVERGED


def test_a_first_start_on_a_node_that_is_not_fit_is_held_and_the_rest_goes_on() -> None:
    world = chat(2, running=False).edit("llama", needs=Needs(memlock="unlimited"))
    made = play(world.answers_with("gpu-a", resources=Resources(memlock="64 KiB")))
    assert made.outcome is Outcome.HELD
    assert [(h.subject, h.message) for h in made.standing] == [
        ("replica chat-0", "not started; gpu-a: memlock: 64 KiB, the profile needs unlimited")
    ]
    assert {e.seats[0].node for e in told(made, What.READY)} == {"gpu-b"}


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (Network(interfaces=(InterfaceSeen("ib0", up=False),)), "interface ib0 is down"),
        (Network(interfaces=(InterfaceSeen("eth0"),)), "interface ib0 is not here (eth0 are)"),
    ],
)
def test_of_a_launch_over_two_nodes_no_rank_starts_where_one_is_not_fit(
    network: Network, said: str
) -> None:
    world = World().with_nodes("gpu-a", "gpu-b", fabrics=("ib-a",)).model("llama", facts=model())
    world = world.profile("llama", engine="vllm", gpus_per_node=8, nodes=2)
    world = world.edit_node("gpu-a", management=Management(interface="ib0"))
    world = world.edit_node("gpu-b", management=Management(interface="ib0"))
    world = world.placement("chat", "llama", fabric="ib-a")
    assert play(world).outcome is Outcome.CONVERGED
    made = play(world.answers_with("gpu-b", network=network))
    assert [h.message for h in made.standing] == [f"not started; gpu-b: {said}"]
    assert told(made, What.START) == []


def test_limits_that_the_node_has_not_told_or_that_a_unit_sets_hold_nothing() -> None:
    world = chat(1, running=False).edit("llama", needs=Needs(nofile=65_536, memlock="unlimited"))
    assert play(world).outcome is Outcome.CONVERGED
    low = world.answers_with("gpu-a", resources=Resources(nofile=1024, memlock="64 KiB"))
    assert play(low).outcome is Outcome.HELD
    assert play(low.with_fleet(mode="system")).outcome is Outcome.CONVERGED


# --- What cannot be known -------------------------------------------------------------------------


def test_a_silent_node_stays_as_it_was_and_is_named() -> None:
    made = play(chat(4).silent("gpu-b", remembered=True).edit("llama", args=NEW))
    assert made.outcome is Outcome.HELD
    assert {e.replica for e in made.events} == {"chat-0", "chat-2"}
    assert any("gpu-b gave no answer (NodeUnreachable)" in note for note in made.notes)


def test_a_node_that_the_observation_lacks_is_named() -> None:
    world = chat(1, running=False)
    looks = {"gpu-a": world.observed.nodes["gpu-a"]}
    made = forecast(world.desired, Observed("", looks), Assumptions())
    assert any("gpu-b is not in the observation" in note for note in made.notes)


def test_an_unknown_launch_stays_and_is_named() -> None:
    made = play(
        chat(1)
        .launch("chat-1", on="gpu-b", record_error="not JSON")
        .edit_placement("chat", replicas=2)
    )
    assert made.outcome is Outcome.HELD
    assert made.events == ()
    assert "launch chat-1-s1 on gpu-b stays as it is: its record is not JSON" in made.notes


def test_another_fleets_launch_keeps_what_it_holds() -> None:
    world = chat(1, gpus=2, running=False).edit_placement("chat", nodes=("gpu-a",))
    made = play(world.launch("chat-0", on="gpu-a", record={"fleet": "another"}))
    assert {h.reason for h in made.standing} == {Reason.NO_CAPACITY}
    assert "launch chat-0-s1 on gpu-a stays as it is: it belongs to another fleet" in made.notes


def test_half_a_launch_in_sight_is_not_played_forward() -> None:
    world = (
        chat(0)
        .edit_placement("chat", replicas=1)
        .edit("llama", nodes=2)
        .launch("chat-0", on=("gpu-a", "gpu-b"))
        .silent("gpu-b")
        .edit("llama", args=NEW)
    )
    made = play(world)
    assert (made.outcome, made.events) == (Outcome.HELD, ())
    assert any("a rank of it is out of sight" in note for note in made.notes)


def test_a_lease_of_another_is_left_out_and_named() -> None:
    lease = Lease(FLEET_ID, owner="other@host", epoch=7, remaining_s=40.0)
    made = play(chat(1, running=False).answers_with("gpu-a", lease=lease))
    assert made.outcome is Outcome.CONVERGED
    assert "other@host leads nodes now; leases are left out here" in made.notes


def test_an_assumed_load_time_is_named() -> None:
    made = play(chat(1, running=False).model("llama", facts=ModelFacts()), load_s=200.0)
    assert made.took_s == 200
    assert any("load time assumed" in note and "llama" in note for note in made.notes)


def test_the_load_time_of_what_starts_nothing_is_not_told() -> None:
    world = chat(1).model("web", facts=ModelFacts()).profile("web", model="web", engine="vllm")
    world = world.placement("web", "web", replicas=1).launch("web-0", on="gpu-a")
    more = world.edit_placement("chat", replicas=2)
    assert not any("load time assumed" in note for note in play(more).notes)
    assert any(
        "load time assumed" in n for n in play(world.edit_placement("web", replicas=2)).notes
    )


# --- GPUs, ports, memory --------------------------------------------------------------------------


def test_gpus_and_ports_of_what_ends_are_free_again() -> None:
    world = chat(1, gpus=2)
    full = gpus_part("gpu-a", world.nodes["gpu-a"])
    busy = dataclasses.replace(
        full,
        items=tuple(
            dataclasses.replace(g, used_mib=70_000, processes=(GpuProcess(9, launch="chat-0-s1"),))
            for g in full.items
        ),
    )
    world = world.edit_placement("chat", nodes=("gpu-a",)).answers_with("gpu-a", gpus=busy)
    made = play(world.edit("llama", args=NEW))
    assert made.outcome is Outcome.CONVERGED
    assert told(made, What.REFUSED) == []


def test_memory_comes_back_from_what_ends() -> None:
    world = (
        chat(0, gpus=4)
        .edit("llama", needs=Needs(ram_gib=400))
        .edit_placement("chat", replicas=1, nodes=("gpu-a",))
    )
    world = world.launch("chat-0", on="gpu-a").answers_with(
        "gpu-a", resources=Resources(ram_free_mib=100 * 1024)
    )
    fleet = fleet_as_seen(world.desired, world.observed, lambda spec: _slow())
    assert _ram(fleet) == 100 * 1024
    fleet.nodes["gpu-a"].launches["chat-0-s1"].ask_stop(fleet.clock.now, 1.0)
    fleet.advance(120.0)
    assert _ram(fleet) == 500 * 1024


def _ram(fleet: SimFleet) -> int | None:
    return fleet.nodes["gpu-a"].answer(FLEET_ID).resources.ram_free_mib


def test_a_strangers_gpu_stays_taken() -> None:
    world = chat(1, gpus=2, running=False).edit_placement("chat", nodes=("gpu-a",))
    part = gpus_part("gpu-a", world.nodes["gpu-a"])
    first = dataclasses.replace(part.items[0], processes=(GpuProcess(77, name="python3"),))
    made = play(
        world.answers_with("gpu-a", gpus=dataclasses.replace(part, items=(first, *part.items[1:])))
    )
    assert {h.reason for h in made.standing} == {Reason.NO_CAPACITY}


def test_a_drained_node_is_emptied_and_a_lost_one_is_not_waited_for() -> None:
    drained = play(chat(2).edit_node("gpu-a", state="draining"))
    assert (drained.outcome, lowest(drained)) == (Outcome.CONVERGED, 2)
    lost = play(chat(2).edit_node("gpu-a", state="lost").silent("gpu-a"))
    assert lost.outcome is Outcome.CONVERGED
    assert told(lost, What.START)[0].seats[0].node == "gpu-b"


def test_a_large_rollout_is_played_in_seconds() -> None:
    world = World().with_fleet(max_parallel=Limit(percent=10)).model("llama", facts=model(10))
    for n in range(40):
        world = world.node(f"n{n:02d}")
    world = world.profile("llama", engine="vllm", gpus_per_node=4).placement(
        "chat", "llama", replicas=60, rollout={"max_unavailable": 6, "max_surge": 6}
    )
    for n in range(60):
        world = world.launch(f"chat-{n}", on=f"n{n % 40:02d}")
    made = play(world.edit("llama", args=NEW))
    assert made.outcome is Outcome.CONVERGED
    assert made.passes < 60
