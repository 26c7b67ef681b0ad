"""Commands that need no node: options, messages and exit codes, in this process."""

from __future__ import annotations

import errno
import json
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pygit2
import pytest

import reconciler
from reconciler.cli import app, main
from reconciler.cli.group import COMMANDS, LateGroup
from reconciler.cli.options import seconds
from reconciler.cli.owner import claim
from reconciler.errors import SettingsError
from reconciler.settings import VARIABLES, Settings, child_environment
from tests.cli.conftest import Cli, FleetRepo

ROOT = Path(__file__).resolve().parents[2]


# --- The program ------------------------------------------------------------------------------


def test_the_version_is_pyprojects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == reconciler.__version__


def test_the_version_takes_at_most_40_ms_of_cpu() -> None:
    """The least of five: other programs of this machine add to the rest."""
    costs = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "reconciler.cli", "--version"], check=True, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(costs) <= 0.040


def test_help_imports_no_heavy_library() -> None:
    code = (
        "import sys; from reconciler.cli import main; main(['--help']);"
        "print([m for m in ('pygit2','paramiko','jsonschema','yaml','deepdiff','rich','structlog',"
        "'prometheus_client') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stderr.strip() == "[]"
    assert all(name in done.stdout for name in COMMANDS)


def test_help_names_every_variable_that_is_read(cli: Cli) -> None:
    shown = " ".join(cli("--help").out.split())
    for name, text in VARIABLES.items():
        assert f"{name} {text}" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(cli: Cli, name: str) -> None:
    ran = cli(name, "--help")
    assert ran.code == 0
    assert "Usage: reconcile" in ran.out


def test_a_usage_error_ends_with_1_because_2_means_changes(cli: Cli) -> None:
    ran = cli("--no-such-option")
    assert (ran.code, ran.out) == (1, "")
    assert "--no-such-option" in ran.err


@pytest.mark.parametrize(
    ("args", "option", "give"),
    [
        (("--repo", "", "validate"), "--repo", "PATH|URL"),
        (("validate", "--repo", ""), "--repo", "PATH|URL"),
        (("--repo", " ", "--dry-run", "--offline"), "--repo", "PATH|URL"),
        (("validate", "--ref", ""), "--ref", "REF"),
        (("--dry-run", "--base", ""), "--base", "REF"),
        (("--endpoints", ""), "--endpoints", "a folder"),
        (("daemon", "--secrets", ""), "--secrets", "a folder"),
        (("init", ""), "[FOLDER]", "a folder"),
    ],
)
def test_an_empty_option_is_told_and_never_read_as_the_default(
    cli: Cli, args: tuple[str, ...], option: str, give: str
) -> None:
    ran = cli(*args)
    assert ran.code == 1
    assert f"Invalid value for '{option}': it is empty: give {give}, or leave" in ran.err
    assert ran.out == ""


def test_a_misspelt_command_is_named_with_the_nearest_one(cli: Cli) -> None:
    ran = cli("statsu")
    assert ran.code == 1
    assert "did you mean 'status'?" in ran.err


def test_an_error_is_one_line_without_a_trace(cli: Cli, tmp_path: Path) -> None:
    ran = cli("--repo", str(tmp_path / "nowhere"), "status")
    assert ran.code == 1
    assert ran.err.startswith("Error: repo ")
    assert "Traceback" not in ran.err


def test_a_bug_shows_its_trace_and_how_to_report_it(capsys: pytest.CaptureFixture[str]) -> None:
    @click.group(cls=LateGroup, invoke_without_command=True)
    def broken() -> None:
        raise KeyError("planted")

    assert app.run([], broken) == 1
    said = capsys.readouterr().err
    assert "KeyError: 'planted'" in said
    assert "Please report it" in said


def test_a_full_disk_under_the_output_is_no_bug(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.group(cls=LateGroup, invoke_without_command=True)
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert app.run([], full) == 1
    said = capsys.readouterr().err
    assert said == "Error: what is to be shown cannot be written: No space left on device\n"


def test_offline_only_plans(cli: Cli, example: FleetRepo) -> None:
    ran = cli("--offline", repo=example)
    assert ran.code == 1
    assert "--dry-run" in ran.err


# --- Dry runs ---------------------------------------------------------------------------------


def test_an_offline_dry_run_shows_where_everything_would_run(cli: Cli, example: FleetRepo) -> None:
    ran = cli("--dry-run", "--offline", repo=example)
    assert ran.code == 0
    assert "chat-0: start" in ran.out
    assert "sim-b (4 GPUs) + sim-c (4 GPUs)" in ran.out


def test_a_dry_run_with_changes_ends_with_2_where_that_is_asked_for(
    cli: Cli, example: FleetRepo
) -> None:
    assert cli("--dry-run", "--offline", "--detailed-exitcode", repo=example).code == 2


def test_an_offline_dry_run_gives_the_same_digest_twice(cli: Cli, example: FleetRepo) -> None:
    runs = [cli("--dry-run", "--offline", "-o", "json", repo=example).json for _ in range(2)]
    assert runs[0]["plan_digest"] == runs[1]["plan_digest"]


def test_a_dry_run_reads_the_working_tree_and_says_so(cli: Cli, example: FleetRepo) -> None:
    example.replace("placements/sim.yaml", "replicas: 4", "replicas: 5")
    ran = cli("--dry-run", "--offline", repo=example)
    assert "with uncommitted changes" in ran.out
    assert "chat-4: start" in ran.out


def test_a_dry_run_of_a_ref_reads_the_commit(cli: Cli, example: FleetRepo) -> None:
    example.replace("placements/sim.yaml", "replicas: 4", "replicas: 5")
    ran = cli("--ref", "main", "--dry-run", "--offline", repo=example)
    assert "chat-4" not in ran.out


def test_what_cannot_fit_is_a_hold_that_counts_per_node(cli: Cli, example: FleetRepo) -> None:
    example.replace("placements/sim.yaml", "replicas: 4", "replicas: 40")
    ran = cli("--dry-run", "--offline", "--detailed-exitcode", "-o", "json", repo=example)
    holds = ran.json["holds"]
    assert {h["reason"] for h in holds} == {"NoCapacity"}
    assert set(holds[0]["nodes"]) == {"sim-a", "sim-b", "sim-c"}


def test_markdown_shows_the_command_line_of_what_would_start(cli: Cli, example: FleetRepo) -> None:
    ran = cli("--dry-run", "--offline", "-o", "markdown", repo=example)
    assert ran.out.startswith("### Plan: 5 to start")
    assert "--context 4096" in ran.out


def test_a_saved_observation_is_planned_against(
    cli: Cli, example: FleetRepo, tmp_path: Path
) -> None:
    saved = tmp_path / "observed.json"
    saved.write_text(json.dumps({"format_version": "1.0", "observed": {"owner": "", "nodes": {}}}))
    ran = cli(
        "--dry-run", "--observed", str(saved), "--detailed-exitcode", "-o", "json", repo=example
    )
    assert {h["reason"] for h in ran.json["holds"]} >= {"NodeUnreachable"}
    assert ran.code in (2, 3)


def test_a_file_that_is_no_observation_is_refused_by_name(
    cli: Cli, example: FleetRepo, tmp_path: Path
) -> None:
    saved = tmp_path / "observed.json"
    saved.write_text('{"nodes": []}')
    ran = cli("--dry-run", "--observed", str(saved), repo=example)
    assert ran.code == 1
    assert "is no observation" in ran.err


# --- validate, command, init ------------------------------------------------------------------


def test_the_example_validates(cli: Cli, example: FleetRepo) -> None:
    assert cli("validate", repo=example).code == 0


def test_all_findings_are_told_at_once_with_file_and_line(cli: Cli, example: FleetRepo) -> None:
    example.replace("placements/sim.yaml", "replicas: 4", "replicas: four")
    example.replace("placements/sim.yaml", "profile: sim-large", "profile: sim-lrage")
    ran = cli("validate", repo=example)
    assert ran.code == 1
    assert "placements/sim.yaml:5" in ran.out
    assert "did you mean 'sim-large'" in ran.out


def test_findings_as_github_annotations(cli: Cli, example: FleetRepo) -> None:
    example.replace("placements/sim.yaml", "replicas: 4", "replicas: four")
    ran = cli("validate", "-o", "github", repo=example)
    assert ran.out.startswith("::error file=placements/sim.yaml,line=5")


def test_github_gets_the_count_beside_the_annotations(cli: Cli, example: FleetRepo) -> None:
    example.replace("placements/sim.yaml", "replicas: 4", "replicas: four")
    ran = cli("validate", "-o", "github", repo=example)
    assert (ran.code, ran.err) == (1, "1 error in 1 file\n")
    assert all(line.startswith("::") for line in ran.out.splitlines())


def test_strict_makes_a_warning_end_with_1(cli: Cli, example: FleetRepo) -> None:
    models = [{"kind": "Model", "name": name, "served_names": ["one"]} for name in ("a", "b")]
    example.write("catalog/twice.yaml", *models)
    lax, strict = cli("validate", repo=example), cli("validate", "--strict", repo=example)
    assert "1 warning in 1 file" in lax.out
    assert (lax.code, strict.code) == (0, 1)
    assert strict.out == lax.out
    assert "--strict" in strict.err


def test_a_url_without_a_checkout_validates_at_any_ref(
    cli: Cli, example: FleetRepo, tmp_path: Path
) -> None:
    good = example.commit("good")
    example.replace("placements/sim.yaml", "replicas: 4", "replicas: four")
    example.commit("broken")
    repo = pygit2.Repository(str(example.folder))
    repo.create_reference("refs/tags/v1", good)
    bare = tmp_path / "bare.git"
    pygit2.clone_repository(str(example.folder), str(bare), bare=True)
    for location in (str(bare), f"file://{bare}", f"file://{example.folder}"):
        codes = {
            ref: cli("validate", "--repo", location, "--ref", ref).code for ref in ("v1", good)
        }
        assert codes == {"v1": 0, good: 0}, location
        head = cli("validate", "--repo", location)
        assert (head.code, "placements/sim.yaml:5" in head.out) == (1, True), location
    assert cli("validate", repo=example).code == 1
    assert cli("validate", "--ref", "v1", repo=example).code == 0


def test_a_head_without_a_commit_names_what_there_is(
    cli: Cli, example: FleetRepo, tmp_path: Path
) -> None:
    bare = tmp_path / "bare.git"
    pygit2.clone_repository(str(example.folder), str(bare), bare=True)
    pygit2.Repository(str(bare)).set_head("refs/heads/master")
    ran = cli("validate", "--repo", str(bare))
    assert ran.code == 1
    assert "there are main" in ran.err


def test_a_dry_run_of_an_invalid_tree_tells_the_findings_and_ends_with_1(
    cli: Cli, example: FleetRepo
) -> None:
    example.replace("placements/sim.yaml", "replicas: 4", "replicas: four")
    ran = cli("--dry-run", "--offline", repo=example)
    assert (ran.code, ran.out) == (1, "")
    assert "placements/sim.yaml:5" in ran.err


def test_command_shows_every_rank(cli: Cli, example: FleetRepo) -> None:
    ran = cli("command", "large", repo=example)
    assert ran.code == 0
    assert "rank 0 on sim-a" in ran.out
    assert "rank 1 on sim-b" in ran.out


def test_command_as_shell_is_one_text_that_can_be_pasted(cli: Cli, example: FleetRepo) -> None:
    ran = cli("command", "chat", "--shell", repo=example)
    assert "--context 4096" in ran.out


def test_command_of_an_unknown_name_lists_the_known_ones(cli: Cli, example: FleetRepo) -> None:
    ran = cli("command", "caht", repo=example)
    assert ran.code == 1
    assert "chat" in ran.err


def test_pasted_where_the_agent_is_not_the_text_stops_and_says_what_puts_it_there(
    cli: Cli, example: FleetRepo, tmp_path: Path
) -> None:
    text = cli("command", "chat", "--shell", repo=example).out
    env = {"PATH": "/usr/bin:/bin", "RECONCILE_ROOT": str(tmp_path / "none"), "HOME": "/"}
    run = subprocess.run(
        ["sh", "-c", text], env=env, capture_output=True, text=True, timeout=30, check=False
    )
    assert run.returncode != 0
    assert "reconcile doctor puts it on every node" in run.stderr
    assert "ls:" not in run.stderr
    assert "python" not in run.stderr, "nothing after it may run"


@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("hold", "HEAD."),
        ("logs", "HEAD."),
        ("daemon", "HEAD."),
        ("validate", "the working tree (HEAD where there is none)."),
        ("doctor", "the working tree (HEAD where there is none)."),
        ("", "HEAD (a dry run: the working tree)."),
    ],
)
def test_help_names_the_ref_that_a_command_takes_by_itself(
    cli: Cli, command: str, default: str
) -> None:
    said = " ".join(cli(*filter(None, [command]), "--help").out.split())
    assert f"Branch, tag or commit; default: {default}" in said


def test_a_document_of_the_working_tree_that_nobody_reads_is_told(
    cli: Cli, example: FleetRepo
) -> None:
    example.write("n9.yaml", {"kind": "Node", "name": "n9"})
    example.write("compose.yaml", {"services": {}})
    ran = cli("validate", repo=example)
    assert (ran.code, "n9.yaml: warning: it is not read, and holds a Node" in ran.out) == (0, True)
    assert "compose.yaml" not in ran.out


def test_init_makes_a_fleet_that_validates_with_an_id_of_its_own(cli: Cli, tmp_path: Path) -> None:
    ids = set()
    for name in ("one", "two"):
        assert cli("init", str(tmp_path / name)).code == 0
        assert cli("--repo", str(tmp_path / name), "validate", "--strict").code == 0
        text = (tmp_path / name / "fleet.yaml").read_text()
        ids.add(next(line for line in text.splitlines() if line.startswith("id: ")))
    assert len(ids) == 2


def test_init_writes_an_example_of_every_kind_that_validates_once_it_is_copied(
    cli: Cli, tmp_path: Path
) -> None:
    cli("init", str(tmp_path))
    examples = sorted(tmp_path.glob("*/*.yaml.example"))
    assert {path.parent.name for path in examples} == {"nodes", "catalog", "placements"}
    for path in examples:
        path.with_suffix("").write_text(path.read_text())
    ran = cli("--repo", str(tmp_path), "validate", "--strict")
    assert ran.code == 0, ran.out + ran.err


def test_editors_find_the_schema_from_every_file_that_init_writes(cli: Cli, tmp_path: Path) -> None:
    cli("init", str(tmp_path))
    files = [tmp_path / "fleet.yaml", *tmp_path.glob("*/*.yaml.example")]
    for path in files:
        first = path.read_text().splitlines()[0]
        assert first.startswith("# yaml-language-server: $schema=")
        schema = (path.parent / first.partition("=")[2]).resolve()
        for part in json.loads(schema.read_text())["allOf"]:
            assert (schema.parent / part["then"]["$ref"]).is_file()


@pytest.mark.parametrize("args", [("--name", "Foo!"), ("--name", "a" * 64)])
def test_init_takes_no_name_that_would_not_validate(
    cli: Cli, tmp_path: Path, args: tuple[str, ...]
) -> None:
    ran = cli("init", str(tmp_path / "f"), *args)
    assert (ran.code, "lower-case letters" in ran.err) == (1, True), ran.err
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("args", [("--node-name", "../x"), ("--pool", "A B")])
def test_a_nodes_names_are_checked_before_it_is_asked(
    cli: Cli, tmp_path: Path, args: tuple[str, ...]
) -> None:
    ran = cli("init", str(tmp_path / "f"), "--from-node", "127.0.0.1:1", *args)
    assert (ran.code, "lower-case letters" in ran.err) == (1, True), ran.err


def test_the_name_of_a_long_folder_is_cut(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 62 + "_y")
    assert cli("init", str(folder)).code == 0
    assert cli("--repo", str(folder), "validate").code == 0


def test_init_overwrites_nothing(cli: Cli, tmp_path: Path) -> None:
    cli("init", str(tmp_path))
    before = (tmp_path / "fleet.yaml").read_text()
    assert cli("init", str(tmp_path)).code == 1
    assert (tmp_path / "fleet.yaml").read_text() == before


# --- Options, settings, owner -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"), [("90", 90), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("2d", 172800)]
)
def test_durations(text: str, value: float) -> None:
    context = click.Context(click.Command("x"))
    assert seconds(context, click.Option(["--for"]), text) == value


@pytest.mark.parametrize(
    "text", ["", "2 h", "h", "-5", "1.5h", "2w", "367d", "99999999999d", "9" * 5000]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    context = click.Context(click.Command("x"))
    with pytest.raises(click.BadParameter):
        seconds(context, click.Option(["--for"]), text)


@pytest.mark.parametrize(
    "args",
    [
        ("daemon", "--interval", "0s"),
        ("daemon", "--interval", "0"),
        ("daemon", "--interval", "25h"),
        ("hold", "sim-a", "--reason", "x", "--for", "0s"),
    ],
)
def test_a_duration_out_of_bounds_is_refused_before_anything_is_done(
    cli: Cli, example: FleetRepo, args: tuple[str, ...]
) -> None:
    ran = cli(*args, repo=example)
    assert (ran.code, "write 1" in ran.err) == (1, True), ran.err


def test_settings_come_from_the_environment_that_is_given() -> None:
    found = Settings.read({"HOME": "/home/kim", "USER": "kim", "NO_COLOR": "1"})
    assert found.cache_dir == Path("/home/kim/.cache/reconcile")
    assert (found.user, found.color) == ("kim", False)


def test_a_relative_cache_folder_is_refused() -> None:
    with pytest.raises(SettingsError, match="RECONCILE_CACHE_DIR"):
        Settings.read({"HOME": "/", "USER": "kim", "RECONCILE_CACHE_DIR": "cache"})


def test_a_child_gets_our_environment_with_values_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME", "thing")
    found = child_environment(OTHER="x")
    assert (found["SOME"], found["OTHER"]) == ("thing", "x")


def settings(folder: Path) -> Settings:
    return Settings.read({"HOME": str(folder), "USER": "kim"})


def test_the_owner_is_the_same_after_a_restart(tmp_path: Path) -> None:
    """So a daemon that was killed goes on at once under its own unexpired lease."""
    first = claim(settings(tmp_path), "/repo")
    name = first.name
    first.close()
    again = claim(settings(tmp_path), "/repo")
    assert again.name == name
    again.close()


def test_a_second_process_is_another_owner_without_the_firsts_memory(tmp_path: Path) -> None:
    first, second = (claim(settings(tmp_path), "/repo") for _ in range(2))
    assert first.name != second.name
    assert second.cache_file is None
    first.close()
    second.close()


def test_another_repo_is_another_owner(tmp_path: Path) -> None:
    first, second = claim(settings(tmp_path), "/one"), claim(settings(tmp_path), "/two")
    assert first.name != second.name
    first.close()
    second.close()


def test_main_without_a_repo_is_an_error_and_not_a_trace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RECONCILE_CACHE_DIR", str(tmp_path / "cache"))
    assert main([]) == 1
    assert "Traceback" not in capsys.readouterr().err
