"""Where signatures are asked for: what nobody vouches for is neither acted on nor looked by."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from reconciler.core.changes import Reason, StartStep
from reconciler.core.model import Desired, Node
from reconciler.core.observed import Lease
from reconciler.errors import Exit, GitError
from reconciler.fleet.checked import Checked
from reconciler.loop.passes import Request, run_pass
from reconciler.loop.seams import Edges
from reconciler.report.plan_text import plan_text
from tests.cli.fakes import FLEET, LOOK_ONLY, NODES, World, commit_id, desired, node
from tests.cli.test_heads import in_force

GOOD = Checked(True, True, "key 1", "ada")
ENDED = Checked(True, False, "key 1", "ada", "its key has expired since")
BAD = Checked(False, False, "key 9", "", "its key is not among the given keys")


@dataclass
class Signers:
    """Good is what is named."""

    by_commit: dict[str, Checked] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def check(self, raw: bytes) -> Checked:
        self.asked.append(raw.decode())
        return self.by_commit.get(raw.decode(), BAD)


def edges(world: World, **checked: Checked) -> Edges:
    found = {commit_id(name): one for name, one in checked.items()}
    return replace(world.edges, signers=Signers(found))


def starts(world: World) -> list[str]:
    return [s.replica for p in world.applied for s in p.steps if isinstance(s, StartStep)]


def test_a_head_that_an_allowed_key_signed_is_acted_on() -> None:
    w = World()
    w.source.push("one", desired("one"))
    report = run_pass(edges(w, one=GOOD), Request())
    assert (report.exit_code, starts(w)) == (Exit.OK, ["chat-0", "chat-1"])


def test_of_a_head_that_is_not_verified_nothing_is_done_and_repairs_go_on() -> None:
    w = in_force()
    w.source.push("two", desired("two", args=("--context", "1"), replicas=5))
    report = run_pass(edges(w, one=GOOD), Request())
    assert starts(w) == ["chat-1"]
    assert report.exit_code == Exit.ERROR
    assert report.head_error is not None
    assert report.head_error.reason == "SignatureInvalid"
    assert "signed by key 9" in report.head_error.message
    assert commit_id("two")[:10] in report.head_error.revision
    assert report.revisions.in_force == commit_id("one")
    assert report.plan is not None
    assert {c.waits_for for c in report.plan.changes if c.waits} <= {Reason.SIGNATURE_INVALID}
    text = plan_text(report.plan)
    assert f"sha1:{commit_id('one')[:10]}: " in text.splitlines()[0]
    assert f"@sha1:{commit_id('two')[:10]} is refused (SignatureInvalid): only repairs" in text


def test_the_same_after_a_restart_on_another_machine_by_the_signature_of_the_one_in_force() -> None:
    w = in_force()
    w.source.push("two", desired("two"))
    w.source.in_force.clear()
    assert run_pass(edges(w, one=ENDED), Request()).revisions.in_force == commit_id("one")
    assert starts(w) == ["chat-1"]


def test_a_revision_that_the_nodes_name_and_nobody_signed_is_not_gone_on_with() -> None:
    """A node that lies, and a branch that anybody may push, must not choose what runs."""
    w = in_force()
    w.source.push("evil", desired("evil", replicas=7))
    w.source.push("two", desired("two"))
    w.in_force(commit_id("evil"), "c")
    report = run_pass(edges(w, one=GOOD), Request())
    assert report.revisions.in_force == commit_id("one")
    assert starts(w) == ["chat-1"]
    assert "is not gone on with" in report.notes[0]

    w.applied.clear()
    w.in_force(commit_id("evil"))
    report = run_pass(edges(w, one=GOOD), Request())
    assert (report.plan, w.applied, report.exit_code) == (None, [], Exit.ERROR)


def test_a_signed_head_that_does_not_validate_vouches_for_what_was_before_it() -> None:
    """Signatures are new here: what is in force was made before them."""
    w = in_force()
    w.source.in_force.clear()
    w.source.push("bad", None)
    w.source.inventories[commit_id("bad")] = desired("bad")
    report = run_pass(edges(w, bad=GOOD), Request())
    assert report.head_error is not None
    assert report.head_error.reason == "SchemaFailed"
    assert (report.revisions.in_force, starts(w)) == (commit_id("one"), ["chat-1"])


def test_nothing_unsigned_says_where_to_look() -> None:
    w = in_force()
    trap: Node = node("trap", 66)
    evil = replace(desired("two"), nodes={**NODES, "trap": trap})
    w.source.push("two", evil)
    w.source.push("three", None)
    w.source.inventories[commit_id("three")] = replace(evil, revision=evil.revision)
    w.pool.looks.clear()
    run_pass(edges(w, one=GOOD), Request())
    assert w.pool.looks
    assert all("trap" not in names for names in w.pool.looks)


def test_where_nothing_was_ever_signed_nothing_is_asked() -> None:
    w = World()
    w.source.push("one", desired("one"))
    report = run_pass(edges(w), Request())
    assert (report.plan, w.pool.looks, w.applied) == (None, [], [])
    assert report.head_error is not None
    assert report.head_error.reason == "SignatureInvalid"


def test_a_key_that_ends_takes_nothing_back_that_is_in_force() -> None:
    w = in_force()
    report = run_pass(edges(w, one=ENDED), Request())
    assert (report.head_error, starts(w)) == (None, ["chat-1"])


def test_a_key_that_has_ended_puts_nothing_new_in_force() -> None:
    w = in_force()
    w.source.push("two", desired("two", args=("--context", "1"), replicas=5))
    report = run_pass(edges(w, one=GOOD, two=ENDED), Request())
    assert report.head_error is not None
    assert "has expired since" in report.head_error.message
    assert starts(w) == ["chat-1"]
    assert report.revisions.in_force == commit_id("one")


def test_a_key_that_is_taken_back_costs_no_repair_of_what_it_put_in_force() -> None:
    w = in_force()
    report = run_pass(edges(w), Request())
    assert report.head_error is not None
    assert (report.revisions.in_force, starts(w)) == (commit_id("one"), ["chat-1"])


def test_an_unverified_head_is_checked_once_a_pass() -> None:
    w = in_force()
    w.source.push("two", desired("two"))
    made = edges(w, one=GOOD)
    run_pass(made, Request())
    assert isinstance(made.signers, Signers)
    assert made.signers.asked.count(commit_id("two")) == 1


def test_what_is_not_committed_can_be_planned_and_not_acted_on() -> None:
    w = in_force()
    looked = run_pass(edges(w), replace(LOOK_ONLY, worktree=True))
    assert (looked.head_error, looked.exit_code) == (None, Exit.OK)
    assert looked.plan is not None
    (warning,) = looked.plan.warnings
    assert warning.startswith(f"acting on {commit_id('one')[:10]} would be refused")
    assert "its key is not among the given keys" in warning
    good = run_pass(edges(w, one=GOOD), replace(LOOK_ONLY, worktree=True))
    assert good.plan is not None
    assert good.plan.warnings == ()
    report = run_pass(edges(w, one=GOOD), Request(worktree=True))
    assert report.head_error is not None
    assert "signed by nobody" in report.head_error.message


# --- `history: signed` ------------------------------------------------------------------------


def signed(name: str) -> object:
    state = desired(name, args=("--context", "1"))
    return replace(state, fleet=replace(state.fleet, history="signed"))


def test_a_fleet_that_asks_for_signatures_is_not_acted_on_without_keys() -> None:
    w = in_force()
    w.source.push("two", signed("two"))  # type: ignore[arg-type]
    report = run_pass(w.edges, Request())
    assert report.head_error is not None
    assert report.head_error.reason == "SignatureInvalid"
    assert "RECONCILE_ALLOWED_SIGNERS" in report.head_error.message
    assert starts(w) == ["chat-1"]
    assert run_pass(w.edges, LOOK_ONLY).head_error is None, "it can be looked at"


def test_a_commit_does_not_lift_it_where_it_is_in_force() -> None:
    w = in_force()
    w.source.push("two", signed("two"))  # type: ignore[arg-type]
    w.in_force(commit_id("two"))
    w.source.push("three", desired("three", replicas=5))
    report = run_pass(w.edges, Request())
    assert report.head_error is not None
    assert report.revisions.in_force == commit_id("two")
    assert starts(w) == ["chat-1"]


# --- Nodes that lie ---------------------------------------------------------------------------


def with_trap(name: str) -> Desired:
    return replace(desired(name, replicas=7), nodes={**NODES, "trap": node("trap", 66)})


def test_a_node_that_lies_while_the_remote_is_down_does_not_choose_what_runs() -> None:
    """Who owns the forge can end the fetches, too."""
    w = in_force()
    w.source.gone[commit_id("evil")] = with_trap("evil")
    w.in_force(commit_id("evil"), "c")
    w.source.fetch_error = GitError("origin", "timed out")
    w.pool.looks.clear()
    report = run_pass(edges(w, one=GOOD), Request())
    assert report.revisions.in_force == commit_id("one")
    assert starts(w) == ["chat-1"]
    assert all("trap" not in names for names in w.pool.looks)


def test_a_node_that_lies_of_the_revision_in_force_or_of_what_departed_sends_us_nowhere() -> None:
    w = in_force()
    w.source.gone[commit_id("evil")] = with_trap("evil")
    for name in w.pool.answers:
        lease = Lease(FLEET, "", 3, 0.0, revision=commit_id("evil"))
        lease = replace(lease, departed={"trap": commit_id("evil")})
        w.pool.answers[name] = replace(w.pool.answers[name], lease=lease)
    w.pool.looks.clear()
    report = run_pass(edges(w, one=GOOD), Request())
    assert report.revisions.in_force == commit_id("one"), "head is followed"
    assert all("trap" not in names for names in w.pool.looks)
