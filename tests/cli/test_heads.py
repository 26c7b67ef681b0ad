"""A head that cannot be resolved or read: the one in force stays, repairs go on, and it is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from reconciler.core.changes import StartStep
from reconciler.core.model import Desired, Revision
from reconciler.core.observed import ExitKind, Phase, ShardExit
from reconciler.errors import DamagedRepo, Exit, GitError
from reconciler.loop.head import read_head
from reconciler.loop.passes import Request, run_pass
from tests.cli.fakes import LOOK_ONLY, FakeSource, World, commit_id, desired


def in_force() -> World:
    """`one` is in force and was put there by this reconciler; the replica on b has ended."""
    world = World()
    world.source.push("one", desired("one"))
    world.run_ready(desired("one"))
    run_pass(world.edges, Request())
    ended = replace(
        world.pool.answers["b"].shards[0],
        phase=Phase.ENDED,
        alive=False,
        supervised=False,
        exit=ShardExit(ExitKind.SIGNAL, signal="KILL", age_s=100.0),
    )
    world.pool.answers["b"] = replace(world.pool.answers["b"], shards=(ended,))
    world.applied.clear()
    return world


def test_under_a_branch_that_is_gone_repairs_go_on_and_the_error_is_told() -> None:
    w = in_force()
    w.source.no_head = True
    report = run_pass(w.edges, Request())
    (start,) = [s for s in w.applied[0].steps if isinstance(s, StartStep)]
    assert start.replica == "chat-1"
    assert (report.exit_code, report.revisions.head) == (Exit.ERROR, "")
    assert report.revisions.in_force == commit_id("one")
    assert report.head_error is not None
    assert "names no commit" in report.head_error.message
    assert "repairs go on" in report.notes[0]


def test_under_a_branch_that_is_gone_nothing_voluntary_is_done() -> None:
    w = in_force()
    w.source.push("two", desired("two", args=("--context", "1")))
    w.in_force(commit_id("two"))
    w.run_ready(desired("one"))
    w.source.no_head = True
    report = run_pass(w.edges, Request())
    assert report.plan is not None
    assert [p.steps for p in w.applied] == []
    assert {c.verdict for c in report.plan.changes} == {"stale"}


def test_without_a_note_of_what_was_in_force_nothing_is_asked_and_nothing_done() -> None:
    w = in_force()
    w.source.no_head = True
    w.source.in_force.clear()
    w.pool.looks.clear()
    report = run_pass(w.edges, Request())
    assert (report.exit_code, report.plan, w.applied, w.pool.looks) == (Exit.ERROR, None, [], [])
    assert "no revision tells which nodes there are" in report.notes[0]


def test_where_the_revision_in_force_is_lost_from_the_repo_nothing_is_done() -> None:
    w = in_force()
    w.source.no_head = True
    w.in_force(commit_id("elsewhere"))
    report = run_pass(w.edges, Request())
    assert (report.exit_code, report.plan, w.applied) == (Exit.ERROR, None, [])
    assert "cannot be read: nothing is done" in report.notes[0]
    assert {n.node for n in report.nodes} == {"a", "b", "c"}


def test_a_slip_in_the_ref_is_not_resolved_to_one_fleet_of_several() -> None:
    w = in_force()
    other = desired("other")
    w.source.push("other", replace(other, fleet=replace(other.fleet, id="another-fleet")))
    w.source.in_force = [Revision(commit_id("one")), Revision(commit_id("other"))]
    w.source.no_head = True
    w.pool.looks.clear()
    assert run_pass(w.edges, Request()).plan is None
    assert w.pool.looks == []


def test_what_only_looks_and_what_was_not_put_in_force_is_not_noted() -> None:
    w = World()
    w.source.push("one", desired("one"))
    run_pass(w.edges, LOOK_ONLY)
    assert w.source.in_force == []
    w.in_force(commit_id("one"), owner="other@host", left=40.0)
    w.source.push("two", desired("two"))
    run_pass(w.edges, Request())
    assert w.source.in_force == []


def test_the_note_is_not_moved_by_a_pass_that_only_repairs() -> None:
    w = in_force()
    w.source.push("bad", None)
    run_pass(w.edges, Request())
    assert [r.commit for r in w.source.in_force] == [commit_id("one")]


@dataclass
class Damaged(FakeSource):
    """A mirror in which nothing but what is named can be read, until it is renewed."""

    readable: set[str] = field(default_factory=set)
    renewable: bool = False
    renewed: int = 0

    def load(self, revision: Revision) -> Desired:
        if revision.commit not in self.readable:
            raise DamagedRepo(revision.commit, "git cannot read it: object not found")
        return super().load(revision)

    def ancestors(self, commit: str) -> Iterator[Revision]:
        raise DamagedRepo(commit, "git cannot read it: object not found")

    def renew(self) -> bool:
        self.renewed += 1
        if not self.renewable:
            raise GitError("origin", "timed out")
        self.readable = {commit_id(name) for name, _ in self.history}
        return True


def damaged(world: World, *readable: str) -> Damaged:
    old = world.source
    made = Damaged(old.history, in_force=old.in_force, readable={commit_id(n) for n in readable})
    world.source = made
    return made


def test_a_damaged_mirror_is_fetched_anew_within_the_pass() -> None:
    w = in_force()
    source = damaged(w)
    source.renewable = True
    source.push("two", desired("two"))
    head = read_head(source, "main")
    assert (head.error, source.renewed) == (None, 1)
    assert head.revision is not None
    assert head.revision.commit == commit_id("two")


def test_a_mirror_that_stays_damaged_is_told_once_a_pass_and_repairs_go_on() -> None:
    w = in_force()
    w.source.push("two", desired("two"))
    source = damaged(w, "one")
    report = run_pass(w.edges, Request())
    assert source.renewed == 1
    assert report.head_error is not None
    assert "to fetch it anew failed: origin: timed out" in report.head_error.message
    assert [s.replica for s in w.applied[0].steps if isinstance(s, StartStep)] == ["chat-1"]


def test_a_head_whose_past_cannot_be_read_only_repairs() -> None:
    """Whether it takes something back cannot be told."""
    w = in_force()
    w.source.push("two", desired("two", args=("--context", "1")))
    damaged(w, "one", "two")
    report = run_pass(w.edges, Request())
    assert report.head_error is not None
    assert report.revisions.in_force == commit_id("one")
    assert [s.replica for s in w.applied[0].steps if isinstance(s, StartStep)] == ["chat-1"]
