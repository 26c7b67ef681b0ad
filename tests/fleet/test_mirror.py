"""The mirror of a remote is a cache: whatever is in the remote or happens to the mirror, the next
fetch follows the branch, or says what the remote has done."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pygit2
import pytest
from pygit2.enums import ObjectType

from reconciler.errors import GitError
from reconciler.fleet.source import Source
from tests.fleet.repos import BASE, PLACEMENTS, SIGNATURE, commit, git


@pytest.fixture
def repo(tmp_path: Path) -> pygit2.Repository:
    """The remote."""
    made = git(tmp_path / "remote")
    commit(made, BASE)
    return made


@pytest.fixture
def source(repo: pygit2.Repository, tmp_path: Path) -> Iterator[Source]:
    """Its mirror, fetched once."""
    opened = Source.open(f"file://{repo.workdir}", cache_dir=tmp_path / "cache", timeout_s=20)
    opened.fetch()
    yield opened
    opened.close()


@pytest.fixture
def mirror(source: Source, tmp_path: Path) -> Path:
    (found,) = (tmp_path / "cache").glob("*.git")
    return found


def follows(source: Source, repo: pygit2.Repository, replicas: int) -> None:
    """A new commit arrives whole."""
    made = commit(repo, {"placements/all.yaml": f"{PLACEMENTS}replicas: {replicas}\n"})
    source.fetch()
    revision = source.resolve("main")
    assert revision.commit == made
    assert source.load(revision).placements["chat"].replicas == replicas


def test_a_branch_that_becomes_a_folder_of_branches_and_back_stops_no_fetch(
    source: Source, repo: pygit2.Repository
) -> None:
    repo.references.create("refs/heads/team", repo.head.target)
    follows(source, repo, 2)
    repo.references.delete("refs/heads/team")
    repo.references.create("refs/heads/team/one", repo.head.target)
    follows(source, repo, 3)
    assert source.resolve("team/one")
    repo.references.delete("refs/heads/team/one")
    repo.references.create("refs/heads/team", repo.head.target)
    follows(source, repo, 4)


@pytest.mark.parametrize("path", ["", "fleet.yaml"], ids=["folder", "file"])
def test_a_tag_of_a_folder_or_file_stops_no_fetch(
    source: Source, repo: pygit2.Repository, path: str
) -> None:
    tree = repo.head.peel(pygit2.Tree)
    target = tree[path].id if path else tree.id
    repo.references.create("refs/tags/plain", target)
    kind = ObjectType.BLOB if path else ObjectType.TREE
    repo.create_tag("told", target, kind, SIGNATURE, "a tag with a message")
    for replicas in (2, 3, 4):
        follows(source, repo, replicas)
    with pytest.raises(GitError, match="names no commit"):
        source.resolve("plain")


def test_such_a_tag_is_not_fetched_again_each_time(
    source: Source, repo: pygit2.Repository, mirror: Path
) -> None:
    repo.references.create("refs/tags/plain", repo.head.peel(pygit2.Tree).id)
    source.fetch()
    before = source._repo  # opened anew whenever anything has changed
    source.fetch()
    assert source._repo is before


def _write(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)


def _each(pattern: str, cut: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(mirror: Path) -> None:
        found = list(mirror.glob(pattern))
        assert found
        for path in found:
            _write(path, cut(path.read_bytes()))

    return damage


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _junk_packed(mirror: Path) -> None:
    (mirror / "packed-refs").write_bytes(b"\0junk\n")


def _file_instead(mirror: Path) -> None:
    shutil.rmtree(mirror)
    mirror.write_text("x")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "HEAD is empty": _each("HEAD", lambda _: b""),
    "HEAD is zeroed, as after a power cut": _each("HEAD", lambda data: bytes(len(data))),
    "HEAD is gone": lambda mirror: (mirror / "HEAD").unlink(),
    "its configuration is cut": _each("config", lambda _: b"[core\n"),
    "a reference is zeroed": _each("refs/heads/main", lambda data: bytes(len(data))),
    "a reference names what is not there": _each("refs/heads/main", lambda _: b"1" * 40 + b"\n"),
    "packed references are junk": _junk_packed,
    "its packs are cut": _each("objects/pack/*.pack", _half),
    "its packs have no index": _each("objects/pack/*.idx", lambda _: b""),
    "its objects are gone": lambda mirror: shutil.rmtree(mirror / "objects"),
    "a file stands in its place": _file_instead,
}


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("news", [True, False], ids=["with news", "without news"])
def test_a_damaged_mirror_is_made_again(
    source: Source, repo: pygit2.Repository, mirror: Path, what: str, news: bool
) -> None:
    DAMAGES[what](mirror)
    if news:
        try:
            follows(source, repo, 2)
        except GitError:  # what was only found while reading is mended by the next pass
            follows(source, repo, 3)
        return
    later = Source.open(f"file://{repo.workdir}", cache_dir=mirror.parent, timeout_s=20)
    try:
        later.fetch()
        assert later.load(later.resolve("main")).placements
    finally:
        later.close()


def _unpack(mirror: Path) -> None:
    """Every object of the mirror's packs as a file of its own."""
    for pack in list(mirror.glob("objects/pack/*.pack")):
        moved = pack.rename(mirror / pack.name)
        pack.with_suffix(".idx").unlink()
        command = ["git", "-C", str(mirror), "unpack-objects", "-q"]
        subprocess.run(command, input=moved.read_bytes(), check=True, timeout=30)
        moved.unlink()


def test_a_file_that_turns_out_damaged_while_it_is_read_costs_one_pass(
    source: Source, repo: pygit2.Repository, mirror: Path
) -> None:
    """The newest commit is whole and its tree's blob is not: only reading shows it."""
    made = commit(repo, {"placements/all.yaml": PLACEMENTS + "replicas: 2\n"})
    source.fetch()
    _unpack(mirror)
    blob = str(repo[made].peel(pygit2.Tree)["placements"]["all.yaml"].id)
    _write(mirror / "objects" / blob[:2] / blob[2:], b"junk")
    later = Source.open(f"file://{repo.workdir}", cache_dir=mirror.parent, timeout_s=20)
    try:
        later.fetch()
        with pytest.raises(GitError, match="cannot read it"):
            later.load(later.resolve("main"))
        later.fetch()
        assert later.load(later.resolve("main")).placements["chat"].replicas == 2
    finally:
        later.close()


def test_a_mirror_is_kept_while_the_remote_is_gone(
    source: Source, repo: pygit2.Repository, mirror: Path, tmp_path: Path
) -> None:
    commit_before = source.resolve("main").commit
    (tmp_path / "remote").rename(tmp_path / "away")
    with pytest.raises(GitError):
        source.fetch()
    later = Source.open(f"file://{repo.workdir}", cache_dir=mirror.parent, timeout_s=20)
    assert later.resolve("main").commit == commit_before
    assert not list(mirror.parent.glob("*.new"))


@pytest.mark.parametrize(
    "url",
    [
        "https://ada:s3cr3t@127.0.0.1:1/fleet.git",
        "ssh://git:s3cr3t@127.0.0.1:1/fleet.git",
        "https://:s3cr3t@127.0.0.1:1/fleet.git",
    ],
)
def test_a_url_with_a_password_is_refused_and_the_password_not_repeated(
    url: str, tmp_path: Path
) -> None:
    with pytest.raises(GitError) as refused:
        Source.open(url, cache_dir=tmp_path, timeout_s=5)
    assert "s3cr3t" not in str(refused.value)
    assert "~/.netrc" in str(refused.value)


@pytest.mark.parametrize(
    "url",
    ["https://s3cr3t@127.0.0.1:1/fleet.git", "https://127.0.0.1:1/fleet.git?token=s3cr3t"],
    ids=["as the user", "in the query"],
)
def test_a_token_elsewhere_in_a_url_is_not_repeated(url: str, tmp_path: Path) -> None:
    source = Source.open(url, cache_dir=tmp_path, timeout_s=5)
    try:
        with pytest.raises(GitError) as failed:
            source.fetch()
        assert "s3cr3t" not in str(failed.value)
        assert "127.0.0.1:1/fleet.git" in str(failed.value)
    finally:
        source.close()
