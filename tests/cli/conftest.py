"""Fixtures for commands: a run of `reconcile` in this process, and fleet repos to run it on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pygit2
import pytest
import yaml

from reconciler.cli import main
from reconciler.nodes.loopback import LoopbackFleet

EXAMPLE = Path(__file__).resolve().parents[2] / "fleet-repo-example"


@dataclass(frozen=True)
class Ran:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Ran]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """`cli("status", repo=repo)`; each test has a cache folder, and so an owner, of its own."""
    monkeypatch.setenv("RECONCILE_CACHE_DIR", str(tmp_path / "cache"))

    def run(*args: str, repo: FleetRepo | None = None) -> Ran:
        before = ["--repo", str(repo.folder)] if repo else []
        capsys.readouterr()
        code = main([*before, *args])
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return run


class FleetRepo:
    """A git repo of YAML; `write` edits, `commit` commits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        pygit2.init_repository(str(folder), initial_head="main")

    def write(self, path: str, *documents: Mapping[str, Any] | str) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        texts = [d if isinstance(d, str) else yaml.safe_dump(dict(d)) for d in documents]
        target.write_text("---\n".join(texts), encoding="utf-8")

    def replace(self, path: str, before: str, after: str) -> None:
        target = self.folder / path
        text = target.read_text(encoding="utf-8")
        assert before in text
        target.write_text(text.replace(before, after), encoding="utf-8")

    def remove(self, path: str) -> None:
        (self.folder / path).unlink()

    def commit(self, message: str = "change") -> str:
        repo = pygit2.Repository(str(self.folder))
        repo.index.add_all()
        repo.index.write()
        author = pygit2.Signature("Kim", "kim@example.org")
        parents = [] if repo.head_is_unborn else [repo.head.target]
        tree = repo.index.write_tree()
        return str(repo.create_commit("HEAD", author, author, message, tree, parents))


@pytest.fixture
def example(tmp_path: Path) -> FleetRepo:
    """The example's sim part, committed."""
    repo = FleetRepo(tmp_path / "fleet")
    for part in ("fleet.yaml", "nodes/sim.yaml", "catalog/sim.yaml", "placements/sim.yaml"):
        target = repo.folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(EXAMPLE / part, target)
    repo.commit()
    return repo


@pytest.fixture
def live(example: FleetRepo, tmp_path: Path) -> Iterator[tuple[FleetRepo, LoopbackFleet]]:
    """The same with three real sshd nodes behind it."""
    names = ("sim-a", "sim-b", "sim-c")
    with LoopbackFleet(tmp_path / "nodes", names=names) as nodes:
        example.write(
            "nodes/sim.yaml",
            *(
                {
                    "kind": "Node",
                    "name": node.name,
                    "address": node.address,
                    "pool": "sim",
                    "gpus": {"class": "sim-gpu", "count": 8, "source": "declared"},
                    "ssh": node.ssh_document(),
                }
                for node in nodes.nodes.values()
            ),
        )
        example.commit("nodes")
        yield example, nodes
