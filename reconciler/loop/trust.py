"""Which commits may say anything, where this reconciler asks for signatures (docs/adr/0010).

Head is acted on if its signature is good and its key was valid when it was made and is now. What
is in force goes on being repaired when its key ends. Nothing unsigned tells even where to look:
whoever can push it would choose where we log in.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import islice

from reconciler.errors import GitError
from reconciler.fleet.checked import Checked
from reconciler.loop.head import Head
from reconciler.loop.revisions import MAX_HISTORY, LeaseFacts
from reconciler.loop.seams import SignersLike, SourceLike
from reconciler.report.passreport import HeadError
from reconciler.report.words import plural

REASON = "SignatureInvalid"
_OBEYED = "only commits that the keys of this reconciler sign are obeyed: sign one on top of it"


class Trust:
    """The keys and the repo, for one pass: each commit is checked once."""

    def __init__(self, signers: SignersLike | None, source: SourceLike, ref: str | None) -> None:
        self._signers, self._source = signers, source
        self._own = {r.commit for r in source.kept(ref)} if signers else set()
        """What this reconciler put in force itself: it was checked then, and is not looked up."""
        self._checked: dict[str, Checked] = {}
        self._past: frozenset[str] | None = None

    @property
    def asked(self) -> bool:
        """Whether signatures are asked for."""
        return self._signers is not None

    def vouches(self, commit: str) -> bool:
        """Whether `commit` may be gone on with: it was signed when it was made, or was in force."""
        return not self.asked or commit in self._own or self._check(commit).at_commit

    def judge(self, head: Head) -> Head:
        """`head` as far as its signature lets it: without its state where nobody vouches for it."""
        revision = head.revision
        if not self.asked or head.desired is None or revision is None:
            return head
        if revision.dirty or not revision.commit:
            return _refused(head, "what is not committed is signed by nobody")
        checked = self._check(revision.commit)
        if not checked.at_commit:
            return _refused(head, checked.words)
        return head if checked.now else replace(head, ended=checked.words)

    def doubt(self, head: Head, force: str) -> str:
        """Why a pass that acts would refuse the commit of a working tree that is only looked at;
        empty: it would not. What is not committed yet, nobody can have signed."""
        commit = head.revision.commit if head.revision else ""
        if not self.asked or not commit:
            return ""
        checked = self._check(commit)
        if checked.at_commit and (checked.now or commit == force):
            return ""
        return f"acting on {commit[:10]} would be refused ({REASON}): {checked.words}; {_OBEYED}"

    def trusts(self, commit: str, head: Head) -> bool:
        """Whether somebody vouches for `commit`, or for `head`, before which it was."""
        return self.vouches(commit) or commit in self._before(head)

    def facts(self, head: Head, facts: LeaseFacts) -> tuple[LeaseFacts, tuple[str, ...]]:
        """What the leases name, without what nobody vouches for.

        A node that lies, or an unsigned branch, must not choose what repairs go on from.
        """
        good = {c: n for c, n in facts.revisions.items() if self.trusts(c, head)}
        notes = tuple(
            f"{commit[:10]}, which {plural(nodes, 'node')} named as in force, is not gone on with:"
            f" {self._check(commit).words}"
            for commit, nodes in facts.revisions.items()
            if commit not in good
        )
        return replace(facts, revisions=good), notes

    def _before(self, head: Head) -> frozenset[str]:
        """What comes before a head that is signed, whether or not it validates."""
        commit = head.revision.commit if head.revision else ""
        if self._past is None:
            self._past = frozenset()
            if commit and self.vouches(commit):
                with suppress(GitError):
                    found = islice(self._source.ancestors(commit), MAX_HISTORY)
                    self._past = frozenset(revision.commit for revision in found)
        return self._past

    def _check(self, commit: str) -> Checked:
        if commit not in self._checked:
            assert self._signers is not None
            try:
                self._checked[commit] = self._signers.check(self._source.raw(commit))
            except GitError as error:
                self._checked[commit] = Checked(why=str(error))
        return self._checked[commit]


def _refused(head: Head, why: str) -> Head:
    return Head(head.revision, None, HeadError(REASON, f"{why}; {_OBEYED}", str(head.revision)))


def ended(head: Head, force: str) -> Head:
    """A key that has ended puts nothing new in force, and takes nothing back that is."""
    if not head.ended or (head.revision and head.revision.commit == force):
        return head
    return _refused(head, head.ended)
