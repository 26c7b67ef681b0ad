"""Events are changes of state, metrics are the last report: nobody writes either by hand."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest

from reconciler.core.changes import Plan, Reason
from reconciler.core.codec import from_json, to_json
from reconciler.core.verdict import FieldChange
from reconciler.report.events import changes_of_state
from reconciler.report.metrics import Metrics
from reconciler.report.passreport import (
    Condition,
    ConditionKind,
    HeadError,
    Health,
    HistoryTurn,
    PassReport,
    Revisions,
    StepOutcome,
)
from tests.report.samples import REVISION, full_report


def quiet(report: PassReport) -> PassReport:
    return replace(report, steps=())


def test_the_same_state_twice_gives_no_event() -> None:
    report = quiet(full_report())
    assert changes_of_state(report, replace(report, observed_at="later")) == ()


def test_the_first_pass_tells_everything_once() -> None:
    kinds = {e.kind for e in changes_of_state(None, full_report())}
    assert kinds == {
        "revision.head",
        "revision.in_force",
        "revision.error",
        "node",
        "placement.sync",
        "placement.health",
        "replica",
        "hold",
        "step.start",
        "step.stop",
    }


def test_an_event_has_the_revision_triple_and_its_causes() -> None:
    before = quiet(full_report())
    big = replace(before.placements[1], health=Health.DEGRADED)
    after = replace(before, placements=(before.placements[0], big))
    (event,) = changes_of_state(before, after)
    assert (event.kind, event.subject, event.before, event.after) == (
        "placement.health",
        "big",
        "Missing",
        "Degraded",
    )
    assert event.revisions == after.revisions
    assert event.causes[0].startswith("Ready: NoCapacity")


def test_a_hold_whose_message_counts_anew_is_no_change_of_state() -> None:
    before = quiet(full_report())
    assert before.plan is not None
    (hold,) = before.plan.holds
    counted = replace(before.plan, holds=(replace(hold, message="0 of 4 nodes fit"),))
    assert changes_of_state(before, replace(before, plan=counted)) == ()
    gone = replace(before.plan, holds=())
    (event,) = changes_of_state(before, replace(before, plan=gone))
    assert (event.kind, event.before, event.after) == ("hold", "NoCapacity", "over")
    assert event.causes == (), "what it said then is not so any more"


def test_a_step_that_is_refused_again_for_the_same_reason_is_told_once() -> None:
    def passed(launch: str, message: str) -> PassReport:
        step = StepOutcome("start", launch, "gpu-a", "refused", "preflight", message)
        return replace(full_report(), steps=(step,))

    first = passed("llama-2-aaaaa", "needs 40 GiB of RAM, 12.5 GiB are free")
    again = passed("llama-2-bbbbb", "needs 40 GiB of RAM, 12.4 GiB are free")
    other = passed("llama-2-ccccc", "/models/llama: no such file")
    assert [e.kind for e in changes_of_state(quiet(first), first)] == ["step.start"]
    assert changes_of_state(first, again) == ()
    (event,) = changes_of_state(again, other)
    assert event.causes == ("/models/llama: no such file",)


def test_what_is_no_more_is_said_in_a_word() -> None:
    before = quiet(full_report())
    assert before.plan is not None
    after = replace(
        before,
        nodes=(),
        placements=(),
        plan=replace(before.plan, holds=()),
        head_error=None,
        lease_held_by="",
    )
    events = changes_of_state(replace(before, lease_held_by="bob"), after)
    kinds = {e.kind: e.after for e in events}
    assert kinds == {
        "revision.error": "cleared",
        "lease": "over",
        "node": "gone",
        "placement.sync": "gone",
        "placement.health": "gone",
        "replica": "gone",
        "hold": "over",
    }


def test_a_launch_that_failed_to_start_is_told_once_with_how_it_ended() -> None:
    before = quiet(full_report())
    chat = before.placements[0]
    sick = replace(chat.replicas[0], failed_launch="chat-0-k", failed_why="exited with code 2: x")
    after = replace(
        before,
        placements=(replace(chat, replicas=(sick, *chat.replicas[1:])), before.placements[1]),
    )
    (event,) = changes_of_state(before, after)
    assert (event.kind, event.subject, event.after) == ("launch", "chat-0-k", "start failed")
    assert event.causes == ("exited with code 2: x",)
    assert changes_of_state(after, after) == ()
    assert "launch" not in {e.kind for e in changes_of_state(None, after)}, "it is no news then"


def test_a_field_that_the_reason_names_is_not_named_again() -> None:
    before = quiet(full_report())
    chat = before.placements[0]
    field = FieldChange("profile.args[1]", "3", "1")
    edited = replace(
        chat.replicas[0],
        verdict="starting",
        reason="the profile was edited: profile.args[1] 3 → 1",
        changes=(field,),
    )
    after = replace(before, placements=(replace(chat, replicas=(edited, *chat.replicas[1:])),))
    event = next(e for e in changes_of_state(before, after) if e.subject == edited.replica)
    assert event.causes == ("the profile was edited: profile.args[1] 3 → 1",)


def test_one_cause_of_two_conditions_is_told_once() -> None:
    before = quiet(full_report())
    big = before.placements[1]
    said = (Reason.NO_CAPACITY, "0 of 3 nodes fit")
    both = (
        Condition(ConditionKind.READY, False, *said),
        Condition(ConditionKind.BLOCKED, True, *said),
    )
    after = replace(big, health=Health.DEGRADED, conditions=both)
    (event,) = changes_of_state(before, replace(before, placements=(before.placements[0], after)))
    assert event.causes == ("Ready: NoCapacity: 0 of 3 nodes fit",)


def test_a_report_reads_back_from_its_json() -> None:
    report = replace(full_report(), plan=replace(full_report().plan or Plan(REVISION), changes=()))
    assert from_json(PassReport, to_json(report)) == report


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def scrape(metrics: Metrics) -> str:
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode()


def test_metrics_are_the_last_report() -> None:
    metrics = Metrics(Clock())
    metrics.record(full_report())
    text = scrape(metrics)
    assert (
        'reconcile_placement_info{health="Healthy",model="chat-70b",placement="chat",'
        'profile="chat-70b-h100",sync="OutOfSync"} 1.0' in text
    )
    assert 'reconcile_holds{reason="NoCapacity"} 1.0' in text
    assert 'reconcile_shards{verdict="stale"} 2.0' in text
    assert 'reconcile_steps_total{kind="stop",result="lost"} 1.0' in text
    assert 'reconcile_node_seen{node="gpu-b",state="active"} 0.0' in text
    assert "canary" not in text


def test_a_hold_that_is_gone_leaves_no_series() -> None:
    metrics = Metrics(Clock())
    metrics.record(full_report())
    metrics.record(replace(full_report(), plan=Plan(REVISION)))
    assert "reconcile_holds{" not in scrape(metrics)


def test_ages_grow_between_passes_and_behind_ends_when_applied_is_head() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    metrics.record(full_report())
    clock.now = 130.0
    text = scrape(metrics)
    assert "reconcile_revision_behind_seconds 30.0" in text
    assert 'reconcile_node_last_look_age_seconds{node="gpu-a"} 30.0' in text
    assert 'reconcile_node_last_look_age_seconds{node="gpu-b"}' not in text
    metrics.record(replace(full_report(), revisions=Revisions("a", "a", "a")))
    assert "reconcile_revision_behind_seconds 0.0" in scrape(metrics)


def test_a_running_pass_shows_its_age() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    metrics.begin()
    clock.now = 107.0
    assert "reconcile_pass_running_seconds 7.0" in scrape(metrics)
    metrics.record(full_report())
    assert "reconcile_pass_running_seconds 0.0" in scrape(metrics)


def test_only_launches_that_became_ready_in_our_sight_count_as_starts() -> None:
    metrics = Metrics(Clock())
    metrics.record(full_report())
    assert 'phase="load"' not in scrape(metrics)
    report = full_report()
    chat = report.placements[0]
    fresh = replace(chat.replicas[0], launch="chat-0-bbbbb", started_age_s=40.0, ready_for_s=5.0)
    metrics.record(replace(report, placements=(replace(chat, replicas=(fresh,)),)))
    assert 'reconcile_start_duration_seconds_sum{phase="load"} 35.0' in scrape(metrics)


def test_steps_are_counted_by_result() -> None:
    metrics = Metrics(Clock())
    outcome = StepOutcome("start", "x", "gpu-a", "refused", "gpu-taken")
    metrics.record(replace(full_report(), steps=(outcome, outcome)))
    assert 'reconcile_steps_total{kind="start",result="refused"} 2.0' in scrape(metrics)


def test_a_head_that_is_not_followed_is_a_gauge_by_its_reason_until_it_is() -> None:
    metrics = Metrics(lambda: 0.0)
    good = replace(full_report(), head_error=None)
    metrics.record(replace(good, head_error=HeadError("SignatureInvalid", "it is not signed")))
    assert 'reconcile_head_error{reason="SignatureInvalid"} 1.0' in scrape(metrics)
    metrics.record(good)
    assert "reconcile_head_error{" not in scrape(metrics)


def test_a_head_that_takes_something_back_is_an_event_with_old_and_new() -> None:
    turned = HistoryTurn("1" * 40, "2" * 40, "it takes back 1 commit")
    before, after = full_report(), replace(full_report(), turned=turned)
    (event,) = [e for e in changes_of_state(before, after) if e.kind == "revision.history"]
    assert (event.kind, event.before, event.after) == ("revision.history", "1" * 40, "2" * 40)
    assert event.causes == ("it takes back 1 commit",)
