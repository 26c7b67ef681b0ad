"""The daemon: no trigger lost, no exception fatal, leases given back."""

from __future__ import annotations

import errno
import io
import json
import re
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import pytest

from reconciler.cli.daemon import make_logger, said_once
from reconciler.cli.progress import Progress
from reconciler.core.changes import Hold, Plan, Reason
from reconciler.core.model import Revision
from reconciler.core.observed import NodeHold
from reconciler.errors import Exit, SettingsError
from reconciler.loop.daemon import BUSY_S, Daemon, Schedule
from reconciler.loop.page import PageServer, json_page, parse_listen
from reconciler.loop.passes import Request
from reconciler.loop.sink import EventSink
from reconciler.loop.trigger import Trigger
from reconciler.loop.waiting import SETTLED, run_until_settled
from reconciler.report.events import Event
from reconciler.report.passreport import (
    Health,
    PassReport,
    PlacementStatus,
    ReplicaStatus,
    Revisions,
    StepOutcome,
    Sync,
)
from reconciler.report.status_text import result_text
from tests.cli.fakes import World, commit_id, desired


@dataclass
class Told:
    """A listener that keeps what it hears, and acts after a number of passes."""

    world: World
    trigger: Trigger
    passes: int = 1
    reports: list[PassReport] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def begin(self) -> None:
        pass

    def end(self, report: PassReport, events: tuple[Event, ...]) -> None:
        self.reports.append(report)
        self.events += events
        self._count()

    def failed(self, traceback_text: str) -> None:
        self.failures.append(traceback_text)
        self._count()

    def _count(self) -> None:
        if len(self.reports) + len(self.failures) >= self.passes:
            self.trigger.stop()


def daemon(world: World, passes: int = 1, **schedule: float) -> tuple[Daemon, Told]:
    trigger = Trigger()
    told = Told(world, trigger, passes)
    quick = Schedule(**{"interval_s": 0.01, "busy_s": 0.01, **schedule})
    return Daemon(world.edges, Request(), quick, trigger, told, lambda: 0.0), told


def running() -> World:
    world = World()
    world.source.push("one", desired("one"))
    world.run_ready(desired("one"))
    world.in_force(commit_id("one"))
    return world


def test_a_stopped_daemon_gives_the_leases_back() -> None:
    world = running()
    loop, _ = daemon(world)
    loop.run()
    assert world.pool.actions()[-1] == "release"


def test_equal_passes_tell_of_no_event() -> None:
    world = running()
    loop, told = daemon(world, passes=4)
    loop.run()
    assert len(told.reports) == 4
    kinds = {event.kind for event in told.events}
    assert kinds <= {
        "revision.head",
        "revision.in_force",
        "revision.applied",
        "node",
        "placement.sync",
        "placement.health",
        "replica",
    }
    assert len([e for e in told.events if e.kind == "placement.health"]) == 1


def test_a_bug_in_a_pass_is_told_with_its_trace_and_the_daemon_goes_on() -> None:
    world = World()
    world.source.push("one", desired("one"))
    fired: list[bool] = []

    def fail_once() -> None:
        if not fired:
            fired.append(True)
            raise KeyError("planted")

    world.on_apply = fail_once
    loop, told = daemon(world, passes=3)
    loop.run()
    assert len(told.failures) == 1
    assert "planted" in told.failures[0]
    assert len(told.reports) == 2


def test_a_bad_head_keeps_the_last_good_one_in_force_and_its_fix_is_taken() -> None:
    world = running()
    loop, told = daemon(world, passes=3)

    original = told.end

    def script(report: PassReport, events: tuple[Event, ...]) -> None:
        original(report, events)
        if len(told.reports) == 1:
            world.source.push("bad", None)
        if len(told.reports) == 2:
            world.source.push("good", replace(desired("good")))

    told.end = script  # type: ignore[method-assign]
    loop.run()
    assert [r.revisions.in_force for r in told.reports] == [
        commit_id("one"),
        commit_id("one"),
        commit_id("good"),
    ]
    errors = [e for e in told.events if e.kind == "revision.error"]
    assert [e.after == "cleared" for e in errors] == [False, True]
    assert any("author of line 7" in cause for cause in errors[0].causes)


def test_a_branch_that_is_gone_takes_no_placement_out_of_the_report() -> None:
    world = running()
    loop, told = daemon(world, passes=3)
    original, history = told.end, list(world.source.history)

    def script(report: PassReport, events: tuple[Event, ...]) -> None:
        original(report, events)
        world.source.history[:] = history if len(told.reports) == 2 else []

    told.end = script  # type: ignore[method-assign]
    loop.run()
    assert [bool(r.head_error) for r in told.reports] == [False, True, False]
    assert [[p.placement for p in r.placements] for r in told.reports] == [["chat"]] * 3
    seen = [e.kind for e in told.events if e.kind != "revision.error"]
    assert seen.count("placement.sync") == 1, seen
    assert told.reports[1].observed_at == told.reports[0].observed_at


def test_a_new_commit_ends_the_pause_at_once() -> None:
    world = running()
    loop, told = daemon(world, passes=2, interval_s=3600.0)
    started = threading.Event()
    original = told.end

    def tell(report: PassReport, events: tuple[Event, ...]) -> None:
        original(report, events)
        started.set()

    told.end = tell  # type: ignore[method-assign]
    thread = threading.Thread(target=loop.run)
    thread.start()
    assert started.wait(10)
    world.source.push("two", desired("two"))
    thread.join(20)
    assert not thread.is_alive()
    assert told.reports[-1].revisions.head == commit_id("two")


def test_a_poke_during_a_pass_is_one_more_pass_after_it() -> None:
    trigger = Trigger()
    trigger.clear()
    trigger.poke()
    began = threading.Event()

    def news() -> bool:
        began.set()
        return False

    trigger.wait(3600.0, news)
    assert not began.is_set()


def test_a_stop_is_not_cleared_by_the_pass_that_begins() -> None:
    trigger = Trigger()
    trigger.stop()
    trigger.clear()
    trigger.wait(3600.0, lambda: False)
    assert trigger.stopping


def test_the_pause_is_short_while_something_moves() -> None:
    loop, _ = daemon(running(), interval_s=30.0, busy_s=BUSY_S)
    assert loop.pause_s(moving=True) == BUSY_S
    assert loop.pause_s(moving=False) == 30.0


def test_jitter_is_a_tenth_at_most() -> None:
    world = running()
    told = Told(world, Trigger())
    schedule = Schedule(interval_s=30.0)
    loop = Daemon(world.edges, Request(), schedule, Trigger(), told, lambda: 1.0)
    assert loop.pause_s(moving=False) == pytest.approx(33.0)


def test_a_late_pass_begins_no_new_step() -> None:
    world = World()
    world.source.push("one", desired("one"))
    seen: list[bool] = []
    world.clock.tick = 200.0
    apply = world.apply

    def watching(*args: object, **kwargs: object) -> object:
        seen.append(kwargs["cancelled"]())  # type: ignore[operator]
        return apply(*args, **kwargs)  # type: ignore[arg-type]

    world.apply = watching  # type: ignore[method-assign,assignment]
    loop, _ = daemon(world, deadline_s=300.0)
    loop.run()
    assert seen == [True]


# --- Waiting ----------------------------------------------------------------------------------


def test_waiting_ends_when_everything_is_ready_and_gives_the_leases_back() -> None:
    world = World()
    world.source.push("one", desired("one"))
    world.on_apply = lambda: world.run_ready(desired("one"))
    reports: list[PassReport] = []
    last = run_until_settled(
        world.edges,
        Request(),
        timeout_s=60.0,
        pause=lambda s: None,
        on_report=reports.append,
    )
    assert (last.exit_code, len(reports)) == (0, 2)
    assert last.revisions.applied == commit_id("one")
    assert world.pool.actions()[-1] == "release"


def test_waiting_does_not_go_on_where_nothing_moves() -> None:
    world = World("a", "b")
    state = desired("one", replicas=50)
    world.source.push("one", state)
    world.result = type(world.result).REFUSED
    reports: list[PassReport] = []
    last = run_until_settled(
        world.edges, Request(), timeout_s=3600.0, pause=lambda s: None, on_report=reports.append
    )
    assert (last.exit_code, len(reports)) == (3, SETTLED)


def test_waiting_ends_with_its_time() -> None:
    world = World()
    world.source.push("one", desired("one"))
    world.clock.tick = 50.0
    reports: list[PassReport] = []
    last = run_until_settled(
        world.edges, Request(), timeout_s=10.0, pause=lambda s: None, on_report=reports.append
    )
    assert len(reports) == 1
    assert last.exit_code == 3
    assert re.fullmatch(r"not ready after \d+ s: chat-0, chat-1 still missing", last.unsettled), (
        last.unsettled
    )


def test_a_wait_tells_of_the_steps_of_all_its_passes() -> None:
    world = World()
    world.source.push("one", desired("one"))
    world.on_apply = lambda: world.run_ready(desired("one"))
    first: list[PassReport] = []
    last = run_until_settled(
        world.edges, Request(), timeout_s=60.0, pause=lambda s: None, on_report=first.append
    )
    assert (first[-1].steps, len(last.steps)) == ((), len(first[0].steps))
    assert "everything is ready" in result_text(last, 8.0, converged=True)
    assert f"({len(last.steps)} steps on nodes)" in result_text(last, 8.0, converged=True)


def test_a_wait_that_ends_partial_says_what_is_held_where_all_is_ready() -> None:
    world = World()
    world.source.push("one", desired("one"))
    world.run_ready(desired("one"))
    world.in_force(commit_id("one"))
    answers = world.pool.answers
    answers["c"] = replace(answers["c"], hold=NodeHold("ada", "a fan"))
    last = run_until_settled(
        world.edges, Request(), timeout_s=60.0, pause=lambda s: None, on_report=lambda r: None
    )
    assert last.exit_code == Exit.PARTIAL
    assert "all is ready, not all as wanted; held: node c: NodeHeld: c: held by ada" in result_text(
        last, 8.0
    )


# --- Events and the page ----------------------------------------------------------------------


def told_of(kind: str, subject: str, *causes: str) -> Event:
    return Event(kind, subject, "", "now", Revisions("h", "f", "a"), causes)


def test_the_log_tells_a_cause_once_and_by_its_own_line() -> None:
    why = "n2: /models/chat: no such file or directory"
    events = (
        told_of("placement.sync", "chat", f"Ready: PreflightFailed: not started; {why}"),
        told_of("placement.health", "chat", f"Ready: PreflightFailed: not started; {why}"),
        told_of("replica", "chat-0", "the profile was edited"),
        told_of("replica", "chat-1", "the profile was edited"),
        told_of("hold", "replica chat-0", f"not started; {why}"),
        told_of("step.start", "chat-0-k on n2", "/models/chat: no such file or directory"),
    )
    assert {e.subject + e.kind: causes for e, causes in said_once(events) if causes} == {
        "replica chat-0hold": (f"not started; {why}",),
        "chat-0replica": ("the profile was edited",),
        "chat-1replica": ("the profile was edited",),
    }


def shown(capsys: pytest.CaptureFixture[str], *reports: PassReport) -> list[str]:
    progress = Progress(live=False, quiet=False)
    for report in reports:
        progress.show(report)
    return capsys.readouterr().out.splitlines()


def test_a_wait_tells_a_refused_start_once_with_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    why = "/models/chat: no such file or directory"

    def refused(launch: str, why: str) -> PassReport:
        step = StepOutcome("start", launch, "n2", "refused", "preflight", why)
        hold = Hold("replica chat-0", Reason.PREFLIGHT_FAILED, f"not started; n2: {why}", "chat")
        plan = Plan(Revision("h"), holds=(hold,))
        return PassReport("me", "", Revisions(), steps=(step,), plan=plan)

    reports = [refused(f"chat-0-{i}", why) for i in "abc"]
    lines = shown(capsys, *reports, refused("chat-0-d", "port 8000 is taken"))
    assert lines == [
        f"start chat-0-a on n2: refused (preflight): {why}",
        "start chat-0-d on n2: refused (preflight): port 8000 is taken",
    ]


def test_a_wait_tells_each_start_that_failed(capsys: pytest.CaptureFixture[str]) -> None:
    def passed(launch: str) -> PassReport:
        one = ReplicaStatus(
            "chat-0", "stale", "", True, failed_launch=launch, failed_why="exited with code 2: x"
        )
        status = PlacementStatus(
            "chat", "m", "p", Sync.OUT_OF_SYNC, Health.HEALTHY, 1, 1, (), (one,)
        )
        return PassReport("me", "", Revisions(), placements=(status,))

    lines = shown(capsys, *map(passed, ["", "chat-0-a", "chat-0-a", "chat-0-b"]))
    assert lines == [
        "chat-0-a: start failed: exited with code 2: x",
        "chat-0-b: start failed: exited with code 2: x",
    ]


def event(kind: str) -> Event:
    return Event(kind, "subject", "", "after", Revisions("h", "f", "a"), ("cause",))


def test_events_are_json_lines_with_the_revision_triple() -> None:
    stream = io.StringIO()
    sink = EventSink(stream)
    sink.put([event("one"), event("two")], at="2026-03-01T10:00:00Z")
    sink.close()
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["kind"], second["kind"], first["at"]) == ("one", "two", "2026-03-01T10:00:00Z")
    assert first["revisions"] == {"head": "h", "in_force": "f", "applied": "a", "ref": ""}


class Stuck(io.StringIO):
    """A reader that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def write(self, text: str) -> int:
        self.go.wait(10)
        return super().write(text)


def test_a_reader_that_is_stuck_costs_the_oldest_events_and_their_count_is_told() -> None:
    stream = Stuck()
    sink = EventSink(stream, limit=3)
    for number in range(10):
        sink.put([event(str(number))], at="")
    stream.go.set()
    sink.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    dropped = sum(line.get("count", 0) for line in lines)
    told = [line["kind"] for line in lines if line["kind"] != "events.dropped"]
    assert dropped + len(told) == 10
    assert dropped >= 6
    assert told[-1] == "9"


def test_the_page_serves_json_and_knows_no_other_path() -> None:
    server = PageServer(
        "127.0.0.1:0", {"/status": json_page(lambda: {"a": 1}), "/none": json_page(lambda: None)}
    )
    try:
        base = f"http://127.0.0.1:{server.port}"
        with urllib.request.urlopen(f"{base}/status", timeout=5) as answer:
            assert json.load(answer) == {"a": 1}
        for path, code in (("/none", 503), ("/other", 404)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"{base}{path}", timeout=5)
            assert caught.value.code == code
            caught.value.close()
    finally:
        server.close()


@pytest.mark.parametrize(
    "text",
    ["0.0.0.0:9180", "10.0.0.1:9180", "[::]:9180", "host:1", "x", ":65536", ":-1", ":22222222"],
)
def test_the_page_is_offered_on_ports_of_loopback_only(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_listen(text)


class Full(io.StringIO):
    """A log file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        raise BrokenPipeError


def test_a_log_that_cannot_be_written_is_no_reason_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Full())
    for form in ("text", "json"):
        make_logger(form).warning("hold", subject="replica chat-0")


def test_listen_takes_both_families_and_a_bare_port() -> None:
    assert parse_listen("127.0.0.1:9180") == ("127.0.0.1", 9180)
    assert parse_listen("[::1]:9180") == ("::1", 9180)
    assert parse_listen(":9180") == ("127.0.0.1", 9180)


@pytest.mark.parametrize("say", [Trigger.poke, Trigger.stop])
def test_a_signal_at_any_instruction_of_a_wait_is_heard_and_hangs_nothing(
    say: Callable[[Trigger], None],
) -> None:
    trigger, heard = Trigger(), threading.Event()

    def handler(frame: FrameType, event: str, arg: object) -> Any:
        # As a handler does: in the thread that waits, wherever it is, and not again inside itself.
        sys.settrace(None)
        say(trigger)
        sys.settrace(handler)
        return handler

    def waits() -> None:
        sys.settrace(handler)
        trigger.wait(0.1, lambda: False, poll_s=0.05)
        trigger.clear()
        sys.settrace(None)
        heard.set()

    threading.Thread(target=waits, daemon=True).start()
    assert heard.wait(20), "it waits for itself"
