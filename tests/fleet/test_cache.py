"""The cache of parsed files changes no result, whatever becomes of its file."""

from __future__ import annotations

import ast
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pygit2
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.core.model import Revision
from reconciler.fleet import cache
from reconciler.fleet.cache import MOST_REPOS, PARSER, STALE_S, DocumentCache, parser_stamp
from reconciler.fleet.limits import Limits
from reconciler.fleet.load import Loaded, load
from reconciler.fleet.repo import SourceFile
from reconciler.fleet.source import Source
from reconciler.fleet.strictyaml import Parsed, parse
from tests.fleet import test_example, test_recipes
from tests.fleet.repos import BASE, PLACEMENTS, commit, git, write
from tests.fleet.test_fuzz import BYTES
from tests.fleet.test_memory import EDITS
from tests.fleet.test_readers import VALID, edited
from tests.invalid import repo_file

LIMITS = Limits()
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
CASES = sorted(repo_file.CASES.glob("*.txt"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "x.documents"


def sources(files: Mapping[str, bytes]) -> list[SourceFile]:
    return [SourceFile(path, raw, str(pygit2.hash(raw))) for path, raw in files.items()]


def read(files: Mapping[str, bytes], kept: DocumentCache | None = None) -> Loaded:
    loaded = load(sources(files), Revision("0" * 40), cache=kept)
    if kept is not None:
        kept.save()
    return loaded


def reopened(file: Path) -> DocumentCache:
    return DocumentCache.open(file, LIMITS)


def there_and_back(file: Path, path: str, raw: bytes) -> tuple[Parsed, Parsed | None]:
    """What the parser makes of a file, and what another process is given for it."""
    parsed, kept = parse(path, raw, LIMITS), reopened(file)
    kept.put("id", parsed, len(raw))
    kept.save()
    return parsed, reopened(file).get("id", path)


def check_file(path: str, raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        parsed, kept = there_and_back(Path(folder) / "x.documents", path, raw)
    clean = parsed.complete and not parsed.findings and not parsed.aliases and parsed.values
    if clean and not any(document.odd for document in parsed.documents):
        # repr: to Python, True is 1.
        assert repr(kept) == repr(parsed)
    else:
        assert kept is None


# --- Equal results ------------------------------------------------------------------------------


@SLOW
@given(BYTES)
def test_any_bytes_are_given_back_as_they_were_parsed_or_not_at_all(raw: bytes) -> None:
    check_file("catalog/x.yaml", raw)


@SLOW
@given(st.data())
def test_any_documents_are_given_back_as_they_were_parsed(data: st.DataObject) -> None:
    kinds = st.sampled_from(sorted(VALID))
    documents = [data.draw(edited(data.draw(kinds))) for _ in range(data.draw(st.integers(1, 4)))]
    check_file("catalog/x.yaml", yaml.safe_dump_all(documents, allow_unicode=True).encode())


def trees() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Every fleet repo that the tests have, whole and broken."""
    yield "example", {path: text.encode() for path, text in test_example.files().items()}
    for name in test_recipes.NAMES:
        yield name, {path: text.encode() for path, text in test_recipes.files(name).items()}
    for case in CASES:
        yield case.stem, {path: blob.raw for path, blob in repo_file.read(case).tree().items()}


TREES = dict(trees())


@pytest.mark.parametrize("name", TREES)
def test_a_fleet_from_the_cache_is_the_fleet_and_its_findings_the_same(
    name: str, file: Path
) -> None:
    files = TREES[name]
    plain = read(files)
    assert read(files, reopened(file)) == plain
    again = reopened(file)
    assert read(files, again) == plain
    assert len(again.entries) > 0, "nothing was kept, so nothing is shown"


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(st.sampled_from(EDITS), min_size=1, max_size=3), max_size=6))
def test_it_changes_nothing_over_any_edits(steps: list[list[tuple[str, str]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        repo = git(Path(folder) / "fleet")
        commit(repo, BASE)
        for number, edits in enumerate([[], *steps]):
            commit(repo, dict(edits))
            caching, fresh = (
                Source.open(repo.workdir, cache_dir=Path(folder) / name, timeout_s=5)
                for name in ("kept", f"new-{number}")
            )
            revision = caching.resolve(None)
            assert caching.check(revision) == fresh.check(revision)
            assert caching.check_worktree() == fresh.check_worktree()


def test_a_file_that_is_known_is_not_read(file: Path) -> None:
    def never() -> bytes:
        raise AssertionError("read")

    plain = read({path: text.encode() for path, text in BASE.items()}, reopened(file))
    known = [SourceFile(s.path, never, s.id) for s in sources(TREES["example"])]
    read(TREES["example"], reopened(file))
    assert load(known, Revision("0" * 40), cache=reopened(file)).desired is not None
    assert plain.desired is not None


def test_one_content_at_two_paths_is_told_of_each(file: Path) -> None:
    files = {path: text.encode() for path, text in BASE.items()}
    files["placements/copy.yaml"] = files["placements/all.yaml"]
    read(files, reopened(file))
    found = read(files, reopened(file)).findings
    assert [(f.file, f.message) for f in found] == [
        (
            "placements/copy.yaml",
            "the name is defined twice: here and at placements/all.yaml:1",
        )
    ]


def test_the_working_tree_and_its_commit_share_it(tmp_path: Path) -> None:
    repo = git(tmp_path / "fleet")
    commit(repo, BASE)

    def source() -> Source:
        return Source.open(repo.workdir, cache_dir=tmp_path / "cache", timeout_s=5)

    source().load_worktree()
    first = source()
    assert first.load(first.resolve(None)) == source().load_worktree()
    (written,) = (tmp_path / "cache").glob("*.documents")
    assert set(reopened(written).entries) == {s.id for s in sources(raw(BASE))}


def raw(files: Mapping[str, str]) -> dict[str, bytes]:
    return {path: text.encode() for path, text in files.items()}


# --- A file that cannot be relied on ------------------------------------------------------------


@pytest.fixture
def written(file: Path) -> Path:
    read(raw(BASE), reopened(file))
    assert len(reopened(file).entries) == len(BASE)
    return file


def check_ignored(file: Path) -> None:
    """It reads as empty, and is put right by the next load."""
    assert reopened(file).entries == {}
    assert read(raw(BASE), reopened(file)) == read(raw(BASE))
    assert len(reopened(file).entries) == len(BASE)


def test_any_byte_that_is_damaged_empties_it(written: Path) -> None:
    whole = written.read_bytes()
    for at in range(0, len(whole), 7):
        written.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert reopened(written).entries == {}, at
    check_ignored(written)


@pytest.mark.parametrize("part", [0, 1, 0.3, 0.99])
def test_a_torn_file_is_replaced(written: Path, part: float) -> None:
    whole = written.read_bytes()
    written.write_bytes(whole[: part if part == 1 else int(len(whole) * part)])
    check_ignored(written)


def test_what_another_build_wrote_is_replaced(written: Path) -> None:
    stamp = parser_stamp(LIMITS)
    body = written.read_bytes().partition(b"\n")[2]
    written.write_bytes(cache._head("0" * len(stamp), body) + b"\n" + body)
    check_ignored(written)


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"x": 1}', b'{"x": [1, 2]}', b"[" * 100_000])
def test_a_body_of_another_shape_is_replaced(written: Path, body: bytes) -> None:
    written.write_bytes(cache._head(parser_stamp(LIMITS), body) + b"\n" + body)
    check_ignored(written)


def test_a_file_that_others_may_write_is_replaced(written: Path) -> None:
    written.chmod(0o620)
    check_ignored(written)
    assert written.stat().st_mode & 0o777 == 0o600


def test_a_link_is_not_followed(written: Path) -> None:
    other = written.rename(written.with_name("other"))
    written.symlink_to(other)
    before = other.read_bytes()
    check_ignored(written)
    assert not written.is_symlink()
    assert other.read_bytes() == before


def test_what_was_parsed_under_other_limits_does_not_count(tmp_path: Path) -> None:
    write(tmp_path / "fleet", BASE)

    def source() -> Source:
        return Source.open(str(tmp_path / "fleet"), cache_dir=tmp_path / "cache", timeout_s=5)

    opened = source()
    assert opened.check_worktree().desired is not None
    opened.limits = Limits(depth=1)
    for narrow in (opened, source()):
        narrow.limits = Limits(depth=1)
        assert narrow.check_worktree().desired is None
    assert source().check_worktree().desired is not None


def test_the_stamp_covers_every_module_that_the_parser_imports() -> None:
    folder = Path(cache.__file__).parent
    pending, found = ["strictyaml"], set[str]()
    while pending:
        name = pending.pop()
        found.add(name)
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                package, _, module = node.module.rpartition(".")
                if package == "reconciler.fleet" and module not in found:
                    pending.append(module)
    assert found == set(PARSER)


# --- The folder ---------------------------------------------------------------------------------


def test_only_its_owner_can_read_it(written: Path) -> None:
    assert written.stat().st_mode & 0o777 == 0o600
    assert written.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    write(tmp_path / "fleet", BASE)
    source = Source.open(str(tmp_path / "fleet"), cache_dir=tmp_path / "cache", timeout_s=5)
    assert source.load_worktree().placements.keys() == {"chat"}


def test_it_may_vanish_at_any_moment(written: Path) -> None:
    kept = reopened(written)
    written.unlink()
    written.parent.rmdir()
    changed = {**raw(BASE), "placements/all.yaml": PLACEMENTS.encode() + b"replicas: 2\n"}
    assert read(changed, kept) == read(changed)
    assert read(changed, reopened(written)) == read(changed)


def test_nothing_is_written_for_a_small_edit(written: Path) -> None:
    many = {f"catalog/{n}.yaml": f"kind: Model\nname: m{n}\n".encode() for n in range(200)}
    read({**raw(BASE), **many}, reopened(written))
    before = written.stat().st_ino
    many["catalog/7.yaml"] = b"kind: Model\nname: seven\n"
    assert read({**raw(BASE), **many}, reopened(written)) == read({**raw(BASE), **many})
    assert written.stat().st_ino == before


def test_it_does_not_grow_with_the_history(file: Path) -> None:
    files = raw(BASE)
    for number in range(20):
        files["placements/all.yaml"] = PLACEMENTS.encode() + f"replicas: {number}\n".encode()
        read(files, reopened(file))
    assert len(reopened(file).entries) <= 2 * len(files)


def test_one_value_that_is_used_often_is_not_written_often(file: Path) -> None:
    text = "kind: Model\nname: m\nlabels: &a {a: '%s'}\nx-a: [%s]\n"
    large = text % ("x" * 100_000, ", ".join(["*a"] * 5_000))
    parsed, kept = there_and_back(file, "catalog/x.yaml", large.encode())
    assert not parsed.findings
    assert kept is None
    assert not file.exists() or file.stat().st_size < 1000


def test_a_fleet_beyond_its_bound_is_kept_in_part(file: Path) -> None:
    kept = reopened(file)
    for number in range(12):
        body = f"kind: Model\nname: m{number}\nowner: {'x' * 1_000_000}\n".encode()
        kept.put(str(number), parse("x.yaml", body, LIMITS), len(body))
    kept.save()
    assert len(reopened(file).entries) == 8
    assert file.stat().st_size <= cache.MOST_ON_DISK


def test_old_caches_and_the_remains_of_dead_writers_are_removed(file: Path) -> None:
    file.parent.mkdir()
    long_ago = 1_000_000_000
    for number in range(MOST_REPOS + 5):
        old = file.parent / f"{number}.documents"
        old.touch()
        os.utime(old, (long_ago + number, long_ago + number))
    dead, busy = (file.with_name(f"x.documents.{name}.tmp") for name in ("dead", "busy"))
    other = file.parent / "mirror.git"
    for path in (dead, busy, other):
        path.touch()
    os.utime(dead, (busy.stat().st_mtime - STALE_S - 1,) * 2)
    read(raw(BASE), reopened(file))
    left = {path.name for path in file.parent.iterdir()}
    assert left == {
        *(f"{n}.documents" for n in range(6, MOST_REPOS + 5)),
        file.name,
        busy.name,
        other.name,
    }


def test_readers_and_writers_at_once_see_whole_caches_only(file: Path) -> None:
    plain = {name: read(TREES[name]) for name in ("example", *test_recipes.NAMES[:3])}
    wrong: list[str] = []

    def work(name: str) -> None:
        for _ in range(15):
            if read(TREES[name], reopened(file)) != plain[name]:
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in plain for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert reopened(file).entries
    assert [p.name for p in file.parent.iterdir()] == [file.name]
