"""Head is no successor of the revision in force: what following it takes back, in words.

It is followed by default: `main` may be reverted or force-pushed, and that must be obeyed. It is
told loudly, because the same is seen where somebody acts from an old clone or from another branch.
"""

from __future__ import annotations

from itertools import islice

from reconciler.core.model import Revision
from reconciler.errors import GitError
from reconciler.loop.revisions import MAX_HISTORY
from reconciler.loop.seams import SourceLike
from reconciler.report.passreport import HeadError, HistoryTurn
from reconciler.report.words import SHORT_COMMIT, plural


def turn(source: SourceLike, force: str, head: Revision, history: list[str]) -> HistoryTurn:
    """What it means that `force` is not in the `history` of `head`."""
    old, new = force[:SHORT_COMMIT], f"{head.ref or 'HEAD'}@{head.commit[:SHORT_COMMIT]}"
    past = _past(source, force)
    if past is None:
        why = (
            "the history was rewritten, or somebody acted from a commit that is not pushed"
            if source.has_remote
            else "this clone is behind, or the history was rewritten"
        )
        told = f"{old}, the revision in force, is not in this repository: {why}"
        return HistoryTurn(force, head.commit, told, known=False)
    taken = len(set(past) - set(history))
    if head.commit in past:
        told = (
            f"{new} is older than {old}, the revision in force: it takes back"
            f" {plural(taken, 'commit')}"
        )
    else:
        told = (
            f"{old}, the revision in force, is not in the history of {new}, which is another branch"
            f" or was rewritten: it takes back {plural(taken, 'commit')}"
        )
    return HistoryTurn(force, head.commit, told)


def _past(source: SourceLike, commit: str) -> list[str] | None:
    try:
        return [r.commit for r in islice(source.ancestors(commit), MAX_HISTORY)]
    except GitError:
        return None


def behind(turned: HistoryTurn, head: Revision) -> HeadError:
    """Why a clone that does not know the revision in force is not acted on by itself.

    A remote has just said what is newest. A clone cannot: it is as new as its last `git pull`.
    """
    return HeadError(
        "HistoryRewritten",
        f"{turned.message}. A clone that is behind would roll the fleet back: `git pull` (in a"
        " workflow `fetch-depth: 0`), or look at the plan by --dry-run and apply it by --expect",
        str(head),
    )
