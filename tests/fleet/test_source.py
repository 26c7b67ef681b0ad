"""Repositories: revisions by name, trees read without a checkout, fetches with a hard deadline."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pygit2
import pytest

from reconciler.core.model import Revision
from reconciler.errors import GitError, InvalidFleet
from reconciler.fleet.fetch_errors import failure
from reconciler.fleet.fetcher import MAX_PACKS, AuthenticationFailed
from reconciler.fleet.findings import as_text
from reconciler.fleet.source import Source
from tests.fleet.repos import BASE, CATALOG, PLACEMENTS, commit, git, write


def open_source(location: Path | str, tmp_path: Path, timeout_s: float = 20) -> Source:
    return Source.open(str(location), cache_dir=tmp_path / "cache", timeout_s=timeout_s)


@pytest.fixture
def repo(tmp_path: Path) -> pygit2.Repository:
    made = git(tmp_path / "fleet")
    commit(made, BASE, "first")
    return made


@pytest.fixture
def source(repo: pygit2.Repository, tmp_path: Path) -> Source:
    return open_source(repo.workdir, tmp_path)


# --- revisions --------------------------------------------------------------------------------


def test_no_ref_is_head_and_carries_the_branch_and_the_first_commit(
    repo: pygit2.Repository, source: Source
) -> None:
    first = str(repo.head.target)
    second = commit(repo, {"README.md": "words"})
    assert source.resolve(None) == Revision(second, "main", False, first)


@pytest.mark.parametrize("name", ["main", "v1", "HEAD", "short", "HEAD~0"])
def test_a_branch_a_tag_and_a_commit_name_a_revision(
    repo: pygit2.Repository, source: Source, name: str
) -> None:
    head = str(repo.head.target)
    repo.references.create("refs/tags/v1", head)
    assert source.resolve(head[:12] if name == "short" else name).commit == head


def test_a_branch_comes_before_a_tag_of_its_name(repo: pygit2.Repository, source: Source) -> None:
    first = str(repo.head.target)
    repo.references.create("refs/tags/main", first)
    second = commit(repo, {"placements/all.yaml": PLACEMENTS + "replicas: 2\n"})
    assert source.resolve("main").commit == second
    assert source.resolve("refs/tags/main").commit == first


def test_a_branch_that_is_named_like_a_commit_does_not_take_its_place(
    repo: pygit2.Repository, source: Source
) -> None:
    first = str(repo.head.target)
    second = commit(repo, {"placements/all.yaml": PLACEMENTS + "replicas: 2\n"})
    repo.references.create(f"refs/heads/{first}", second)
    assert source.resolve(first).commit == first


def test_a_branch_whose_commit_is_missing_is_not_called_unknown(
    repo: pygit2.Repository, source: Source
) -> None:
    """As in a clone whose alternate is gone."""
    (Path(repo.path) / "refs" / "heads" / "main").write_text("1" * 40 + "\n")
    for ref in (None, "main"):
        with pytest.raises(GitError, match=r"cannot read it: .*; look at the repository"):
            source.resolve(ref)


def test_the_git_folder_stands_for_its_repository(
    repo: pygit2.Repository, tmp_path: Path, source: Source
) -> None:
    opened = open_source(repo.path, tmp_path)
    assert opened.load(opened.resolve(None)) == source.load(source.resolve(None))
    assert opened.load_worktree().placements


def test_a_working_tree_elsewhere_is_named(repo: pygit2.Repository, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    repo.config["core.worktree"] = str(tmp_path / "elsewhere")
    with pytest.raises(GitError, match=r"give .*/elsewhere"):
        open_source(tmp_path / "fleet", tmp_path)


def test_a_git_file_that_is_malformed_is_a_git_error(tmp_path: Path) -> None:
    write(tmp_path / "fleet", {**BASE, ".git": "junk"})
    with pytest.raises(GitError, match="malformed"):
        open_source(tmp_path / "fleet", tmp_path)


def test_the_lock_of_an_editor_is_no_file_of_the_fleet(
    repo: pygit2.Repository, source: Source
) -> None:
    (Path(repo.workdir) / "catalog" / ".#all.yaml").symlink_to("ada@laptop.4711:1700000000")
    assert source.load_worktree().placements


def test_a_repository_with_sha256_names_says_so(tmp_path: Path) -> None:
    command = ["git", "init", "-q", "--object-format=sha256", str(tmp_path / "new")]
    subprocess.run(command, check=True, timeout=30, capture_output=True)
    with pytest.raises(GitError, match="named by SHA-256"):
        open_source(tmp_path / "new", tmp_path)


def test_a_repository_inside_the_working_tree_is_refused_as_its_commit_would_be(
    repo: pygit2.Repository, source: Source
) -> None:
    write(Path(repo.workdir), {"catalog/inner/x.yaml": "kind: Model\nname: inner\n"})
    pygit2.init_repository(str(Path(repo.workdir) / "catalog" / "inner"))
    with pytest.raises(InvalidFleet):
        source.load_worktree()
    assert "catalog/inner: it is a submodule" in as_text(source.findings)


def test_an_unknown_ref_is_named_with_the_nearest(source: Source) -> None:
    with pytest.raises(GitError, match=r"ref 'mian': it names no commit; did you mean 'main'\?"):
        source.resolve("mian")


def test_a_repository_without_a_commit_says_so(tmp_path: Path) -> None:
    git(tmp_path / "new")
    with pytest.raises(GitError, match="no commit yet"):
        open_source(tmp_path / "new", tmp_path).resolve(None)


def test_ancestors_come_newest_first_and_carry_one_first_commit(
    repo: pygit2.Repository, source: Source
) -> None:
    first = str(repo.head.target)
    second = commit(repo, {"a.txt": "1"})
    third = commit(repo, {"a.txt": "2"})
    found = list(source.ancestors(third))
    assert [r.commit for r in found] == [third, second, first]
    assert {r.root_commit for r in found} == {first}


def test_the_first_commit_of_a_shallow_clone_is_unknown_not_wrong(
    repo: pygit2.Repository, tmp_path: Path
) -> None:
    commit(repo, {"a.txt": "1"})
    url = f"file://{repo.workdir}"
    subprocess.run(["git", "clone", "-q", "--depth=1", url, tmp_path / "cut"], check=True)
    assert open_source(tmp_path / "cut", tmp_path).resolve(None).root_commit == ""


def test_blame_names_the_commit_and_author_of_a_line(
    repo: pygit2.Repository, source: Source
) -> None:
    first = str(repo.head.target)
    second = commit(repo, {"placements/all.yaml": PLACEMENTS + "replicas: 2\n"})
    revision = source.resolve(None)
    assert source.blame(revision, "placements/all.yaml", 5) == (second, "A Person")
    assert source.blame(revision, "placements/all.yaml", 1) == (first, "A Person")
    assert source.blame(revision, "placements/none.yaml", 1) is None
    assert source.blame(revision, "placements/all.yaml", 999) is None


# --- reading ----------------------------------------------------------------------------------


def test_any_commit_is_read_from_the_object_database(
    repo: pygit2.Repository, source: Source
) -> None:
    first = source.resolve(None)
    commit(repo, {"placements/all.yaml": PLACEMENTS + "replicas: 3\n"})
    assert source.load(first).placements["chat"].replicas == 1
    assert source.load(source.resolve(None)).placements["chat"].replicas == 3


def test_a_bare_repository_is_read_and_has_no_working_tree(
    repo: pygit2.Repository, tmp_path: Path
) -> None:
    pygit2.clone_repository(repo.workdir, str(tmp_path / "bare.git"), bare=True)
    source = open_source(tmp_path / "bare.git", tmp_path)
    assert source.load(source.resolve("main")).placements["chat"].profile == "llama-h100"
    with pytest.raises(GitError, match="no working tree"):
        source.load_worktree()


def test_a_revision_that_does_not_validate_tells_all_findings(
    repo: pygit2.Repository, source: Source
) -> None:
    commit(repo, {"placements/all.yaml": PLACEMENTS + "replica: 3\n"})
    with pytest.raises(InvalidFleet, match="1 error in 1 file") as caught:
        source.load(source.resolve(None))
    assert [f.line for f in caught.value.findings] == [5]  # type: ignore[attr-defined]


def test_the_working_tree_is_dirty_where_a_file_of_the_fleet_differs_from_head(
    repo: pygit2.Repository, source: Source
) -> None:
    folder = Path(repo.workdir)
    assert source.load_worktree().revision == source.resolve(None)
    write(folder, {"README.md": "words", "notes/x.yaml": "a: 1", "nodes/README.md": "words"})
    assert not source.load_worktree().revision.dirty
    write(folder, {"placements/all.yaml": PLACEMENTS + "replicas: 2\n"})
    loaded = source.load_worktree()
    assert loaded.revision.dirty
    assert loaded.placements["chat"].replicas == 2
    write(folder, {"placements/all.yaml": PLACEMENTS})
    (folder / "catalog/all.yaml").rename(folder / "catalog/other.yaml")
    assert source.load_worktree().revision.dirty
    assert source.is_dirty()


def test_an_invalid_working_tree_is_dirty_only_where_it_differs_from_head(
    repo: pygit2.Repository, source: Source
) -> None:
    folder = Path(repo.workdir)
    invalid = {"placements/all.yaml": PLACEMENTS + "nonsense: 2\n"}
    write(folder, invalid)
    assert source.is_dirty()
    commit(repo, invalid)
    assert source.check_worktree().desired is None
    assert not source.is_dirty()


def test_a_path_that_the_system_refuses_is_told_without_a_trace(tmp_path: Path) -> None:
    with pytest.raises(GitError, match="cannot be read: File name too long"):
        open_source(tmp_path / ("x" * 5000), tmp_path)


def test_a_url_with_a_blank_is_refused_with_how_to_write_it(tmp_path: Path) -> None:
    with pytest.raises(GitError, match="a blank in it is written %20"):
        Source.open("file:///a b", cache_dir=tmp_path, timeout_s=1)


def test_a_folder_that_is_no_repository_can_be_validated_but_names_no_revision(
    tmp_path: Path,
) -> None:
    source = open_source(write(tmp_path / "plain", BASE), tmp_path)
    assert source.load_worktree().revision == Revision("", dirty=True)
    with pytest.raises(GitError, match="not a git repository; run 'git init'"):
        source.resolve(None)


def test_a_fleet_in_a_folder_of_a_larger_repository_is_read_alone(
    repo: pygit2.Repository, tmp_path: Path
) -> None:
    inner = {f"gpu/fleet/{path}": body for path, body in BASE.items()}
    broken = {"gpu/fleet/placements/x.yaml": "kind: Placement\n"}
    commit(repo, {**inner, **broken, "placements/all.yaml": "not: ours"})
    source = open_source(Path(repo.workdir) / "gpu/fleet", tmp_path)
    for loaded in (source.check(source.resolve(None)), source.check_worktree()):
        files = {finding.file for finding in loaded.findings}
        assert files == {"gpu/fleet/placements/x.yaml"}, "paths are shown from the top, as git does"
    commit(repo, {"gpu/fleet/placements/x.yaml": None})
    assert source.load(source.resolve(None)).revision == source.load_worktree().revision


def test_links_of_a_working_tree_are_named_and_never_followed(
    repo: pygit2.Repository, source: Source, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("canary: 8f14e45f\n")
    folder = Path(repo.workdir)
    (folder / "catalog/link.yaml").symlink_to(secret)
    (folder / "nodes/folder").symlink_to(tmp_path)
    (folder / "catalog/loop.yaml").symlink_to("loop.yaml")
    (folder / "elsewhere").symlink_to("/nonexistent")
    said = as_text(source.check_worktree().findings)
    assert "8f14e45f" not in said
    assert said.count("symbolic link; these are not followed") == 3
    assert "elsewhere" not in said


def test_a_pipe_in_a_working_tree_is_refused_and_not_waited_for(
    repo: pygit2.Repository, source: Source
) -> None:
    os.mkfifo(Path(repo.workdir) / "nodes/pipe.yaml")
    assert "device, socket or pipe" in as_text(source.check_worktree().findings)


def test_hooks_filters_and_attributes_of_a_repository_run_nothing(
    repo: pygit2.Repository, source: Source, tmp_path: Path
) -> None:
    witness = tmp_path / "ran"
    script = f"#!/bin/sh\ntouch {witness}\ncat\n"
    hooks = Path(repo.path) / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "reference-transaction", "fsmonitor", "filter"):
        (hooks / name).write_text(script)
        (hooks / name).chmod(0o755)
    repo.config["filter.evil.smudge"] = str(hooks / "filter")
    repo.config["filter.evil.clean"] = str(hooks / "filter")
    repo.config["core.fsmonitor"] = str(hooks / "fsmonitor")
    commit(repo, {".gitattributes": "*.yaml filter=evil\n"})
    witness.unlink(missing_ok=True)
    source.load(source.resolve(None))
    source.load_worktree()
    assert not witness.exists()


def test_a_large_blob_is_refused_by_its_size_alone(repo: pygit2.Repository, source: Source) -> None:
    commit(repo, {"catalog/huge.yaml": b"# " + b"x" * (32 << 20)})
    start = time.process_time()
    said = as_text(source.check(source.resolve(None)).findings)
    assert "catalog/huge.yaml: it has 33554434 bytes, more than the 4194304" in said
    assert time.process_time() - start < 1


def test_a_tree_that_holds_itself_many_times_over_ends_at_the_limit(
    repo: pygit2.Repository, tmp_path: Path
) -> None:
    """Twelve tree objects, ten entries each: 10^12 paths."""
    tree = repo.TreeBuilder()
    tree.insert("a.yaml", repo.create_blob(b"kind: Model\nname: x\n"), 0o100644)
    oid = tree.write()
    for _ in range(12):
        above = repo.TreeBuilder()
        for name in "abcdefghij":
            above.insert(name, oid, 0o040000)
        oid = above.write()
    top = repo.TreeBuilder()
    top.insert("catalog", oid, 0o040000)
    made = repo.create_commit(
        None, pygit2.Signature("a", "a@b"), pygit2.Signature("a", "a@b"), "x", top.write(), []
    )
    source = open_source(repo.workdir, tmp_path)
    said = as_text(source.check(source.resolve(str(made))).findings)
    assert "the tree has more than 200000 entries" in said


def test_names_that_are_not_utf8_are_refused_not_skipped(
    repo: pygit2.Repository, source: Source
) -> None:
    folder = os.fsencode(repo.workdir) + b"catalog/"
    Path(os.fsdecode(folder + b"caf\xe9.yaml")).write_text("kind: Nothing\n")
    said = as_text(source.check_worktree().findings)
    assert "caf\\xe9.yaml" in said


# --- where a repository is --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("git@forge.example:team/fleet.git", "write ssh://git@forge.example/team/fleet.git"),
        ("http://forge.example/fleet", "use ssh://, https:// or file://"),
        ("ext::sh -c touch% x", "no such folder"),
        ("/nonexistent/fleet", "no such folder"),
    ],
)
def test_a_location_that_is_none_says_what_to_write(
    location: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(GitError, match=said.replace("(", r"\(")):
        open_source(location, tmp_path)


def test_a_mirror_follows_its_remote_through_every_kind_of_change(
    repo: pygit2.Repository, tmp_path: Path
) -> None:
    url = f"file://{repo.workdir}"
    source = open_source(url, tmp_path)
    try:
        with pytest.raises(GitError, match="never fetched"):
            source.resolve("main")
        source.fetch()
        first = source.resolve(None)
        assert (first.ref, first.commit) == ("main", str(repo.head.target))
        second = commit(repo, {"placements/all.yaml": PLACEMENTS + "replicas: 2\n"})
        repo.references.create("refs/heads/side", second)
        source.fetch()
        assert source.load(source.resolve("main")).placements["chat"].replicas == 2
        assert source.resolve("side").commit == second
        repo.references["refs/heads/main"].set_target(first.commit)  # a forced push
        repo.references.delete("refs/heads/side")
        source.fetch()
        assert source.resolve(None).commit == first.commit
        with pytest.raises(GitError, match="names no commit"):
            source.resolve("side")
    finally:
        source.close()


def test_a_second_process_uses_the_mirror_that_is_there(
    repo: pygit2.Repository, tmp_path: Path
) -> None:
    url = f"file://{repo.workdir}"
    one, two = open_source(url, tmp_path), open_source(url, tmp_path)
    try:
        one.fetch()
        assert open_source(url, tmp_path).resolve(None) == one.resolve(None)
        two.fetch()
        assert two.resolve(None) == one.resolve(None)
    finally:
        one.close()
        two.close()


def test_locks_and_pieces_of_a_killed_fetch_do_not_stop_the_next(
    repo: pygit2.Repository, tmp_path: Path
) -> None:
    source = open_source(f"file://{repo.workdir}", tmp_path)
    try:
        source.fetch()
        (mirror,) = (tmp_path / "cache").glob("*.git")
        (mirror / "refs/heads/main.lock").write_text("")
        (mirror / "objects/pack/tmp_pack_x").write_text("half")
        second = commit(repo, {"a.txt": "1"})
        source.fetch()
        assert source.resolve(None).commit == second
        assert not list(mirror.rglob("*tmp_pack*"))
    finally:
        source.close()


def test_many_fetches_leave_few_packs(repo: pygit2.Repository, tmp_path: Path) -> None:
    source = open_source(f"file://{repo.workdir}", tmp_path)
    try:
        for number in range(MAX_PACKS + 8):
            head = commit(repo, {"a.txt": str(number)})
            source.fetch()
        (mirror,) = (tmp_path / "cache").glob("*.git")
        assert len(list(mirror.glob("objects/pack/*.pack"))) <= MAX_PACKS
        assert source.resolve(None).commit == head
        assert source.load(source.resolve(None)).placements
    finally:
        source.close()


SSH_START = b"SSH-2.0-server\r\n\x00\x00\x40\x00\x04"
TLS_START = b"\x16\x03\x03\x40\x00\x02\x00\x3f\xf0"


@pytest.fixture
def trickling() -> Iterator[str]:
    """A server that answers a byte now and then, for ever: libgit2 alone would wait for ever."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()
    open_ones: list[socket.socket] = []

    def serve() -> None:
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            open_ones.append(connection)
            threading.Thread(target=trickle, args=(connection,), daemon=True).start()

    def trickle(connection: socket.socket) -> None:
        try:
            # A client of SSH speaks first, too. Then the start of a long packet, or TLS record.
            ssh = connection.recv(4) == b"SSH-"
            connection.sendall(SSH_START if ssh else TLS_START)
            while not ended.wait(0.1):
                connection.sendall(b"x")
        except OSError:
            pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    ended.set()
    # Closing alone does not wake a thread that waits in accept.
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for connection in open_ones:
        connection.close()
    thread.join(5)


@pytest.mark.parametrize("scheme", ["https", "ssh"])
def test_a_server_that_trickles_is_given_up_at_the_deadline(
    trickling: str, scheme: str, tmp_path: Path
) -> None:
    source = open_source(f"{scheme}://{trickling}/fleet", tmp_path, timeout_s=1.5)
    start = time.monotonic()
    with pytest.raises(GitError):
        source.fetch()
    assert 1.4 < time.monotonic() - start < 10, "the deadline is hard, and nothing else ended it"
    source.close()


def test_a_remote_that_is_gone_is_told_and_the_mirror_stays(
    repo: pygit2.Repository, tmp_path: Path
) -> None:
    source = open_source(f"file://{repo.workdir}", tmp_path)
    try:
        source.fetch()
        head = source.resolve(None)
        shutil.rmtree(repo.workdir)
        with pytest.raises(GitError, match="look at the path in the URL"):
            source.fetch()
        assert source.resolve(None) == head
        assert source.load(head).placements
    finally:
        source.close()


def test_the_fetching_process_ends_with_its_source(repo: pygit2.Repository, tmp_path: Path) -> None:
    source = open_source(f"file://{repo.workdir}", tmp_path)
    source.fetch()
    fetcher = source._fetcher
    assert fetcher is not None
    child = fetcher._child
    assert child is not None
    source.close()
    assert child.poll() is not None


def test_no_module_of_the_folder_we_stand_in_is_imported(
    repo: pygit2.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory is the fleet repo, and a pull request may put a pygit2.py there."""
    trap = tmp_path / "trap"
    write(trap, {"pygit2.py": f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(1)\n"})
    monkeypatch.chdir(trap)
    source = open_source(f"file://{repo.workdir}", tmp_path)
    try:
        source.fetch()
    finally:
        source.close()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("authentication failed: no key is accepted", "auth"),
        ("remote rejected authentication", "auth"),
        ("unexpected http status code: 401", "auth"),
        ("the SSL certificate is invalid", "auth"),
        ("failed to connect to forge.example: Connection refused", "fetch"),
    ],
)
def test_what_a_fetch_failed_of_is_told_apart(message: str, code: str) -> None:
    assert failure(message, "https://forge.example/x", 20)["code"] == code
    assert issubclass(AuthenticationFailed, GitError)


def test_a_commit_whose_object_is_damaged_is_a_git_error(
    repo: pygit2.Repository, source: Source
) -> None:
    revision = source.resolve(None)
    tree = repo[revision.commit].peel(pygit2.Tree)
    oid = str(tree["catalog"].id)  # type: ignore[attr-defined]
    path = Path(repo.path) / "objects" / oid[:2] / oid[2:]
    path.chmod(0o644)
    path.write_bytes(b"garbage")
    with pytest.raises(GitError, match="git cannot read it"):
        open_source(repo.workdir, path.parent).load(revision)


def test_a_catalog_that_is_a_file_is_an_empty_catalog(
    repo: pygit2.Repository, source: Source
) -> None:
    """Nothing of the fleet may be told from a path that is not what it seems."""
    shutil.rmtree(Path(repo.workdir) / "catalog")
    commit(repo, {"catalog": CATALOG})
    said = as_text(source.check(source.resolve(None)).findings)
    assert "profile 'llama-h100' does not exist" in said


def test_a_folder_of_its_own_that_only_looks_near_is_a_warning(
    repo: pygit2.Repository, source: Source
) -> None:
    commit(repo, {"notes/x.yaml": "a: 1"})
    source.load(source.resolve(None))
    assert [f.warning for f in source.findings] == [True]
