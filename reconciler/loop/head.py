"""Reading head: fetch, resolve, load, with every failure as a value that names who and where.

A bad commit must be told loudly and must not end a pass, because repairs go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from reconciler.core.model import Desired, Revision
from reconciler.errors import DamagedRepo, GitError, InvalidFleet
from reconciler.loop.seams import SourceLike
from reconciler.report.passreport import WORKTREE, Finding, HeadError

MAX_WALK = 1_000
"""Commits looked at for one whose inventory validates: a fleet broken for longer needs a person."""


@dataclass(frozen=True)
class Head:
    """What git has: a whole desired state, or why not."""

    revision: Revision | None = None
    desired: Desired | None = None
    error: HeadError | None = None
    ended: str = ""
    """Who signed it could sign then and no more: it may stay in force, and not come into force."""


def read_head(source: SourceLike, ref: str | None, *, worktree: bool = False) -> Head:
    """Fetch, resolve and load; every failure is a value that names commit, author and line.

    A failed fetch is told, and what was fetched before is worked on.
    """
    fetch_error = None
    try:
        source.fetch()
    except GitError as error:
        fetch_error = HeadError(git_reason(error), str(error))
    try:
        return _read(source, ref, fetch_error, worktree=worktree)
    except DamagedRepo as error:
        damage = (error.subject, error.reason, error.hint)
    try:
        if fetch_error is None and source.renew():
            return _read(source, ref, None, worktree=worktree)
    except GitError as error:
        damage = (*damage[:2], f"to fetch it anew failed: {error}")
    told = DamagedRepo(*damage)
    return Head(error=fetch_error or HeadError(git_reason(told), str(told)))


def _read(
    source: SourceLike, ref: str | None, fetch_error: HeadError | None, *, worktree: bool
) -> Head:
    """Resolve and load. Raises DamagedRepo; what else is wrong is in the value."""
    revision = None
    try:
        if worktree:
            desired = source.load_worktree()
            return Head(desired.revision, desired, fetch_error)
        revision = source.resolve(ref)
        return Head(revision, source.load(revision), fetch_error)
    except InvalidFleet as error:
        return Head(revision, None, invalid_head(source, revision, error))
    except DamagedRepo:
        raise
    except GitError as error:
        return Head(revision, None, fetch_error or HeadError(git_reason(error), str(error)))


def git_reason(error: GitError) -> str:
    """The closed list's word for a git failure."""
    return "AuthenticationFailed" if "authenticat" in str(error).lower() else "FetchFailed"


def invalid_head(source: SourceLike, revision: Revision | None, error: InvalidFleet) -> HeadError:
    """An invalid revision with, for each finding, the commit and author of the line."""
    told = (f for f in error.findings if not getattr(f, "warning", False))
    findings = tuple(_told(source, revision, f) for f in told)
    errors = [f for f in findings if f.reason]
    author = next((f.author for f in errors if f.author), "")
    return HeadError(
        reason=errors[0].reason if errors else "SchemaFailed",
        message=error.reason,
        revision=str(revision) if revision else WORKTREE,
        author=author,
        findings=findings,
    )


def _told(source: SourceLike, revision: Revision | None, finding: object) -> Finding:
    """A finding of `reconciler/fleet/findings.py`, with who wrote the line."""
    file, line = getattr(finding, "file", ""), getattr(finding, "line", 0)
    by = None
    if revision is not None and file and line:
        try:
            by = source.blame(revision, file, line)
        except GitError:
            by = None
    path = getattr(finding, "path", "")
    subject = getattr(finding, "subject", "")
    return Finding(
        file=file,
        line=line,
        subject=f"{subject}: {path}" if path else subject,
        message=getattr(finding, "message", str(finding)),
        hint=getattr(finding, "hint", ""),
        reason=str(getattr(finding, "reason", "")),
        commit=by[0] if by else "",
        author=by[1] if by else "",
    )


def everybody(commit: str) -> bool:
    """No signatures are asked for."""
    return True


def inventory(
    source: SourceLike,
    head: Head,
    ref: str | None,
    vouched: Callable[[str], bool] = everybody,
) -> Desired | None:
    """The newest revision whose Fleet and Node documents validate: used to look, never to act.

    Where head names no commit, or nothing before it can be read: what was in force at last.
    """
    return _before(source, head.revision, vouched) or _kept(source, ref)


def _before(
    source: SourceLike, revision: Revision | None, vouched: Callable[[str], bool]
) -> Desired | None:
    if revision is None:
        return None
    try:
        for older in islice(source.ancestors(revision.commit), MAX_WALK):
            if not vouched(older.commit):
                continue
            if vouched is not everybody:
                # Who vouches for a commit vouches for those before it, and for no other.
                return _before(source, older, everybody)
            with suppress(InvalidFleet):
                return source.load_inventory(older)
    except GitError:
        pass
    return None


def _kept(source: SourceLike, ref: str | None) -> Desired | None:
    """What was in force under `ref`; where that was never followed, under other refs, if these
    are of one fleet: which of two fleets a misspelled ref meant is not ours to guess."""
    found = []
    for revision in source.kept(ref):
        with suppress(GitError, InvalidFleet):
            found.append(source.load_inventory(revision))
    return found[0] if len({desired.fleet.id for desired in found}) == 1 else None


MAX_OLDER = 100
"""Commits before head whose nodes are asked where those of head name no revision in force."""


def older_inventories(source: SourceLike, revision: Revision | None) -> Iterator[Desired]:
    """What the commits before `revision` say about nodes, newest first; broken ones are skipped."""
    if revision is None:
        return
    try:
        for older in islice(source.ancestors(revision.commit), 1, MAX_OLDER):
            try:
                yield source.load_inventory(older)
            except InvalidFleet:
                continue
    except GitError:
        return
