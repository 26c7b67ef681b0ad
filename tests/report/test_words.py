"""Words that every output shares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.core.changes import Change, GuardVerdict, Hold, Plan, Reason, Seat, Symbol
from reconciler.core.model import Revision
from reconciler.core.observed import ApprovedChange
from reconciler.core.verdict import FieldChange
from reconciler.report.passreport import PassReport, Revisions, StepOutcome
from reconciler.report.plan_markdown import plan_markdown
from reconciler.report.plan_text import approval_text, plan_text
from reconciler.report.status_text import result_text, revisions_words
from reconciler.report.words import (
    duration,
    lead_words,
    share_words,
    short_revision,
    state_words,
    why_words,
)

SENTENCE = "model m in pool p: 2 of 4 replicas would be removed"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(45.0, "45 s"), (119.0, "119 s"), (180.0, "3m"), (7200.0, "2h"), (5400.0, "1h 30m")],
)
def test_a_duration_is_as_coarse_as_it_is_long(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_more_ready_than_wanted_is_not_told_as_a_share() -> None:
    assert share_words(3, 0) == "3 ready, 0 wanted"
    assert share_words(3, 4) == "3 of 4 ready"


def test_the_canary_reads_as_one_sentence() -> None:
    change = Change("a-0", "a", Symbol.START_FIRST, "goes first (canary): the profile was edited")
    assert why_words(change) == "goes first (canary): the profile was edited"
    stale = Change("a-0", "a", Symbol.START_FIRST, change.reason, verdict="stale")
    assert why_words(stale) == "stale, goes first (canary): the profile was edited"


def test_whoever_leads_is_named_and_a_sentence_stays_one() -> None:
    assert lead_words("ops@control") == "ops@control leads this fleet"
    assert lead_words("fleet x is led from elsewhere") == "fleet x is led from elsewhere"


def test_what_was_applied_is_left_out_where_nobody_knows() -> None:
    assert revisions_words(Revisions("a" * 40, "a" * 40, "", "main")) == "main@aaaaaaaaaa: in force"
    assert revisions_words(Revisions("a" * 40, "b" * 40)) == "head aaaaaaaaaa, in force bbbbbbbbbb"


def test_one_commit_that_is_all_three_is_told_once() -> None:
    same = Revisions("a" * 40, "a" * 40, "a" * 40, "main")
    assert revisions_words(same) == "main@aaaaaaaaaa: in force and applied"


def test_a_look_that_writes_nothing_down_tells_what_runs_and_that_it_is_not_in_force() -> None:
    new = Revisions("a" * 40, "", "", "main")
    assert revisions_words(new) == "main@aaaaaaaaaa: not in force yet"
    first = Revisions("a" * 40, "", "a" * 40, "main")
    assert revisions_words(first) == "main@aaaaaaaaaa: applied, not in force yet"
    later = revisions_words(Revisions("a" * 40, "b" * 40, "a" * 40, "main"))
    assert later == "main@aaaaaaaaaa: applied, bbbbbbbbbb is in force until the next pass"


def test_a_repository_without_a_commit_is_no_revision_called_none() -> None:
    assert short_revision(Revision("", dirty=True)) == (
        "the working tree (nothing is committed yet)"
    )
    assert short_revision(Revision("a" * 40)) == "sha1:aaaaaaaaaa", "no ref is not HEAD"
    assert short_revision(Revision("a" * 40, "main")) == "main@sha1:aaaaaaaaaa"


def test_steps_are_told_as_counted_by_node_and_none_is_no_share() -> None:
    def said(*results: str, unsettled: str = "") -> str:
        steps = tuple(StepOutcome("start", "a-0-x", "n", result) for result in results)
        report = PassReport("me", "", Revisions(), steps=steps, unsettled=unsettled)
        return result_text(report, 1.0).splitlines()[-1]

    assert said("done", "done") == "done: 2 steps on nodes in 1.0 s"
    assert said("done", "lost") == "done: 1 of 2 steps on nodes done in 1.0 s"
    assert said(unsettled="not ready after 1 s: a-0") == (
        "done: not ready after 1 s: a-0 (nothing was done)"
    )


@pytest.mark.parametrize(
    ("verdict", "ready", "text"),
    [
        ("matching", True, "matching, ready"),
        ("matching", False, "matching, not ready"),
        ("stale", True, "stale, ready"),
        ("missing", False, "missing"),
        ("starting", False, "starting"),
        ("starting", True, "starting, the old one serves"),
        ("exited", True, "exited, the old one serves"),
    ],
)
def test_a_state_does_not_call_what_starts_ready(verdict: str, ready: bool, text: str) -> None:
    assert state_words(verdict, ready=ready) == text


def test_why_a_start_was_refused_is_not_told_twice_at_the_end_of_a_wait() -> None:
    step = StepOutcome("start", "a-0-x", "n", "refused", "preflight", "/models/a: no such file")
    report = PassReport("me", "", Revisions(), steps=(step,), exit_code=3)
    held = "a-0 still missing; held: replica a-0: not started; n: /models/a: no such file"
    assert result_text(report, 1.0).count("/models/a") == 1
    assert result_text(replace(report, unsettled=held), 1.0).count("/models/a") == 1


def test_a_guards_sentence_stands_once_in_a_plan() -> None:
    stops = tuple(
        Change(f"a-{n}", "a", Symbol.STOP, "r", waits=SENTENCE, waits_for=Reason.BLAST_RADIUS)
        for n in range(3)
    )
    guard = GuardVerdict("removed", "model m in pool p", "30%", "2 of 4", False, SENTENCE)
    hold = Hold("guard removed: model m in pool p", Reason.BLAST_RADIUS, SENTENCE)
    plan = Plan(Revision("a" * 40), changes=stops, holds=(hold,), guards=(guard,))
    for text in (plan_text(plan), plan_markdown(plan)):
        assert text.count(SENTENCE) == 1
        assert text.count("held by the guard (BlastRadius)") == 3
        assert "a guard holds 3 of them" in text


def test_what_is_to_be_approved_is_shown_with_its_fields_and_nodes() -> None:
    old, new = "p1:" + "a" * 64, "p1:" + "b" * 64
    seats = (Seat("gpu-a", ("G1",)),)
    field = FieldChange("profile.args[3]", "4096", "8192")
    edited = Change("a-0", "a", Symbol.STOP_FIRST, "the profile was edited", "stale", (field,))
    edited = replace(edited, before=old, after=new, before_seats=seats)
    moved = Change("a-1", "a", Symbol.STOP_FIRST, "node gpu-a is draining", "misplaced")
    moved = replace(moved, before=old, after=old, before_seats=seats)
    gone = Change("b-0", "b", Symbol.STOP, "placement b is not in git (any more)", "surplus")
    gone = replace(gone, before=old, before_seats=seats)
    wanted = [ApprovedChange(c.address, c.before, c.after) for c in (edited, moved, gone)]
    wanted.append(ApprovedChange("c-0", old))
    shown = approval_text(Plan(Revision("a" * 40), (edited, moved, gone)), wanted)
    assert shown.splitlines() == [
        "  a-0: p1:aaaaaaaaaaaa → p1:bbbbbbbbbbbb; stale: the profile was edited",
        "        profile.args[3]: 4096 → 8192",
        "        on gpu-a (1 GPU)",
        "  a-1: replaced, with the profile that it has (p1:aaaaaaaaaaaa); misplaced: node gpu-a is"
        " draining",
        "        on gpu-a (1 GPU)",
        "  b-0: removed; surplus: placement b is not in git (any more)",
        "        on gpu-a (1 GPU)",
        "  c-0: removed",
    ]
