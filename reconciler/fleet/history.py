"""The commits of a repository: which a ref names, what came before it, who wrote a line.

Everything is read from the object database. An object that should be there and is not, or cannot be
read, is told apart from a ref that names nothing: a mirror can be fetched anew, a slip cannot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pygit2
from pygit2.enums import SortMode

from reconciler.core.model import Revision
from reconciler.errors import DamagedRepo, GitError
from reconciler.fleet.fetcher import Fetcher, shown_url
from reconciler.fleet.findings import listed, nearest, quoted
from reconciler.fleet.root import fleet_of

_COMMIT_ID = re.compile(r"[0-9a-f]{40}")

MAX_PARENTS = 1_000_000
"""Commits looked at for the first one; a longer history reads as unknown."""


class History:
    """The commits of one repository."""

    def __init__(
        self, repo: pygit2.Repository | None, folder: Path | None, fetcher: Fetcher | None
    ) -> None:
        self._repo = repo
        self._folder = folder
        """The fleet's folder in a working tree; None for a bare repository or a mirror."""
        self._fetcher = fetcher
        self._roots: dict[str, str] = {}

    def resolve(self, ref: str | None) -> Revision:
        """The commit that `ref` (a branch, tag or commit; None: HEAD) names. GitError.

        A branch comes before a tag of the same name: whoever may push tags must not be able to move
        what is followed.
        """
        repo = self._need_repo()
        try:
            if ref is None:
                if repo.head_is_unborn:
                    raise self._unborn()
                name = "HEAD" if repo.head_is_detached else repo.head.shorthand
                commit = repo.head.peel(pygit2.Commit)
            else:
                name = ref
                commit = repo.revparse_single(self._branch_first(ref)).peel(pygit2.Commit)
        except (KeyError, ValueError, TypeError, pygit2.GitError) as error:
            raise self._no_ref("HEAD" if ref is None else ref, error) from error
        return Revision(str(commit.id), ref=name, root_commit=self._root_of(str(commit.id)))

    def ancestors(self, commit: str) -> Iterator[Revision]:
        """`commit` and the commits before it, newest first. GitError."""
        repo = self._need_repo()
        try:
            for found in repo.walk(commit, SortMode.TOPOLOGICAL | SortMode.TIME):
                yield Revision(str(found.id), root_commit=self._root_of(commit))
        except (KeyError, ValueError, pygit2.GitError) as error:
            self._distrust()
            raise git_error(f"commit {commit}", error) from error

    def raw(self, commit: str) -> bytes:
        """The commit object as it is stored, which is what was signed. GitError."""
        repo = self._need_repo()
        try:
            return bytes(repo[commit].peel(pygit2.Commit).read_raw())
        except (KeyError, ValueError, pygit2.GitError) as error:
            self._distrust()
            raise git_error(f"commit {commit}", error) from error

    def fork_point(self, one: str, other: str) -> str:
        """The newest commit in the history of both; empty where they share none. GitError."""
        repo = self._need_repo()
        try:
            found = repo.merge_base(one, other)
        except (KeyError, ValueError, pygit2.GitError) as error:
            raise git_error(f"commits {one[:10]} and {other[:10]}", error) from error
        return str(found) if found else ""

    def blame(self, revision: Revision, file: str, line: int) -> tuple[str, str] | None:
        """Who wrote a line: (commit, author). None where git does not know (a new file)."""
        repo = self._need_repo()
        try:
            text = repo.revparse_single(f"{revision.commit}:{file}").peel(pygit2.Blob).data
            if line > text.count(b"\n") + 1:
                return None
            hunks = repo.blame(
                file, newest_commit=pygit2.Oid(hex=revision.commit), min_line=line, max_line=line
            )
            hunk = hunks.for_line(line)
            author = repo[hunk.final_commit_id].peel(pygit2.Commit).author
        except (KeyError, ValueError, IndexError, pygit2.GitError):
            return None
        return str(hunk.final_commit_id), author.name

    def _branch_first(self, ref: str) -> str:
        """`ref` by its full name where it is a branch; a whole commit id is always a commit."""
        full = f"refs/heads/{ref}"
        if _COMMIT_ID.fullmatch(ref) or ref == "HEAD" or not pygit2.reference_is_valid_name(full):
            return ref
        return full if full in self._need_repo().references else ref

    def _root_of(self, commit: str) -> str:
        """The first commit by first parents; empty where the history is cut (a shallow clone)."""
        repo = self._need_repo()
        if repo.is_shallow:
            return ""
        seen, current = [], commit
        for _ in range(MAX_PARENTS):
            if current in self._roots:
                current = self._roots[current]
                break
            seen.append(current)
            try:
                parents = repo[current].peel(pygit2.Commit).parent_ids
            except (KeyError, ValueError, pygit2.GitError) as error:
                self._distrust()
                raise git_error(f"commit {current}", error) from error
            if not parents:
                break
            current = str(parents[0])
        else:
            return ""
        self._roots[commit] = current
        return current

    def _need_repo(self) -> pygit2.Repository:
        if self._repo is not None:
            return self._repo
        if self._fetcher is not None:
            raise GitError(
                f"repo {quoted(shown_url(self._fetcher.url))}",
                "it was never fetched",
                "fetch it first",
            )
        is_fleet = self._folder is not None and fleet_of(self._folder) is not None
        hint = "run 'git init' there and commit"
        if not is_fleet:
            hint = (
                "go to the fleet repo or give it with --repo; for a new one 'reconcile init', then"
                " 'git init' and a commit"
            )
        raise GitError(f"repo {self._folder}", "it is not a git repository", hint)

    def _unborn(self) -> GitError:
        names = self._names()
        if not names:
            return GitError("HEAD", "the repository has no commit yet", "commit the fleet repo")
        hint = f"name one by --ref: there are {listed(names)}"
        return GitError("HEAD", "it names a branch that has no commit", hint)

    def _no_ref(self, ref: str, error: Exception) -> GitError:
        names = self._names()
        hint = nearest(ref, names) or (f"there are: {listed(names)}" if names else str(error))
        if self._need_repo().is_shallow:
            hint = "this clone is shallow: fetch all of it (in a workflow `fetch-depth: 0`)"
        elif ref == "HEAD" or ref in names:
            # It is there, so the commit behind it is what is missing.
            self._distrust()
            return git_error(f"ref {quoted(ref)}", error)
        return GitError(f"ref {quoted(ref)}", "it names no commit", hint)

    def _names(self) -> list[str]:
        """Branches and tags, without what git puts before them."""
        try:
            return [r.split("/", 2)[-1] for r in self._need_repo().references]
        except pygit2.GitError:
            return []

    def _distrust(self) -> None:
        """What was just read is damaged: a mirror is fetched whole the next time."""
        if self._fetcher is not None:
            self._fetcher.anew = True


def git_error(subject: str, error: Exception) -> GitError:
    text = str(error).strip("'\"") or type(error).__name__
    if "unknown object format" in text:
        message = "its objects are named by SHA-256, which is not read yet"
        return GitError(subject, message, "use a repository with SHA-1 names, git's default")
    hint = "look at the repository with git fsck"
    return DamagedRepo(subject, f"git cannot read it: {text}", hint)
