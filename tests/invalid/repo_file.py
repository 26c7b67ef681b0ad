"""One broken repo a text file: its files and what validation must say, word for word.

    What is wrong, in a line

    >>> catalog/x.yaml
    …the file…
    >>> catalog/y.yaml (link to ../elsewhere)
    >>> expected
    catalog/x.yaml:3:1: …
    1 error in 1 file

A case stands on top of the files in `base/`, a repo that validates; a file of the same path takes
the place of the base's. In round brackets: `link to TARGET`, `submodule`, `absent`, and `escaped`
(the text is a Python string's inside, each backslash an escape: bytes by \\x, characters by \\u).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pygit2
from pygit2.enums import FileMode

from reconciler.fleet.findings import as_text
from reconciler.fleet.load import Loaded
from reconciler.fleet.source import Source

HERE = Path(__file__).parent
CASES = HERE / "cases"
BASE = HERE / "base"

_HEADER = re.compile(r">>> (\S+)(?: \((.+)\))?")


@dataclass(frozen=True)
class Blob:
    """What stands at a path of the tree."""

    raw: bytes
    mode: FileMode = FileMode.BLOB


@dataclass(frozen=True)
class Case:
    """A broken repo and its findings."""

    title: str
    files: dict[str, Blob | None]
    """None: taken away from the base."""
    expected: str

    def tree(self) -> dict[str, Blob]:
        """The base with the case's files over it."""
        whole: dict[str, Blob | None] = {
            path.relative_to(BASE).as_posix(): Blob(path.read_bytes())
            for path in sorted(BASE.rglob("*.yaml"))
        }
        whole.update(self.files)
        return {path: blob for path, blob in whole.items() if blob is not None}


def read(path: Path) -> Case:
    """The case in a file."""
    title, *rest = path.read_text(encoding="utf-8").split("\n>>> ")
    files: dict[str, Blob | None] = {}
    expected = ""
    for part in rest:
        head, _, body = part.partition("\n")
        match = _HEADER.fullmatch(f">>> {head}")
        assert match, f"{path.name}: {head!r} is no header"
        if match[1] == "expected":
            expected = body
        else:
            files[match[1]] = _blob(match[2] or "", body)
    return Case(title.strip(), files, expected)


def _blob(how: str, body: str) -> Blob | None:
    if how == "absent":
        return None
    if how.startswith("link to "):
        return Blob(how.removeprefix("link to ").encode(), FileMode.LINK)
    if how == "submodule":
        return Blob(b"", FileMode.COMMIT)
    body = body.rstrip("\n") + "\n"
    if how == "escaped":
        return Blob(_unescape(body))
    assert how == "", how
    return Blob(body.encode())


def _unescape(text: str) -> bytes:
    """`\\xff` is a byte, `\\u2028` a character in UTF-8; the rest stands for itself."""

    def one(match: re.Match[bytes]) -> bytes:
        code = int(match[1][1:], 16)
        return bytes([code]) if match[1][:1] == b"x" else chr(code).encode()

    return re.sub(rb"\\(x[0-9a-f]{2}|u[0-9a-f]{4})", one, text.encode())


def commit(folder: Path, tree: dict[str, Blob]) -> str:
    """A bare repository with one commit of `tree`; its id. Nothing is checked out."""
    repo = pygit2.init_repository(str(folder), bare=True)
    root = _write_tree(repo, {tuple(path.split("/")): blob for path, blob in tree.items()})
    who = pygit2.Signature("A Person", "person@fleet.example", 1_700_000_000, 0)
    return str(repo.create_commit("refs/heads/main", who, who, "a fleet", root, []))


def _write_tree(repo: pygit2.Repository, tree: dict[tuple[str, ...], Blob]) -> pygit2.Oid:
    builder = repo.TreeBuilder()
    folders: dict[str, dict[tuple[str, ...], Blob]] = {}
    for parts, blob in tree.items():
        if len(parts) > 1:
            folders.setdefault(parts[0], {})[parts[1:]] = blob
        elif blob.mode is FileMode.COMMIT:
            builder.insert(parts[0], pygit2.Oid(hex="1" * 40), blob.mode)
        else:
            builder.insert(parts[0], repo.create_blob(blob.raw), blob.mode)
    for name, inside in folders.items():
        builder.insert(name, _write_tree(repo, inside), FileMode.TREE)
    return builder.write()


def said(case: Case, folder: Path) -> tuple[Loaded, str]:
    """What validation says of a commit of the case."""
    revision = commit(folder / "repo.git", case.tree())
    source = Source.open(str(folder / "repo.git"), cache_dir=folder / "cache", timeout_s=10)
    loaded = source.check(source.resolve(revision))
    return loaded, as_text(loaded.findings)
