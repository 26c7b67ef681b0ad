"""Commands in a subfolder of a fleet mean that fleet; a second one is never made inside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from reconciler.fleet.root import fleet_of
from tests.cli.conftest import Cli, FleetRepo


@pytest.mark.parametrize("command", [("validate",), ("command", "chat")])
def test_a_subfolder_means_the_fleet_around_it(
    cli: Cli, example: FleetRepo, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(example.folder)
    whole = cli(*command)
    deep = example.folder / "placements" / "team"
    deep.mkdir()
    monkeypatch.chdir(deep)
    ran = cli(*command)
    assert (ran.code, ran.out) == (0, whole.out), ran.err
    assert f"The fleet is {example.folder}." in ran.err
    assert "The fleet is" not in whole.err


def test_machines_read_the_same_json_in_a_subfolder(
    cli: Cli, example: FleetRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(example.folder / "nodes")
    assert json.loads(cli("command", "chat", "-o", "json").out)


def test_a_subfolder_given_as_the_repo_is_answered_with_its_fleet(
    cli: Cli, example: FleetRepo
) -> None:
    ran = cli("--repo", str(example.folder / "nodes"), "validate")
    assert (ran.code, f"give {example.folder}" in ran.err) == (1, True), ran.err


def test_init_makes_no_fleet_inside_a_fleet(
    cli: Cli, example: FleetRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(example.folder / "placements")
    for folder in ((), ("new",)):
        ran = cli("init", *folder)
        assert (ran.code, f"lies in the fleet {example.folder}" in ran.err) == (1, True), ran.err
    assert not (example.folder / "placements" / "fleet.yaml").exists()
    assert not (example.folder / "placements" / "new").exists()


def test_what_lies_above_a_work_tree_is_not_its_fleet(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("kind: Fleet\n")
    inner = tmp_path / "other"
    (inner / ".git").mkdir(parents=True)
    (inner / "nodes").mkdir()
    assert fleet_of(inner / "nodes") is None
    (inner / "fleet.yaml").write_text("kind: Fleet\n")
    assert fleet_of(inner / "nodes") == inner
    assert fleet_of(tmp_path) == tmp_path


def test_a_repositorys_own_folder_stands_for_what_it_is_of(cli: Cli, example: FleetRepo) -> None:
    ran = cli("--repo", str(example.folder / ".git"), "validate")
    assert ran.code == 0, ran.err
    inner = example.folder / "mirror.git"
    shutil.copytree(example.folder / ".git", inner)
    assert fleet_of(inner) is None


def test_outside_any_repo_all_ways_on_are_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    ran = cli("--yes")
    assert ran.code == 1
    assert all(word in ran.err for word in ("--repo", "reconcile init", "git init")), ran.err
