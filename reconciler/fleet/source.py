"""One fleet repo: where its commits come from, and how a revision is read.

Revisions are read straight from the object database: no checkout, so no filter, hook or symbolic
link of the repo ever acts. A URL is kept as a bare mirror in the cache folder and fetched in a
child process with a hard deadline (fetcher.py): libgit2 waits for ever on a server that trickles.
"""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pygit2

from reconciler.core.model import Desired, Revision
from reconciler.errors import GitError, InvalidFleet
from reconciler.fleet.cache import SUFFIX, DocumentCache
from reconciler.fleet.fetcher import Fetcher, has_password, shown_url
from reconciler.fleet.findings import Finding, errors, quoted, summary
from reconciler.fleet.followed import Followed
from reconciler.fleet.history import History, git_error
from reconciler.fleet.limits import Limits
from reconciler.fleet.listing import list_folder, list_tree, read_blob, read_plain
from reconciler.fleet.load import Loaded, inventory, load
from reconciler.fleet.memory import Memory
from reconciler.fleet.repo import SourceFile
from reconciler.fleet.strays import at_top as strays_at_top
from reconciler.fleet.tree import choose, refused

URL = re.compile(r"(ssh|https|file)://[^\s\x00-\x1f]+", re.ASCII)
_OTHER_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SCP = re.compile(r"[A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+:(?!/)\S+")

RECENT = 3
"""Revisions that are kept as they were read: head, the one in force, and one before."""


class Source(History):
    """One repo: a path, or an `ssh://`, `https://` or `file://` URL."""

    def __init__(
        self,
        repo: pygit2.Repository | None,
        folder: Path | None,
        prefix: str,
        fetcher: Fetcher | None,
        followed: Followed,
    ) -> None:
        super().__init__(repo, folder, fetcher)
        self._prefix = prefix
        """The fleet's folder from the repository's top, with `/` at the end; empty: the top."""
        self._followed = followed
        self._recent: dict[str, Desired] = {}
        """By commit, the last read last: a mirror that is lost meanwhile costs no repair."""
        self._memory = Memory()
        self._cache_file: Path | None = None
        self._cache: DocumentCache | None = None
        """Read when the first revision is."""
        self._last: tuple[pygit2.Oid, Callable[..., Loaded], Loaded] | None = None
        """The tree that was read last, by which function, and what came of it."""
        self.limits = Limits()
        self.findings: tuple[Finding, ...] = ()
        """Of the last load, warnings among them."""

    @classmethod
    def open(cls, location: str, *, cache_dir: Path, timeout_s: float) -> Source:
        """The repo at `location`. Uses no network: `fetch` does. Raises GitError."""
        # Who owns a folder matters to programs that run what its configuration names. Reading the
        # object database runs nothing, and CI often checks out as another user.
        pygit2.settings.owner_validation = False
        if URL.fullmatch(location):
            if has_password(location):
                host = urllib.parse.urlsplit(location).hostname
                raise GitError(
                    f"repo {quoted(shown_url(location))}",
                    "the URL holds a password, which would stand in process lists and logs",
                    f"take it out of the URL and put it into ~/.netrc (machine {host} login … "
                    "password …); if others could read it, make a new one",
                )
            name = _name(location)
            mirror = cache_dir / f"{name}.git"
            fetcher = Fetcher(location, mirror, timeout_s)
            followed = Followed(cache_dir / f"{name}.followed.json")
            made = cls(_open_mirror(mirror), None, "", fetcher, followed)
            made._cache_file = cache_dir / f"{name}{SUFFIX}"
            return made
        if _OTHER_URL.match(location):
            raise GitError(
                f"repo {quoted(shown_url(location))}",
                "this kind of URL is not supported",
                "use ssh://, https:// or file:// (a blank in it is written %20), or a path",
            )
        if _SCP.fullmatch(location) and not Path(location).exists():
            host, _, path = location.partition(":")
            hint = f"write ssh://{host}/{path}"
            raise GitError(f"repo {quoted(location)}", "it is not a path or URL", hint)
        made = cls._open_path(Path(location), cache_dir)
        made._cache_file = cache_dir / f"{_name(str(Path(location).resolve()))}{SUFFIX}"
        return made

    @classmethod
    def _open_path(cls, path: Path, cache_dir: Path) -> Source:
        try:
            is_folder = path.is_dir()
        except OSError as error:
            raise GitError(f"repo {path}", f"cannot be read: {error.strerror}") from error
        if not is_folder:
            raise GitError(f"repo {path}", "no such folder", "give the folder of the fleet repo")
        followed = Followed(cache_dir / f"{_name(str(path.resolve()))}.followed.json")
        try:
            found = pygit2.discover_repository(str(path))
            if found is None:
                return cls(None, path.resolve(), "", None, followed)
            repo = pygit2.Repository(found)
        except pygit2.GitError as error:
            raise git_error(f"repo {path}", error) from error
        if repo.is_bare or repo.workdir is None:
            return cls(repo, None, "", None, followed)
        folder, top = path.resolve(), Path(repo.workdir).resolve()
        if folder.is_relative_to(Path(repo.path).resolve()):
            folder = top  # the repository's own folder (`.git`) stands for what it is of
        if not folder.is_relative_to(top):
            raise GitError(
                f"repo {path}",
                f"its working tree is {top} (core.worktree), which does not hold this folder",
                f"give {top}",
            )
        inside = folder.relative_to(top).as_posix()
        return cls(repo, folder, "" if inside == "." else f"{inside}/", None, followed)

    # --- revisions ---

    @property
    def has_remote(self) -> bool:
        """Whether `fetch` asks somebody what is newest; a path is as new as its last pull."""
        return self._fetcher is not None

    def fetch(self) -> None:
        """Take what the remote has, within the deadline; nothing to do for a path. GitError."""
        if self._fetcher is not None:
            changed = self._fetcher.fetch()
            if changed or self._repo is None:
                self._repo = _open_mirror(self._fetcher.mirror)

    def renew(self) -> bool:
        """Fetch all of it into a new mirror in place of a damaged one; False: there is no mirror,
        and a person's repository is not ours to repair. GitError: the old one stays."""
        if self._fetcher is None:
            return False
        self._distrust()
        self._fetcher.fetch()
        if self._repo is not None:
            # libgit2 keeps a pack open by its path for as long as anybody uses it: without this the
            # new pack, which has the same name, would be read as the old one.
            self._repo.free()
        self._repo, self._last, self._roots = _open_mirror(self._fetcher.mirror), None, {}
        return True

    def keep(self, ref: str | None, revision: Revision) -> None:
        """`revision`, found under `ref`, is in force: to be known when `ref` names nothing."""
        self._followed.put(ref, revision)

    def kept(self, ref: str | None) -> tuple[Revision, ...]:
        """What was in force under `ref` at last; under others where `ref` was never followed."""
        return self._followed.get(ref)

    def close(self) -> None:
        """End the child that fetches, if there is one."""
        if self._fetcher is not None:
            self._fetcher.close()

    # --- reading ---

    def load(self, revision: Revision) -> Desired:
        """The fleet at a commit. Raises InvalidFleet with every finding, or GitError."""
        try:
            found = self._checked(self.check(revision), str(revision))
        except GitError as error:
            return self._as_read(revision, error)
        self._recent.pop(revision.commit, None)
        self._recent = dict([*self._recent.items(), (revision.commit, found)][-RECENT:])
        return found

    def _as_read(self, revision: Revision, error: GitError) -> Desired:
        """As it was read before, where it cannot be read any more. Raises `error`."""
        found = self._recent.get(revision.commit)
        if found is None:
            raise error
        return replace(found, revision=revision)

    def load_inventory(self, revision: Revision) -> Desired:
        """Its Fleet and Node documents only: to look at the nodes under a revision that does not
        validate, never to act. Raises InvalidFleet or GitError."""
        try:
            return self._checked(self.check(revision, inventory), str(revision))
        except GitError as error:
            return self._as_read(revision, error)

    def holds(self, path: Path) -> bool:
        """Whether a file lies in the working tree, so that a commit can change it."""
        if self._repo is None or not self._repo.workdir:
            return False
        return path.resolve().is_relative_to(Path(self._repo.workdir).resolve())

    @property
    def has_worktree(self) -> bool:
        """Whether there is a working tree to load."""
        return self._folder is not None

    def load_worktree(self) -> Desired:
        """The fleet in the working tree; `revision.dirty` where it differs from HEAD."""
        loaded = self.check_worktree()
        return self._checked(loaded, f"working tree of {self._folder}")

    def check(self, revision: Revision, reader: Callable[..., Loaded] | None = None) -> Loaded:
        """As `load`, with the findings as a value. Raises GitError."""
        try:
            return self._check(revision, reader or load)
        except (KeyError, ValueError, pygit2.GitError) as error:
            self._distrust()
            raise git_error(f"commit {revision.commit}", error) from error

    def _check(self, revision: Revision, reader: Callable[..., Loaded]) -> Loaded:
        repo = self._need_repo()
        tree = self._fleet_tree(revision.commit)
        if tree is None:
            return load([], revision, found=[refused(self._prefix, "no such folder", "")])
        # Two commits with the same content need no work.
        last = self._last
        if last is not None and last[0] == tree.id and last[1] is reader:
            return _at(last[2], revision)
        entries, ids, complete = list_tree(repo, tree, self.limits)
        chosen = choose(entries, self.limits, complete=complete)
        files = [
            SourceFile(self._prefix + path, partial(read_blob, repo, ids[path]), str(ids[path]))
            for path in chosen.paths
        ]
        strays = [strays_at_top(path, read_blob(repo, ids[path])) for path in chosen.outside]
        found = self._placed((*chosen.findings, *filter(None, strays)))
        loaded = self._read(reader, files, revision, found, self._memory)
        self._last = (tree.id, reader, loaded)
        return loaded

    def _read(
        self,
        reader: Callable[..., Loaded],
        files: list[SourceFile],
        revision: Revision,
        found: Sequence[Finding],
        memory: Memory | None = None,
    ) -> Loaded:
        cache, limits = self._cache, self.limits
        if self._cache_file is not None and (cache is None or cache.limits != limits):
            cache = self._cache = DocumentCache.open(self._cache_file, limits)
        cache = cache or DocumentCache()
        loaded = reader(files, revision, limits=limits, found=found, memory=memory, cache=cache)
        cache.save()
        return loaded

    def check_worktree(self) -> Loaded:
        """As `load_worktree`, with the findings as a value. Raises GitError."""
        files, findings = self._read_worktree()
        return self._read(load, files, self._worktree_revision(files), findings)

    def is_dirty(self) -> bool:
        """Whether the working tree differs from a commit that is HEAD, valid or not. GitError."""
        files, _ = self._read_worktree()
        revision = self._worktree_revision(files)
        return revision.dirty and bool(revision.commit)

    def _read_worktree(self) -> tuple[list[SourceFile], list[Finding]]:
        if self._folder is None:
            raise GitError("repo", "it has no working tree", "name a commit with --ref")
        entries, complete = list_folder(self._folder, self.limits)
        chosen = choose(entries, self.limits, complete=complete)
        strays = [self._stray(self._folder / path, path) for path in chosen.outside]
        findings = list(self._placed((*chosen.findings, *filter(None, strays))))
        files = []
        for path in chosen.paths:
            try:
                raw = read_plain(self._folder / path, self.limits.file_bytes)
            except OSError as error:
                findings.append(
                    refused(self._prefix + path, f"cannot be read: {error.strerror}", "")
                )
                continue
            files.append(SourceFile(self._prefix + path, raw, str(pygit2.hash(raw))))
        return files, findings

    def _stray(self, file: Path, path: str) -> Finding | None:
        try:
            return strays_at_top(path, read_plain(file, self.limits.file_bytes))
        except OSError:
            return None  # whatever it is, it is not ours to read

    def _worktree_revision(self, files: list[SourceFile]) -> Revision:
        repo = self._repo
        if repo is None or repo.head_is_unborn:
            return Revision("", dirty=True)
        head = self.resolve(None)
        tree = self._fleet_tree(head.commit)
        if tree is None:
            return Revision(head.commit, head.ref, True, head.root_commit)
        entries, ids, _ = list_tree(repo, tree, self.limits)
        chosen = choose(entries, self.limits)
        committed = {self._prefix + path: str(ids[path]) for path in chosen.paths}
        present = {file.path: file.id for file in files}
        return Revision(head.commit, head.ref, committed != present, head.root_commit)

    def _fleet_tree(self, commit: str) -> pygit2.Tree | None:
        """The tree of the fleet's folder at a commit; None where the commit has no such folder."""
        tree = self._need_repo()[commit].peel(pygit2.Tree)
        for part in self._prefix.split("/")[:-1]:
            try:
                found = tree[part]
            except KeyError:
                return None
            if not isinstance(found, pygit2.Tree):
                return None
            tree = found
        return tree

    def _placed(self, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """Paths as git shows them: from the repository's top."""
        if not self._prefix:
            return findings
        return tuple(
            Finding(self._prefix + f.file, 0, 0, "", "", f.message, f.hint, f.reason, f.warning)
            for f in findings
        )

    def _checked(self, loaded: Loaded, subject: str) -> Desired:
        self.findings = loaded.findings
        if loaded.desired is None:
            bad = errors(loaded.findings)
            raise InvalidFleet(
                subject,
                f"it does not validate: {summary(bad)}",
                "'reconcile validate' shows them",
                findings=loaded.findings,
            )
        return loaded.desired


def _at(loaded: Loaded, revision: Revision) -> Loaded:
    desired = loaded.desired
    return replace(loaded, desired=replace(desired, revision=revision) if desired else None)


def _open_mirror(path: Path) -> pygit2.Repository | None:
    if not (path / "HEAD").is_file():
        return None
    try:
        return pygit2.Repository(str(path))
    except pygit2.GitError:
        return None


def _name(location: str) -> str:
    """Of its files in the cache folder."""
    return hashlib.sha256(location.encode()).hexdigest()[:24]
