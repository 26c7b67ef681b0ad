"""A source that remembers says exactly what one that sees the repo for the first time says."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pygit2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.core.model import Revision
from reconciler.fleet.memory import Memory
from reconciler.fleet.repo import SourceFile
from reconciler.fleet.source import Source
from tests.fleet.repos import BASE, CATALOG, FLEET, NODES, PLACEMENTS, commit, git

BASE_PROFILE = "---\nkind: Profile\nname: base\nabstract: true\nengine: vllm\nenv: {A: a}\n"
CHILD = "---\nkind: Profile\nname: child\nextends: base\nmodel: llama\ngpus_per_node: 1\n"

EDITS: tuple[tuple[str, str], ...] = (
    ("catalog/all.yaml", CATALOG),
    ("catalog/all.yaml", CATALOG.replace("tp: 8", "tp: 4")),
    ("catalog/all.yaml", CATALOG + BASE_PROFILE + CHILD),
    ("catalog/all.yaml", CATALOG + CHILD),
    ("catalog/all.yaml", CATALOG + "args: [--peer, 10.0.0.9]\nenv: {NCCL_IB_HCA: mlx5_0}\n"),
    ("catalog/base.yaml", BASE_PROFILE),
    ("catalog/base.yaml", BASE_PROFILE.replace("A: a", "LD_PRELOAD: a")),
    ("catalog/base.yaml", BASE_PROFILE.replace("{A: a}", "[")),
    ("fleet.yaml", FLEET),
    ("fleet.yaml", FLEET + "allow_loader_env: true\n"),
    ("fleet.yaml", FLEET + "ports: {first: 20000, last: 20000}\n"),
    ("nodes/all.yaml", NODES),
    ("nodes/all.yaml", NODES.replace("count: 8", "count: 4")),
    ("nodes/all.yaml", NODES.replace("10.0.0.2", "10.0.0.9")),
    ("nodes/all.yaml", NODES.replace("pool: h100", "pool: other")),
    ("nodes/more.yaml", NODES),
    ("nodes/more.yaml", ""),
    ("placements/all.yaml", PLACEMENTS),
    ("placements/all.yaml", PLACEMENTS.replace("llama-h100", "child")),
    ("placements/all.yaml", PLACEMENTS + "replica: 2\n"),
    ("placements/all.yaml", PLACEMENTS + "replicas: 3\n"),
    ("placements/all.yaml", PLACEMENTS + "selector: {rack: r1}\n"),
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(st.sampled_from(EDITS), min_size=1, max_size=3), max_size=8))
def test_remembering_changes_nothing_over_any_edits(steps: list[list[tuple[str, str]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        repo = git(Path(folder))
        cache = Path(folder) / "c"
        commit(repo, BASE)
        remembering = Source.open(folder, cache_dir=cache, timeout_s=5)
        for edits in [[], *steps]:
            commit(repo, dict(edits))
            revision = remembering.resolve(None)
            fresh = Source.open(folder, cache_dir=cache, timeout_s=5)
            assert remembering.check(revision) == fresh.check(revision)


@pytest.mark.parametrize("edit", EDITS, ids=[str(number) for number in range(len(EDITS))])
def test_remembering_changes_nothing_over_one_edit_and_back(
    repo: pygit2.Repository, tmp_path: Path, edit: tuple[str, str]
) -> None:
    remembering = Source.open(repo.workdir, cache_dir=tmp_path / "c", timeout_s=5)
    for files in ({}, dict([edit]), {**BASE, "catalog/base.yaml": "", "nodes/more.yaml": ""}):
        commit(repo, files)
        revision = remembering.resolve(None)
        fresh = Source.open(repo.workdir, cache_dir=tmp_path / "other", timeout_s=5)
        assert remembering.check(revision) == fresh.check(revision)


@pytest.fixture
def repo(tmp_path: Path) -> pygit2.Repository:
    made = git(tmp_path / "fleet")
    commit(made, BASE)
    return made


def test_a_file_that_is_known_is_not_read_again(tmp_path: Path) -> None:
    from reconciler.fleet.load import load

    memory, reads = Memory(), list[str]()

    def file(path: str, text: str, oid: str) -> SourceFile:
        def content() -> bytes:
            reads.append(path)
            return text.encode()

        return SourceFile(path, content, oid)

    def look(oid: str) -> None:
        files = [file(path, text, oid + path) for path, text in BASE.items()]
        assert load(files, Revision("0"), memory=memory).desired is not None

    look("1")
    assert sorted(reads) == sorted(BASE)
    reads.clear()
    look("1")
    assert reads == []
    look("2")
    assert sorted(reads) == sorted(BASE)


def test_another_commit_with_the_same_tree_is_given_its_own_name(
    repo: pygit2.Repository, tmp_path: Path
) -> None:
    source = Source.open(repo.workdir, cache_dir=tmp_path / "c", timeout_s=5)
    first = source.resolve(None)
    one = source.load(first)
    commit(repo, {}, "the same again")
    second = source.resolve(None)
    two = source.load(second)
    assert (one.revision, two.revision) == (first, second)
    assert one.placements == two.placements


def test_what_is_gone_is_forgotten(repo: pygit2.Repository, tmp_path: Path) -> None:
    source = Source.open(repo.workdir, cache_dir=tmp_path / "c", timeout_s=5)
    for number in range(30):
        commit(repo, {"catalog/x.yaml": BASE_PROFILE + f"owner: team-{number}\n" + CHILD})
        source.load(source.resolve(None))
    assert len(source._memory.files) == 5
    assert len(source._memory.profiles) == 1
