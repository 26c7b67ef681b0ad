"""The line of one pass, over a repo and nodes in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.core.changes import Reason, StartStep
from reconciler.core.fingerprint import fingerprint
from reconciler.core.model import Desired, GuardRails, Limit, NodeState, ResolvedProfile, Rollout
from reconciler.core.observed import ApprovedChange, ExitKind, Lease, Phase, ShardExit
from reconciler.errors import Exit, GitError, PlanIsStale
from reconciler.loop.leases import Book
from reconciler.loop.passes import Request, run_pass
from reconciler.nodes.apply import Outcome
from reconciler.report.passreport import Sync
from tests.cli.fakes import FLEET, LOOK_ONLY, ME, World, commit_id, desired, ready_shard


def resolved(name: str) -> ResolvedProfile:
    state = desired(name)
    return state.resolved(state.placements["chat"])


def world() -> World:
    made = World()
    made.source.push("one", desired("one"))
    return made


def test_a_dry_run_takes_no_lease_and_sends_nothing() -> None:
    w = world()
    report = run_pass(w.edges, LOOK_ONLY)
    assert report.plan is not None
    assert report.plan.summary.start == 2
    assert (w.pool.leases, w.applied) == ([], [])


def test_a_pass_acts_under_leases_that_it_gives_back() -> None:
    w = world()
    report = run_pass(w.edges, Request())
    assert report.exit_code == Exit.OK
    assert len(w.applied) == 1
    assert set(w.epochs[0]) == {"a", "b", "c"}
    assert w.pool.actions() == ["acquire", "update", "release"]


def test_the_plan_is_made_again_after_the_leases_were_taken() -> None:
    w = world()
    run_pass(w.edges, Request())
    assert len(w.pool.looks) == 2


def test_what_validated_and_passed_the_guard_is_in_force_on_every_node() -> None:
    w = world()
    report = run_pass(w.edges, Request())
    assert report.revisions.in_force == commit_id("one")
    assert {a.lease.revision for a in w.pool.answers.values() if a.lease} == {commit_id("one")}


def test_nothing_to_do_and_nothing_to_write_takes_no_lease() -> None:
    w = world()
    w.run_ready(desired("one"))
    w.in_force(commit_id("one"))
    report = run_pass(w.edges, Request())
    assert (report.exit_code, w.pool.leases, w.applied) == (Exit.OK, [], [])
    assert report.revisions.applied == commit_id("one")


def test_a_commit_without_work_is_still_written_down_as_in_force() -> None:
    w = world()
    w.run_ready(desired("one"))
    w.in_force(commit_id("zero"))
    report = run_pass(w.edges, Request())
    assert w.applied == []
    assert report.revisions.in_force == commit_id("one")


def test_the_lease_of_another_means_that_nothing_is_sent_and_exit_4() -> None:
    w = world()
    w.in_force(commit_id("one"), owner="other@host", left=40.0)
    report = run_pass(w.edges, Request())
    assert report.exit_code == Exit.BLOCKED
    assert report.lease_held_by == "other@host", "without seconds, or each pass has news"
    assert all(not plan.steps for plan in w.applied)


def test_a_pass_with_nothing_to_do_names_who_leads_too() -> None:
    w = world()
    w.run_ready(desired("one"))
    w.in_force(commit_id("one"), owner="other@host", left=40.0)
    report = run_pass(w.edges, Request())
    assert (report.exit_code, w.pool.leases) == (Exit.OK, [])
    assert "other@host leads this fleet" in report.notes


def test_a_dry_run_shows_the_plan_also_while_another_holds_the_lease() -> None:
    w = world()
    w.in_force(commit_id("one"), owner="other@host", left=40.0)
    report = run_pass(w.edges, LOOK_ONLY)
    assert report.plan is not None
    assert report.plan.summary.start == 2


def test_an_expired_lease_of_another_is_no_obstacle() -> None:
    w = world()
    w.in_force(commit_id("one"), owner="other@host", left=-5.0)
    assert run_pass(w.edges, Request()).exit_code == Exit.OK
    assert len(w.applied) == 1


def test_another_plan_than_the_expected_one_is_refused_and_the_leases_are_given_back() -> None:
    w = world()
    with pytest.raises(PlanIsStale) as caught:
        run_pass(w.edges, Request(expect="d1:ffffffffffffffff"))
    assert caught.value.exit_code == Exit.STALE_PLAN
    assert w.applied == []
    assert w.pool.actions() == ["acquire", "release"]


def test_the_expected_plan_is_applied_by_the_beginning_of_its_digest() -> None:
    w = world()
    seen = run_pass(w.edges, LOOK_ONLY).plan
    assert seen is not None
    run_pass(w.edges, Request(expect=seen.plan_digest[:20]))
    assert len(w.applied) == 1


def test_expecting_a_plan_where_nothing_is_left_to_do_is_stale_too() -> None:
    w = world()
    w.run_ready(desired("one"))
    w.in_force(commit_id("one"))
    with pytest.raises(PlanIsStale):
        run_pass(w.edges, Request(expect="d1:ffffffffffffffff"))


def test_a_step_that_was_not_done_makes_the_pass_partial() -> None:
    w = world()
    w.result = Outcome.REFUSED
    assert run_pass(w.edges, Request()).exit_code == Exit.PARTIAL


# --- A head that does not validate ------------------------------------------------------------


def test_a_bad_head_is_told_with_commit_author_file_and_line() -> None:
    w = world()
    w.source.push("bad", None)
    w.in_force(commit_id("one"))
    report = run_pass(w.edges, Request())
    assert report.exit_code == Exit.ERROR
    assert report.head_error is not None
    assert report.head_error.reason == "SchemaFailed"
    (finding,) = report.head_error.findings
    assert (finding.file, finding.line, finding.commit, finding.author) == (
        "placements/chat.yaml",
        7,
        commit_id("bad"),
        "author of line 7",
    )


def test_under_a_bad_head_repairs_go_on_from_the_revision_in_force() -> None:
    w = world()
    w.run_ready(desired("one"))
    w.pool.answers["b"] = replace(w.pool.answers["b"], shards=())
    w.source.push("bad", None)
    w.in_force(commit_id("one"))
    report = run_pass(w.edges, Request())
    assert [c.address for c in w.applied[0].changes if c.steps] == ["chat-1"]
    assert report.working_on is not None
    assert report.working_on.commit == commit_id("one")
    assert report.revisions.in_force == commit_id("one")
    assert report.revisions.head == commit_id("bad")


def test_under_a_bad_head_nothing_voluntary_is_done() -> None:
    """Revision two was in force and half rolled out; a bad commit stops the rollout there."""
    w = world()
    w.run_ready(desired("one"))
    w.source.push("two", desired("two", args=("--context", "1")))
    w.source.push("bad", None)
    w.in_force(commit_id("two"))
    report = run_pass(w.edges, Request())
    assert all(not plan.steps for plan in w.applied)
    assert report.exit_code == Exit.ERROR


def test_under_a_bad_head_a_killed_replica_restarts_with_its_own_records_profile() -> None:
    w = world()
    w.run_ready(desired("one"))
    killed = w.pool.answers["b"].shards[0]
    ended = replace(
        killed,
        alive=False,
        supervised=False,
        phase=Phase.ENDED,
        exit=ShardExit(ExitKind.SIGNAL, signal="KILL", age_s=100.0),
    )
    w.pool.answers["b"] = replace(w.pool.answers["b"], shards=(ended,))
    w.source.push("two", desired("two", args=("--context", "1")))
    w.source.push("bad", None)
    w.in_force(commit_id("two"))
    run_pass(w.edges, Request())
    (start,) = [s for s in w.applied[0].steps if isinstance(s, StartStep)]
    assert (start.replica, start.fingerprint) == ("chat-1", fingerprint(resolved("one")))


def test_under_a_bad_head_what_waits_says_so_and_not_that_a_canary_runs() -> None:
    w = world()
    w.run_ready(desired("one"))
    w.source.push("two", desired("two", args=("--context", "1")))
    w.source.push("bad", None)
    w.in_force(commit_id("two"))
    report = run_pass(w.edges, Request())
    assert report.plan is not None
    assert {c.waits_for for c in report.plan.changes} == {Reason.SCHEMA_FAILED}
    assert {p.sync for p in report.placements} == {Sync.OUT_OF_SYNC}


def test_a_start_over_a_bad_head_with_none_in_force_does_nothing() -> None:
    w = world()
    w.source.push("bad", None)
    report = run_pass(w.edges, Request())
    assert (report.exit_code, report.plan, w.applied) == (Exit.ERROR, None, [])
    assert "no node names a revision in force" in report.notes[0]
    assert [n.node for n in report.nodes] == ["a", "b", "c"]


def test_a_bad_head_is_not_followed_by_the_last_valid_commit_but_by_the_one_in_force() -> None:
    """Between the one in force and the bad head lies a valid one that never passed a guard."""
    w = world()
    w.source.push("two", desired("two", replicas=1))
    w.source.push("bad", None)
    w.run_ready(desired("one"))
    w.in_force(commit_id("one"))
    report = run_pass(w.edges, Request())
    assert report.working_on is not None
    assert report.working_on.commit == commit_id("one")


def test_the_nodes_of_an_older_inventory_are_looked_at_where_no_newer_one_validates() -> None:
    w = World()
    w.source.push("one", desired("one"))
    w.source.push("bad", None)
    w.source.push("worse", None)
    run_pass(w.edges, LOOK_ONLY)
    assert w.pool.looks == [("a", "b", "c")]


def test_a_repo_in_which_no_revision_tells_of_nodes_is_an_error_and_asks_nobody() -> None:
    w = World()
    w.source.push("bad", None)
    report = run_pass(w.edges, Request())
    assert (report.exit_code, report.plan, w.pool.looks) == (Exit.ERROR, None, [])


def test_when_git_is_down_work_goes_on_with_what_was_fetched_before() -> None:
    w = world()
    w.source.fetch_error = GitError("origin", "timed out after 60 s")
    report = run_pass(w.edges, Request())
    assert len(w.applied) == 1
    assert report.head_error is not None
    assert report.head_error.reason == "FetchFailed"
    assert report.exit_code == Exit.ERROR


def test_when_git_is_down_what_is_older_than_the_one_in_force_is_not_rolled_out() -> None:
    """A clone of last month on another machine: its head is no news, whatever it says."""
    w = world()
    w.run_ready(desired("two", args=("--load-time", "1")))
    w.in_force(commit_id("two"))
    w.source.fetch_error = GitError("origin", "timed out after 60 s")
    report = run_pass(w.edges, Request())
    assert (report.exit_code, report.plan, w.applied) == (Exit.ERROR, None, [])
    assert "not in the history that was fetched before" in report.notes[0]
    w.source.fetch_error = None
    w.source.push("two", desired("two", args=("--load-time", "1")))
    assert run_pass(w.edges, Request()).exit_code == Exit.OK


def test_when_git_is_down_one_node_that_names_a_newer_revision_is_enough() -> None:
    w = world()
    w.run_ready(desired("two"))
    w.in_force(commit_id("one"))
    w.in_force(commit_id("two"), "b")
    w.source.gone[commit_id("two")] = desired("two")
    w.source.fetch_error = GitError("origin", "timed out after 60 s")
    report = run_pass(w.edges, Request())
    assert report.revisions.in_force == commit_id("two")
    assert "repairs go on" in report.notes[1]


# --- The guard --------------------------------------------------------------------------------


def test_an_emptied_repo_is_held_with_exit_4_and_does_not_come_into_force() -> None:
    w = world()
    w.run_ready(desired("one"))
    w.in_force(commit_id("one"))
    w.source.push("empty", replace(desired("empty"), placements={}))
    report = run_pass(w.edges, Request())
    assert report.exit_code == Exit.BLOCKED
    assert report.revisions.in_force == commit_id("one")
    assert all(not plan.steps for plan in w.applied)


def test_what_was_approved_passes_and_its_approval_is_used_up() -> None:
    w = world()
    w.run_ready(desired("one"))
    w.in_force(commit_id("one"))
    w.source.push("empty", replace(desired("empty"), placements={}))
    held = run_pass(w.edges, LOOK_ONLY).plan
    assert held is not None
    approvals = tuple(c for g in held.guards if not g.passed for c in g.changes)
    assert {a.replica for a in approvals} == {"chat-0", "chat-1"}
    for name, answer in w.pool.answers.items():
        assert answer.lease is not None
        w.pool.answers[name] = replace(answer, lease=replace(answer.lease, approvals=approvals))
    report = run_pass(w.edges, Request())
    assert report.revisions.in_force == commit_id("empty")
    assert w.applied[0].steps
    for name, answer in w.pool.answers.items():
        w.pool.answers[name] = replace(answer, shards=())
    run_pass(w.edges, Request())
    assert {a.lease.approvals for a in w.pool.answers.values() if a.lease} == {()}


def test_what_a_manual_update_was_let_through_to_is_kept_until_git_asks_for_another() -> None:
    def manual(name: str, *args: str) -> Desired:
        state = desired(name, args=args)
        placement = replace(state.placements["chat"], rollout=Rollout(update="manual"))
        return replace(state, placements={"chat": placement})

    w = world()
    two = manual("two", "--new")
    now = fingerprint(two.resolved(two.placements["chat"]))
    w.source.push("two", two)
    w.run_ready(two)
    w.in_force(commit_id("one"))
    kept = ApprovedChange("chat-0", "p1:" + "0" * 64, now)
    for name, answer in w.pool.answers.items():
        assert answer.lease is not None
        approvals = (kept, ApprovedChange("chat-0", now, now))
        w.pool.answers[name] = replace(answer, lease=replace(answer.lease, approvals=approvals))
    for _ in range(2):
        run_pass(w.edges, Request())
        assert {a.lease.approvals for a in w.pool.answers.values() if a.lease} == {(kept,)}
    w.source.push("three", manual("three", "--newer"))
    run_pass(w.edges, Request())
    assert {a.lease.approvals for a in w.pool.answers.values() if a.lease} == {()}


# --- Nodes that left the repo -----------------------------------------------------------------


def without_c(name: str) -> object:
    state = desired(name)
    return replace(state, nodes={n: v for n, v in state.nodes.items() if n != "c"})


def test_a_node_taken_out_of_the_repo_is_still_looked_at_until_seen_empty() -> None:
    w = world()
    w.run_ready(desired("one"))
    c = w.pool.answers["c"]
    w.pool.answers["c"] = replace(c, shards=(ready_shard(desired("one"), "chat-2", "c"),))
    w.in_force(commit_id("one"))
    w.source.push("two", without_c("two"))  # type: ignore[arg-type]
    report = run_pass(w.edges, Request())
    assert w.pool.looks[-1] == ("a", "b", "c")
    assert {n.node: n.state for n in report.nodes}["c"] == "departed"
    lease = w.pool.answers["a"].lease
    assert lease is not None
    assert lease.departed == {"c": commit_id("one")}


def test_a_departed_node_that_was_seen_empty_is_forgotten() -> None:
    w = world()
    w.run_ready(desired("one"))
    w.in_force(commit_id("one"))
    w.source.push("two", without_c("two"))  # type: ignore[arg-type]
    run_pass(w.edges, Request())
    lease = w.pool.answers["a"].lease
    assert lease is not None
    assert lease.departed == {}


def test_a_departed_node_that_is_silent_stays_named_pass_after_pass() -> None:
    w = world()
    w.run_ready(desired("one"))
    w.in_force(commit_id("one"))
    w.pool.silent = {"c"}
    w.source.push("two", without_c("two"))  # type: ignore[arg-type]
    run_pass(w.edges, Request())
    w.source.push("three", without_c("three"))  # type: ignore[arg-type]
    run_pass(w.edges, Request())
    lease = w.pool.answers["a"].lease
    assert lease is not None
    assert lease.departed == {"c": commit_id("one")}
    assert w.pool.looks[-1] == ("a", "b", "c")


def test_a_commit_that_takes_out_every_node_is_held_and_not_taken_for_a_new_fleet() -> None:
    w = world()
    w.run_ready(desired("one"))
    w.in_force(commit_id("one"))
    w.source.push("empty", replace(desired("empty"), nodes={}, placements={}))
    report = run_pass(w.edges, Request())
    assert w.pool.looks[-1] == ("a", "b", "c")
    assert report.exit_code == Exit.BLOCKED
    assert report.revisions.in_force == commit_id("one")
    assert all(not plan.steps for plan in w.applied)


def test_a_new_fleet_with_a_history_is_looked_at_once() -> None:
    w = world()
    w.source.push("two", desired("two"))
    w.source.push("three", desired("three"))
    run_pass(w.edges, LOOK_ONLY)
    assert w.pool.looks == [("a", "b", "c")]


def test_a_node_that_was_lost_when_it_left_is_not_waited_for() -> None:
    w = World()
    state = desired("one")
    lost = replace(state.nodes["c"], state=NodeState.LOST, reason="burnt")
    w.source.push("one", replace(state, nodes={**state.nodes, "c": lost}))
    w.run_ready(state)
    w.pool.silent = {"c"}
    w.in_force(commit_id("one"))
    w.source.push("two", without_c("two"))  # type: ignore[arg-type]
    report = run_pass(w.edges, Request())
    assert "c" not in {n.node for n in report.nodes}


# --- History and repositories -----------------------------------------------------------------


def test_a_rewritten_branch_is_followed_and_told_by_default() -> None:
    w = world()
    w.run_ready(desired("one"))
    w.in_force(commit_id("lost"))
    w.source.gone[commit_id("lost")] = desired("lost")
    report = run_pass(w.edges, Request())
    assert report.revisions.in_force == commit_id("one")
    assert "rewritten" in report.notes[0]


def test_with_history_hold_a_rewritten_branch_is_not_followed() -> None:
    w = World()
    state = desired("one", replicas=1)
    w.source.push("one", replace(state, fleet=replace(state.fleet, history="hold")))
    w.run_ready(desired("lost"))
    w.in_force(commit_id("lost"))
    w.source.gone[commit_id("lost")] = desired("lost")
    report = run_pass(w.edges, Request())
    assert report.head_error is not None
    assert report.head_error.reason == "HistoryRewritten"
    assert report.revisions.in_force == commit_id("lost")
    assert all(not plan.steps for plan in w.applied)


def test_another_repository_under_the_same_fleet_id_is_held() -> None:
    w = world()
    for name, answer in w.pool.answers.items():
        lease = Lease(FLEET, "", 3, 0.0, root_commit="f" * 40)
        w.pool.answers[name] = replace(answer, lease=lease)
    report = run_pass(w.edges, Request())
    assert report.exit_code == Exit.BLOCKED
    assert "another repository" in report.lease_held_by
    assert (w.pool.leases, w.applied) == ([], [])


def test_uncommitted_changes_never_come_into_force() -> None:
    w = world()
    report = run_pass(w.edges, Request(worktree=True))
    assert len(w.applied) == 1
    assert report.revisions.in_force == ""
    assert "update" not in w.pool.actions()


# --- Keeping the leases -----------------------------------------------------------------------


def test_kept_leases_are_neither_given_back_nor_asked_for_again() -> None:
    w = world()
    book = Book()
    run_pass(w.edges, Request(keep=book))
    w.run_ready(desired("one"))
    asked = len(w.pool.leases)
    run_pass(w.edges, Request(keep=book))
    assert "release" not in w.pool.actions()
    assert len(w.pool.leases) == asked
    book.release(w.pool)
    assert w.pool.actions()[-1] == "release"


def test_kept_leases_are_renewed_before_they_could_run_out_between_two_passes() -> None:
    w = world()
    book = Book()
    run_pass(w.edges, Request(keep=book))
    w.run_ready(desired("one"))
    lease_s, interval_s = desired().fleet.lease_s, desired().fleet.interval_s
    looks = len(w.pool.looks)
    for name, answer in w.pool.answers.items():
        assert answer.lease is not None
        left = replace(answer.lease, remaining_s=float(lease_s - interval_s + 3))
        w.pool.answers[name] = replace(answer, lease=left)
    run_pass(w.edges, Request(keep=book))
    assert w.pool.actions()[-1] == "renew"
    assert {a.lease.remaining_s for a in w.pool.answers.values() if a.lease} == {lease_s}
    assert len(w.pool.looks) == looks + 1, "an unbroken lease needs no second look"


def test_a_kept_lease_that_cannot_be_renewed_is_asked_for_anew_and_looked_at_again() -> None:
    w = world()
    w.run_ready(desired("one"))
    w.in_force(commit_id("one"), owner=ME, left=1.0)
    w.pool.lost = {"b"}
    looks = len(w.pool.looks)
    run_pass(w.edges, Request(keep=Book()))
    assert w.pool.actions()[:2] == ["renew", "acquire"]
    assert len(w.pool.looks) == looks + 2


@pytest.mark.parametrize("mine", [{"a"}, {"b", "c"}, {"b"}, {"a", "c"}])
def test_two_that_hold_a_part_each_do_not_block_each_other_for_ever(mine: set[str]) -> None:
    w, other = world(), world()
    w.run_ready(desired("one"))
    w.in_force(commit_id("one"))
    w.in_force(commit_id("one"), *mine, owner=ME, left=60.0)
    rest = set(w.pool.answers) - mine
    w.in_force(commit_id("one"), *rest, owner="other@host", left=60.0)
    other.pool.owner, other.pool.answers = "other@host", w.pool.answers
    books = Book(), Book()
    for _ in range(2):
        run_pass(w.edges, Request(keep=books[0]))
        run_pass(other.edges, Request(keep=books[1]))
    first = ME if "a" in mine else "other@host"
    leading = {a.lease.owner for a in w.pool.answers.values() if a.lease and a.lease.remaining_s}
    assert leading == {first}, "who holds the first by name leads them all"
    assert all(a.lease and a.lease.remaining_s for a in w.pool.answers.values())


def test_an_idle_daemon_takes_the_leases_so_that_a_second_one_reads_them() -> None:
    w = world()
    w.run_ready(desired("one"))
    w.in_force(commit_id("one"))
    run_pass(w.edges, Request(keep=Book()))
    assert {a.lease.owner for a in w.pool.answers.values() if a.lease} == {ME}


def test_a_look_under_leases_that_are_held_already_is_not_repeated() -> None:
    w = world()
    book = Book()
    run_pass(w.edges, Request(keep=book))
    looks = len(w.pool.looks)
    run_pass(w.edges, Request(keep=book))
    assert len(w.pool.looks) == looks + 1


def test_the_unseen_guard_keeps_a_revision_from_coming_into_force() -> None:
    w = World()
    w.source.push("one", desired("one"))
    w.run_ready(desired("one"))
    state = desired("two", replicas=1)
    rails = GuardRails(max_unseen_nodes=Limit(count=0))
    w.source.push("two", replace(state, fleet=replace(state.fleet, guard=rails)))
    w.in_force(commit_id("one"))
    w.pool.silent = {"c"}
    report = run_pass(w.edges, Request())
    assert report.revisions.in_force == commit_id("one")
