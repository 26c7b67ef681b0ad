"""Head is no successor of what is in force: followed and told, but by a clone that cannot know."""

from __future__ import annotations

from dataclasses import replace

from reconciler.errors import Exit
from reconciler.loop.passes import Request, run_pass
from reconciler.report.events import changes_of_state
from reconciler.report.plan_json import plan_json
from reconciler.report.plan_text import plan_text
from tests.cli.fakes import LOOK_ONLY, World, commit_id, desired

OLD = commit_id("three")[:10]


def reset() -> World:
    """`three` is in force and runs; the branch is back at `one`."""
    world = World()
    for name in ("one", "two", "three"):
        world.source.push(name, desired(name, args=("--context", name)))
    world.run_ready(desired("three", args=("--context", "three")))
    world.in_force(commit_id("three"))
    history = list(world.source.history)
    world.source.history[:] = history[:1]
    ancestors = world.source.ancestors

    def known(commit: str) -> object:
        if commit == commit_id("three"):
            world.source.history[:] = history
            found = list(ancestors(commit))
            world.source.history[:] = history[:1]
            return iter(found)
        return ancestors(commit)

    world.source.ancestors = known  # type: ignore[method-assign,assignment]
    return world


def elsewhere(*, remote: bool) -> World:
    """What is in force is in no history that this repository has."""
    world = World()
    world.source.push("one", desired("one", args=("--context", "1")))
    world.run_ready(desired("lost"))
    world.in_force(commit_id("lost"))
    world.source.has_remote = remote
    return world


def test_a_branch_that_was_reset_is_followed_with_old_and_new_in_plan_report_and_event() -> None:
    w = reset()
    report = run_pass(w.edges, Request())
    assert report.plan is not None
    assert report.plan.steps
    assert report.turned is not None
    said = report.turned.message
    assert said.startswith(f"main@{commit_id('one')[:10]} is older than {OLD}")
    assert said.endswith("it takes back 2 commits")
    assert said in plan_text(report.plan)
    assert said in plan_json(report.plan, observed_at="")["warnings"]
    assert said in report.notes
    (event,) = [e for e in changes_of_state(None, report) if e.kind == "revision.history"]
    assert (event.before, event.after) == (commit_id("three"), commit_id("one"))
    again = run_pass(w.edges, Request())
    assert again.turned is None, "it is in force now"


def test_the_event_is_told_once_while_a_guard_or_lease_keeps_it_from_coming_into_force() -> None:
    w = reset()
    report = run_pass(w.edges, LOOK_ONLY)
    same = run_pass(w.edges, LOOK_ONLY)
    assert not [e for e in changes_of_state(report, same) if e.kind == "revision.history"]


def test_a_remote_that_lost_the_revision_in_force_is_followed() -> None:
    w = elsewhere(remote=True)
    report = run_pass(w.edges, Request())
    assert report.revisions.in_force == commit_id("one")
    assert report.turned is not None
    assert "is not in this repository" in report.turned.message


def test_a_clone_that_does_not_know_the_revision_in_force_rolls_nothing_back_by_itself() -> None:
    w = elsewhere(remote=False)
    report = run_pass(w.edges, Request())
    assert (report.exit_code, w.applied) == (Exit.ERROR, [])
    assert report.head_error is not None
    assert report.head_error.reason == "HistoryRewritten"
    assert "git pull" in report.head_error.message
    assert "--expect" in report.head_error.message
    assert report.revisions.in_force == commit_id("lost")


def test_the_plan_of_such_a_clone_can_be_looked_at_and_applied_once_it_was_reviewed() -> None:
    w = elsewhere(remote=False)
    seen = run_pass(w.edges, LOOK_ONLY)
    assert seen.head_error is None
    assert seen.plan is not None
    assert "is not in this repository" in seen.plan.warnings[0]
    report = run_pass(w.edges, Request(expect=seen.plan.plan_digest, reviewed=True))
    assert report.revisions.in_force == commit_id("one")
    assert w.applied[0].steps


def test_a_warning_about_the_past_is_no_part_of_the_plans_digest() -> None:
    w = elsewhere(remote=True)
    turned = run_pass(w.edges, LOOK_ONLY).plan
    w.in_force("")
    plain = run_pass(w.edges, LOOK_ONLY).plan
    assert turned is not None
    assert plain is not None
    assert turned.plan_digest == plain.plan_digest
    assert replace(turned, warnings=()).summary == plain.summary


def test_the_history_is_not_walked_where_head_is_in_force() -> None:
    """It may be long, and passes come every two seconds."""
    w = World()
    w.source.push("one", desired("one"))
    run_pass(w.edges, Request())
    walked: list[str] = []

    class Counting(type(w.source)):  # type: ignore[misc]
        def ancestors(self, commit: str) -> object:
            walked.append(commit)
            return super().ancestors(commit)

    w.source = Counting(w.source.history, in_force=w.source.in_force)
    run_pass(w.edges, Request())
    assert w.pool.looks
    assert walked == []
