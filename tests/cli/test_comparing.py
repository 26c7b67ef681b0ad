"""`--base REF`: a pull request's plan shows what its edit changes, from real commits, no node."""

from __future__ import annotations

from pathlib import Path

import pygit2
import pytest

from reconciler.core.diff import diff
from reconciler.core.model import Desired
from reconciler.core.verdict import Verdict
from reconciler.errors import Exit
from reconciler.fleet.source import Source
from reconciler.loop.comparing import Base, BaseNodes
from tests.cli.conftest import Cli, FleetRepo
from tests.cli.fakes import desired, node

PROFILE, PLACEMENTS = "catalog/sim.yaml", "placements/sim.yaml"
LONGER = ("--context, 4096", "--context, 8192")


def branch(repo: FleetRepo, name: str) -> None:
    """Go on from here on a branch called `name`."""
    git = pygit2.Repository(str(repo.folder))
    git.branches.local.create(name, git[git.head.target].peel(pygit2.Commit))
    git.set_head(f"refs/heads/{name}")


def switch(repo: FleetRepo, name: str) -> None:
    pygit2.Repository(str(repo.folder)).checkout(f"refs/heads/{name}")


def changed(ran: object) -> list[tuple[str, str]]:
    return [(c["address"], c["symbol"]) for c in ran.json["changes"]]  # type: ignore[attr-defined]


def of(state: Desired) -> BaseNodes:
    return BaseNodes(Base(state.revision, state))


# --- the stand-in -----------------------------------------------------------------------------


def test_a_base_compared_with_itself_is_matching_and_ready() -> None:
    state = desired("one", replicas=3)
    judged = diff(state, of(state).look(state))
    assert [(r.verdict, r.ready) for r in judged.replicas] == [(Verdict.MATCHING, True)] * 3


def test_an_edited_profile_reads_stale_with_its_field() -> None:
    judged = diff(desired("two", args=("--x",)), of(desired("one")).look(desired("two")))
    assert {r.verdict for r in judged.replicas} == {Verdict.STALE}
    assert judged.replicas[0].launches[0].changes


def test_a_node_that_the_base_does_not_have_is_empty() -> None:
    base = desired("one")
    head = desired("two")
    head = type(head)(**{**vars(head), "nodes": {**head.nodes, "d": node("d", 9)}})
    answer = of(base).look(head).nodes["d"].answer
    assert answer is not None
    assert (answer.shards, answer.lease) == ((), None)


def test_without_a_base_that_validates_nothing_runs() -> None:
    state = desired("one")
    nodes = BaseNodes(Base(state.revision, None))
    assert "as if nothing ran" in nodes.basis
    assert all(not look.answer.shards for look in nodes.look(state).nodes.values() if look.answer)


# --- the command ------------------------------------------------------------------------------


def test_only_what_the_branch_edits_is_in_the_plan(cli: Cli, example: FleetRepo) -> None:
    branch(example, "edit")
    example.replace(PROFILE, *LONGER)
    example.commit("a longer context")
    ran = cli("--dry-run", "--offline", "--base", "main", repo=example)
    assert ran.code == Exit.OK
    assert "4 to replace; 1 unchanged" in ran.out
    assert "profile.args[3]: 4096 → 8192" in ran.out
    assert "(planned as if main@sha1:" in ran.out
    assert "large-0" not in ran.out


def test_markdown_says_what_it_was_planned_against(cli: Cli, example: FleetRepo) -> None:
    out = cli("--dry-run", "--base", "main", "-o", "markdown", repo=example).out
    assert "### Plan: nothing to do; 5 unchanged" in out
    assert "_planned as if main\\@sha1:" in out
    offline = cli("--dry-run", "--offline", "-o", "markdown", repo=example).out
    assert "_offline: planned as if every node were empty; what runs was not looked at_" in offline


def test_what_main_got_meanwhile_is_not_the_branch_s_edit(cli: Cli, example: FleetRepo) -> None:
    branch(example, "edit")
    example.replace(PLACEMENTS, "replicas: 4", "replicas: 5")
    example.commit("one more")
    switch(example, "main")
    example.replace(PROFILE, *LONGER)
    example.commit("a longer context")
    switch(example, "edit")
    ran = cli("--dry-run", "--base", "main", "-o", "json", repo=example)
    assert changed(ran) == [("chat-4", "+")]


def test_a_placement_taken_out_is_held_by_the_guard_as_it_will_be(
    cli: Cli, example: FleetRepo
) -> None:
    example.replace(PLACEMENTS, "replicas: 4", "replicas: 1")
    ran = cli("--dry-run", "--base", "HEAD", repo=example)
    assert ran.code == Exit.BLOCKED
    assert "reconcile approve" in ran.out


def test_a_node_taken_out_is_missed(cli: Cli, example: FleetRepo) -> None:
    nodes = example.folder / "nodes/sim.yaml"
    kept = [d for d in nodes.read_text().split("---\n") if "name: sim-c" not in d]
    nodes.write_text("---\n".join(kept))
    ran = cli("--dry-run", "--base", "HEAD", "-o", "json", repo=example)
    assert any("sim-c" in h["subject"] for h in ran.json["holds"]), ran.out


def test_a_base_that_does_not_validate_is_the_last_one_before_that_did(
    cli: Cli, example: FleetRepo
) -> None:
    text = (example.folder / PLACEMENTS).read_text()
    example.replace(PLACEMENTS, "replicas: 4", "replicas: four")
    example.commit("a slip")
    example.folder.joinpath(PLACEMENTS).write_text(text.replace("replicas: 4", "replicas: 5"))
    ran = cli("--dry-run", "--base", "HEAD", repo=example)
    assert ran.code == Exit.OK
    assert "the last before HEAD@sha1:" in ran.out
    assert "1 to start; 5 unchanged" in ran.out


def test_an_unknown_base_names_the_branches(cli: Cli, example: FleetRepo) -> None:
    ran = cli("--dry-run", "--base", "nosuch", repo=example)
    assert (ran.code, ran.out) == (Exit.ERROR, "")
    assert "ref 'nosuch': it names no commit; there are: main" in ran.err


@pytest.mark.parametrize(
    "also", [["--base", "main"], ["--base", "main", "--dry-run", "--observed"]]
)
def test_a_base_is_for_dry_runs_and_excludes_an_observation(
    cli: Cli, example: FleetRepo, also: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "o.json"
    file.write_text("{}")
    args = [*also, str(file)] if also[-1] == "--observed" else also
    assert cli(*args, repo=example).code == Exit.ERROR


def test_an_empty_object_is_no_observation(cli: Cli, example: FleetRepo, tmp_path: Path) -> None:
    file = tmp_path / "o.json"
    file.write_text("{}")
    ran = cli("--dry-run", "--observed", str(file), repo=example)
    assert (ran.code, ran.out) == (Exit.ERROR, "")
    assert "is no observation: it has no `nodes`" in ran.err


def test_where_branches_part(example: FleetRepo, tmp_path: Path) -> None:
    fork = example.commit("fork")
    branch(example, "edit")
    example.replace(PLACEMENTS, "replicas: 4", "replicas: 5")
    mine = example.commit("mine")
    source = Source.open(str(example.folder), cache_dir=tmp_path / "git", timeout_s=10.0)
    assert source.fork_point(fork, mine) == fork
    assert source.fork_point(mine, mine) == mine
