"""The example fleet validates, and its sim part is a fleet of its own that runs anywhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from reconciler.core.describe import describe
from reconciler.fleet import schemas
from reconciler.fleet.checks.nodes import harmless
from reconciler.fleet.repo import EXAMPLE_FLEET_ID
from tests.fleet.repos import desired, loaded

EXAMPLE = Path(__file__).resolve().parents[2] / "fleet-repo-example"
SIM = ("fleet.yaml", "nodes/sim.yaml", "catalog/sim.yaml", "placements/sim.yaml")


def files(*names: str) -> dict[str, str]:
    chosen = names or [
        p.relative_to(EXAMPLE).as_posix()
        for folder in ("nodes", "catalog", "placements")
        for p in sorted((EXAMPLE / folder).rglob("*.yaml"))
    ]
    return {name: (EXAMPLE / name).read_text() for name in {*chosen, "fleet.yaml"}}


def test_the_whole_example_validates_without_a_warning() -> None:
    assert loaded(files()).findings == ()


def test_every_placement_of_the_example_has_its_commands() -> None:
    whole = desired(files())
    for placement in whole.placements:
        assert describe(whole, placement).ranks


def test_the_example_shows_what_it_promises() -> None:
    whole = desired(files())
    engines = {profile.engine for profile in whole.profiles.values()}
    assert engines == {"vllm", "sglang", "llamacpp", "sim"}
    assert any(p.engine == "vllm" and p.nodes == 2 for p in whole.profiles.values())
    h100 = [node for node in whole.nodes.values() if node.pool == "h100"]
    assert {fabric.kind for fabric in h100[0].fabrics.values()} == {"ib", "roce"}
    assert any(node.pool == "l40s" for node in whole.nodes.values())


def test_the_sim_part_is_complete_alone_and_runs_on_loopback_nodes() -> None:
    whole = desired(files(*SIM))
    assert loaded(files(*SIM)).findings == ()
    assert {n.name: n.address for n in whole.nodes.values()} == {
        "sim-a": "127.0.0.2",
        "sim-b": "127.0.0.3",
        "sim-c": "127.0.0.4",
    }
    for node in whole.nodes.values():
        assert (node.pool, node.gpus.count, node.gpus.source) == ("sim", 8, "declared")
    assert {profile.engine for profile in whole.profiles.values()} == {"sim"}


def test_the_sim_part_fits_its_nodes_with_room_for_one_more() -> None:
    whole = desired(files(*SIM))
    wanted = sum(
        p.replicas * whole.profiles[p.profile].gpus_per_node * whole.profiles[p.profile].nodes
        for p in whole.placements.values()
        if isinstance(p.replicas, int)
    )
    assert wanted < sum(node.gpus.count for node in whole.nodes.values())


def test_all_placements_of_the_example_have_room_beside_each_other() -> None:
    """By rack, since its selectors keep them apart: a first dry run must show no Hold."""
    whole = desired(files())
    wanted: dict[str, int] = {}
    for placement in whole.placements.values():
        profile = whole.profiles[placement.profile]
        rack = placement.selector.get("rack", placement.pool)
        many = placement.replicas if isinstance(placement.replicas, int) else 1
        wanted[rack] = wanted.get(rack, 0) + many * profile.gpus_per_node * profile.nodes
    for rack, gpus in wanted.items():
        there = [n for n in whole.nodes.values() if rack in (n.pool, n.labels.get("rack"))]
        assert gpus <= sum(node.gpus.count for node in there), rack


def test_the_example_s_id_is_the_one_that_is_refused_off_loopback() -> None:
    assert desired(files()).fleet.id == EXAMPLE_FLEET_ID
    real = files()
    real["nodes/sim.yaml"] = real["nodes/sim.yaml"].replace("127.0.0.2", "10.0.0.2")
    found = loaded(real)
    assert found.desired is None
    assert "has the example's id" in found.findings[0].message


def test_no_address_of_the_example_is_one_that_a_machine_can_have() -> None:
    for node in desired(files()).nodes.values():
        assert harmless(node.address)


@pytest.mark.parametrize("path", sorted(EXAMPLE.rglob("*.yaml")), ids=lambda p: p.name)
def test_every_file_names_its_schema_for_editors(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    schema = (path.parent / first.partition("$schema=")[2]).resolve()
    assert schema == schemas.FOLDER / "document.v1.json"


def test_the_workflow_has_no_privilege_and_no_secret() -> None:
    path = EXAMPLE / ".github/workflows/fleet.yml"
    text = path.read_text()
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    # PyYAML takes the key `on` for true: the very reason why fleet repos are read strictly.
    assert set(workflow[True]) == {"pull_request", "push"}
    assert "secrets." not in text
    runs = [step["run"] for step in workflow["jobs"]["validate"]["steps"] if "run" in step]
    assert any("reconcile validate --output github" in run for run in runs)
    assert any("--dry-run --base" in run for run in runs)


def test_a_copy_of_the_example_validates_wherever_it_lies(tmp_path: Path) -> None:
    from reconciler.fleet.source import Source

    shutil.copytree(EXAMPLE, tmp_path / "copy")
    source = Source.open(str(tmp_path / "copy"), cache_dir=tmp_path / "c", timeout_s=5)
    assert source.load_worktree().placements
