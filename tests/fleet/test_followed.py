"""What was read or followed once is known when the mirror, the remote or the branch is gone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pygit2
import pytest

from reconciler.core.model import Revision
from reconciler.errors import DamagedRepo, GitError
from reconciler.fleet.fetcher import Fetcher
from reconciler.fleet.followed import Followed
from reconciler.fleet.source import Source
from tests.fleet.repos import CATALOG, FLEET, NODES, PLACEMENTS, commit

FILES = {
    "fleet.yaml": FLEET,
    "nodes/all.yaml": NODES,
    "catalog/all.yaml": CATALOG,
    "placements/all.yaml": PLACEMENTS,
}


@pytest.fixture
def remote(tmp_path: Path) -> pygit2.Repository:
    made = pygit2.init_repository(str(tmp_path / "remote"), initial_head="main")
    commit(made, FILES)
    return made


@pytest.fixture
def source(remote: pygit2.Repository, tmp_path: Path) -> Iterator[Source]:
    made = opened(remote, tmp_path)
    made.fetch()
    yield made
    made.close()


def opened(remote: pygit2.Repository, tmp_path: Path) -> Source:
    return Source.open(f"file://{remote.workdir}", cache_dir=tmp_path / "cache", timeout_s=30)


def mirror(tmp_path: Path) -> Path:
    (found,) = (tmp_path / "cache").glob("*.git")
    return found


def garble(folder: Path) -> None:
    """Every object is still there by name; trees and blobs, which stand last, cannot be read."""
    for file in folder.rglob("objects/*/*"):
        if file.is_file() and file.suffix in ("", ".pack"):
            file.chmod(0o644)
            old = file.read_bytes()
            half = len(old) // 2
            file.write_bytes(old[:half] + bytes(len(old) - half - 20) + old[-20:])


def unreadable(source: Source) -> None:
    """In a frame of its own: who holds the exception holds the damaged pack."""
    with pytest.raises(DamagedRepo, match="git cannot read it"):
        source.load(source.resolve("main"))


def test_damaged_objects_are_told_apart_from_a_ref_that_does_not_exist_and_can_be_renewed(
    source: Source, remote: pygit2.Repository, tmp_path: Path
) -> None:
    garble(mirror(tmp_path))
    again = opened(remote, tmp_path)
    try:
        again.fetch()
        unreadable(again)
        assert again.renew()
        assert again.load(again.resolve("main")).placements
        with pytest.raises(GitError, match="names no commit") as caught:
            again.resolve("mian")
        assert not isinstance(caught.value, DamagedRepo)
    finally:
        again.close()


def test_a_mirror_that_cannot_be_renewed_stays_as_it_is(
    source: Source, remote: pygit2.Repository, tmp_path: Path
) -> None:
    head = source.resolve("main")
    shutil.rmtree(remote.workdir)
    with pytest.raises(GitError):
        source.renew()
    assert opened(remote, tmp_path).load(head).placements


def test_a_clone_of_a_person_is_never_renewed(remote: pygit2.Repository, tmp_path: Path) -> None:
    made = Source.open(remote.workdir, cache_dir=tmp_path / "cache", timeout_s=30)
    assert not made.renew()
    assert (Path(remote.path) / "HEAD").is_file()


def test_a_revision_that_was_read_outlives_its_mirror(
    source: Source, remote: pygit2.Repository, tmp_path: Path
) -> None:
    head = source.resolve("main")
    read = source.load(head)
    shutil.rmtree(tmp_path / "cache")
    shutil.rmtree(remote.workdir)
    with pytest.raises(GitError):
        source.fetch()
    assert source.load(Revision(head.commit)).placements == read.placements
    assert source.load_inventory(Revision(head.commit)).nodes == read.nodes
    with pytest.raises(GitError):
        source.load(Revision("1" * 40))


def test_a_cache_folder_that_cannot_be_written_is_a_failed_fetch(
    remote: pygit2.Repository, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    made = opened(remote, tmp_path)
    with pytest.raises(GitError, match="RECONCILE_CACHE_DIR"):
        made.fetch()


# --- What was in force at last ----------------------------------------------------------------


def test_what_was_in_force_under_a_ref_is_known_to_the_next_process(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "x.followed.json"
    Followed(file).put("main", Revision("1" * 40, "main", root_commit="0" * 40))
    (kept,) = Followed(file).get("main")
    assert (kept.commit, kept.root_commit) == ("1" * 40, "0" * 40)


def test_a_ref_that_was_never_followed_gets_what_the_others_had_newest_first(
    tmp_path: Path,
) -> None:
    kept = Followed(tmp_path / "x.json")
    for ref, letter in (("main", "1"), ("staging", "2"), ("main", "3")):
        kept.put(ref, Revision(letter * 40))
    assert [r.commit[0] for r in kept.get("mian")] == ["3", "2"]
    assert [r.commit[0] for r in kept.get("staging")] == ["2"]


@pytest.mark.parametrize("text", ["", "[]", '{"refs": {"main": 1}}', '{"refs": []}', "\0"])
def test_a_damaged_note_is_no_note(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    kept = Followed(tmp_path / "x.json")
    assert kept.get("main") == ()
    kept.put("main", Revision("1" * 40))
    assert Followed(tmp_path / "x.json").get(None)


def test_a_note_that_cannot_be_written_is_kept_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = Followed(tmp_path / "file" / "x.json")
    kept.put(None, Revision("1" * 40))
    assert kept.get(None)[0].commit == "1" * 40


# --- A remote that fails ----------------------------------------------------------------------


def test_a_remote_that_fails_is_left_alone_for_a_while_and_the_same_is_told(
    remote: pygit2.Repository, tmp_path: Path
) -> None:
    now = [100.0]
    url, away = f"file://{remote.workdir}", tmp_path / "away"
    fetcher = Fetcher(url, tmp_path / "cache" / "x.git", 30, clock_s=lambda: now[0])
    try:
        assert fetcher.fetch()
        shutil.move(remote.workdir, away)
        with pytest.raises(GitError) as first:
            fetcher.fetch()
        shutil.move(away, remote.workdir)
        now[0] += 0.9
        with pytest.raises(GitError) as again:
            fetcher.fetch()
        assert str(again.value) == str(first.value)
        now[0] += 0.2
        assert not fetcher.fetch()
        assert not fetcher.fetch(), "and at once again once it works"
    finally:
        fetcher.close()


def test_the_pause_after_failures_doubles_up_to_a_minute(tmp_path: Path) -> None:
    now, tries = [0.0], []

    class Down(Fetcher):
        def _fetch(self) -> bool:
            tries.append(now[0])
            raise GitError("repo", "it is down")

    fetcher = Down(f"file://{tmp_path}/none", tmp_path / "x.git", 30, clock_s=lambda: now[0])
    for second in range(300):
        now[0] = float(second)
        with pytest.raises(GitError):
            fetcher.fetch()
    assert tries == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]
