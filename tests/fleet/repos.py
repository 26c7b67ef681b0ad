"""Small fleet repos for tests: files as text in, what loading says out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pygit2

from reconciler.core.model import Desired, Revision
from reconciler.fleet.findings import as_text
from reconciler.fleet.limits import Limits
from reconciler.fleet.load import Loaded, load
from reconciler.fleet.repo import SourceFile

FLEET = """\
kind: Fleet
version: 1
name: test
id: 7f3c1f0e-5a35-4c8e-9d0a-2b8f6a1c4d21
"""

NODES = """\
kind: Node
name: gpu-a
address: 10.0.0.1
pool: h100
gpus: {class: h100-80gb, count: 8}
---
kind: Node
name: gpu-b
address: 10.0.0.2
pool: h100
gpus: {class: h100-80gb, count: 8}
"""

CATALOG = """\
kind: Model
name: llama
path: /models/llama
---
kind: Profile
name: llama-h100
model: llama
engine: vllm
parallel: {tp: 8}
gpus_per_node: 8
"""

PLACEMENTS = """\
kind: Placement
name: chat
profile: llama-h100
pool: h100
"""

BASE: Mapping[str, str] = {
    "fleet.yaml": FLEET,
    "nodes/all.yaml": NODES,
    "catalog/all.yaml": CATALOG,
    "placements/all.yaml": PLACEMENTS,
}


def loaded(files: Mapping[str, str | bytes], limits: Limits | None = None) -> Loaded:
    """What loading says of exactly these files."""
    raw = {p: t.encode() if isinstance(t, str) else t for p, t in files.items()}
    sources = [SourceFile(path, body) for path, body in raw.items()]
    return load(sources, Revision("0" * 40), limits=limits)


def desired(files: Mapping[str, str | bytes]) -> Desired:
    """The fleet in these files, which must validate."""
    result = loaded(files)
    assert result.desired is not None, as_text(result.findings)
    return result.desired


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """The files under `folder`."""
    for path, body in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(body.encode() if isinstance(body, str) else body)
    return folder


SIGNATURE = pygit2.Signature("A Person", "person@fleet.example", 1_700_000_000, 0)


def git(folder: Path) -> pygit2.Repository:
    """A repository with a working tree on branch main."""
    return pygit2.init_repository(str(folder), initial_head="main")


def commit(
    repo: pygit2.Repository, files: Mapping[str, str | bytes | None], message: str = "an edit"
) -> str:
    """Write files (None: remove them), commit all of it on the current branch, give the id."""
    folder = Path(repo.workdir)
    for path, body in files.items():
        if body is None:
            (folder / path).unlink()
        else:
            write(folder, {path: body})
    repo.index.add_all()
    repo.index.write()
    tree = repo.index.write_tree()
    parents = [] if repo.head_is_unborn else [repo.head.target]
    return str(repo.create_commit("HEAD", SIGNATURE, SIGNATURE, message, tree, parents))
