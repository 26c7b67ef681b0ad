"""`reconcile simulate`: the command, its outputs and exit codes, over fleet repos without nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciler.cli.simulate import exit_code
from reconciler.core.changes import Reason
from reconciler.core.codec import to_json
from reconciler.core.model import Revision
from reconciler.errors import Exit
from reconciler.fleet.source import Source
from reconciler.loop.offline import AssumedNodes
from reconciler.nodes.loopback import LoopbackFleet
from reconciler.simulate.forecast import Forecast, Outcome
from reconciler.simulate.history import Held
from tests.cli.conftest import Cli, FleetRepo

PROFILE = "catalog/sim.yaml"


def saved(example: FleetRepo, folder: Path) -> Path:
    """An observation of the example's nodes, all empty, as `reconcile observe` prints it."""
    source = Source.open(str(example.folder), cache_dir=folder / "git", timeout_s=10.0)
    observed = AssumedNodes().look(source.load(source.resolve(None)))
    source.close()
    file = folder / "observed.json"
    file.write_text(json.dumps({"format_version": "1.0", "observed": to_json(observed)}))
    return file


def test_it_says_the_steps_how_long_and_the_lowest_capacity(cli: Cli, example: FleetRepo) -> None:
    ran = cli("simulate", "--offline", repo=example)
    assert ran.code == Exit.OK
    lines = ran.out.splitlines()
    assert lines[0].endswith(": converged after 1 s: 5 starts")
    assert "  0:00:00  + start    chat-0 on sim-a (2 GPUs): nothing of it runs" in lines
    assert "  0:00:01    ready    chat-0 on sim-a (2 GPUs)" in lines
    assert "  chat (sim-small): 0 of 4 ready now, lowest 0, 4 in the end" in lines


def test_a_saved_observation_gives_the_same_as_empty_nodes(
    cli: Cli, example: FleetRepo, tmp_path: Path
) -> None:
    file = saved(example, tmp_path)
    ran = cli("simulate", "--observed", str(file), repo=example)
    assert ran.code == Exit.OK
    lines, offline = ran.out.splitlines(), cli("simulate", "--offline", repo=example).out
    assert lines[1].startswith("(saved: planned against observed.json")
    assert [lines[0], *lines[2:]] == [
        line for line in offline.splitlines() if not line.startswith("(offline:")
    ]


def test_json_has_every_step_and_names_that_stay(cli: Cli, example: FleetRepo) -> None:
    data = cli("simulate", "--offline", "--output", "json", repo=example).json
    assert set(data) == {
        "format_version", "revision", "observed_at", "basis", "outcome", "took_s", "steps",
        "capacity", "held", "notes",
    }  # fmt: skip
    assert (data["outcome"], data["took_s"]) == ("converged", 1.0)
    assert [s["what"] for s in data["steps"]].count("start") == 5
    first = data["steps"][0]
    assert set(first) == {"at_s", "what", "replica", "placement", "seats", "reason"}
    assert set(data["capacity"][0]) == {
        "placement", "model", "wanted", "before", "lowest", "lowest_at_s", "after",
    }  # fmt: skip


def test_markdown_is_a_table_and_folds_the_steps(cli: Cli, example: FleetRepo) -> None:
    out = cli("simulate", "--offline", "--output", "markdown", repo=example).out
    assert out.startswith("### Forecast: converged after 1 s: 5 starts\n")
    assert "| chat | 4 | 0 | 0 |  | 4 |" in out
    assert "<details><summary>Steps</summary>" in out


def test_from_its_base_a_branch_shows_its_own_rollout_and_needs_no_node(
    cli: Cli, example: FleetRepo
) -> None:
    example.replace(PROFILE, "4096", "8192")
    ran = cli("simulate", "--base", "HEAD", repo=example)
    assert ran.code == Exit.OK
    lines = ran.out.splitlines()
    assert lines[0].endswith(": 4 starts, 4 stops")
    assert lines[1].startswith("(planned as if HEAD@sha1:")
    assert "goes first (canary): the profile was edited" in ran.out
    assert "  chat (sim-small): 4 of 4 ready now, lowest 4, 4 in the end" in lines
    assert "large" not in "".join(line for line in lines if " start " in line)
    data = cli("simulate", "--base", "HEAD", "-o", "json", repo=example).json
    assert data["basis"].startswith("planned as if HEAD@sha1:")
    assert {s["replica"] for s in data["steps"]} == {f"chat-{n}" for n in range(4)}
    markdown = cli("simulate", "--base", "HEAD", "-o", "markdown", repo=example).out
    assert "_planned as if HEAD\\@sha1:" in markdown


def test_a_base_compared_with_itself_has_nothing_to_do(cli: Cli, example: FleetRepo) -> None:
    ran = cli("simulate", "--base", "HEAD", repo=example)
    assert ran.code == Exit.OK
    assert "converged already: nothing to do" in ran.out


def test_a_branch_whose_profile_would_fail_shows_what_that_costs(
    cli: Cli, example: FleetRepo
) -> None:
    example.replace(PROFILE, "4096", "8192")
    ran = cli("simulate", "--base", "HEAD", "--failing", "sim-small", repo=example)
    assert ran.code == Exit.PARTIAL
    assert "placement chat: ProfileRejected from 0:02:30 to the end" in ran.out
    assert "lowest 4, 4 in the end" in ran.out


def test_what_has_no_place_ends_with_3_and_is_told(cli: Cli, example: FleetRepo) -> None:
    example.replace("placements/sim.yaml", "replicas: 4", "replicas: 40")
    ran = cli("simulate", "--offline", repo=example)
    assert ran.code == Exit.PARTIAL
    assert "not converged" in ran.out
    assert "NoCapacity to the end: 0 of 3 nodes fit" in ran.out


def test_a_profile_that_is_taken_to_fail_is_told_as_rejected(cli: Cli, example: FleetRepo) -> None:
    ran = cli("simulate", "--offline", "--failing", "sim-small", repo=example)
    assert ran.code == Exit.PARTIAL
    assert "assumed to fail" in ran.out
    assert "ProfileRejected" in ran.out


def test_an_unknown_profile_is_refused_with_the_known_ones(cli: Cli, example: FleetRepo) -> None:
    ran = cli("simulate", "--offline", "--failing", "sim-smal", repo=example)
    assert ran.code == Exit.ERROR
    assert "sim-smal" in ran.err
    assert "sim-small" in ran.err


def test_a_revision_that_does_not_validate_is_no_forecast(cli: Cli, example: FleetRepo) -> None:
    example.write("placements/bad.yaml", {"kind": "Placement", "name": "x", "profile": "none"})
    ran = cli("simulate", "--offline", repo=example)
    assert (ran.code, ran.out) == (Exit.ERROR, "")
    assert "placements/bad.yaml" in ran.err


@pytest.mark.parametrize("other", [["--offline"], ["--base", "HEAD"]])
def test_an_observation_excludes_what_would_begin_elsewhere(
    cli: Cli, example: FleetRepo, tmp_path: Path, other: list[str]
) -> None:
    ran = cli("simulate", *other, "--observed", str(saved(example, tmp_path)), repo=example)
    assert ran.code == Exit.ERROR
    assert "excludes --offline and --base" in ran.err


@pytest.mark.parametrize("ref", ["HEAD", "main"])
def test_ref_names_the_commit_and_leaves_the_working_tree_out(
    cli: Cli, example: FleetRepo, ref: str
) -> None:
    example.replace("placements/sim.yaml", "replicas: 4", "replicas: 1")
    assert "5 starts" in cli("simulate", "--offline", "--ref", ref, repo=example).out
    assert "2 starts" in cli("simulate", "--offline", repo=example).out


@pytest.mark.parametrize(
    ("outcome", "reasons", "code"),
    [
        (Outcome.CONVERGED, [], Exit.OK),
        (Outcome.HELD, [Reason.NO_CAPACITY], Exit.PARTIAL),
        (Outcome.UNFINISHED, [], Exit.PARTIAL),
        (Outcome.HELD, [Reason.NO_CAPACITY, Reason.FROZEN], Exit.BLOCKED),
        (Outcome.HELD, [Reason.BLAST_RADIUS], Exit.BLOCKED),
    ],
)
def test_the_exit_code_says_whether_merging_ends_well(
    outcome: Outcome, reasons: list[Reason], code: Exit
) -> None:
    held = tuple(Held("replica chat-0", reason, "because") for reason in reasons)
    over = Held("replica chat-1", Reason.FROZEN, "was lifted", until_s=60.0)
    made = Forecast(Revision("c0ffee"), outcome, 0.0, held=(*held, over))
    assert exit_code(made) is code


@pytest.mark.e2e
def test_live_nodes_are_played_forward_and_left_alone(
    cli: Cli, live: tuple[FleetRepo, LoopbackFleet]
) -> None:
    repo, _ = live
    assert cli("--yes", "--wait", "--timeout", "60s", repo=repo).code == Exit.OK
    before = cli("status", "--output", "json", repo=repo).json["placements"]
    repo.replace(PROFILE, "4096", "8192")
    ran = cli("simulate", repo=repo)
    assert ran.code == Exit.OK
    assert ": 4 starts, 4 stops" in ran.out.splitlines()[0]
    assert "  chat (sim-small): 4 of 4 ready now, lowest 4, 4 in the end" in ran.out.splitlines()
    after = cli("status", "--ref", "HEAD", "--output", "json", repo=repo).json["placements"]
    launches = [[r["launch"] for p in side for r in p["replicas"]] for side in (before, after)]
    assert launches[0] == launches[1]
