"""What `doctor` says of signatures: whether this reconciler asks for any, and whether head has one.

Who runs the daemon elsewhere may have given it other keys: this tells of the environment in which
it is asked, and says so by naming the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reconciler.errors import GitError
from reconciler.fleet.checked import Checked

if TYPE_CHECKING:
    from reconciler.cli.session import Session

ALLOWED, OPENPGP = "RECONCILE_ALLOWED_SIGNERS", "RECONCILE_OPENPGP_KEYS"


@dataclass(frozen=True)
class Signing:
    """Of one environment and one head."""

    keys: Mapping[str, str]
    """Variable → the file of keys that it names; empty: no signature is asked for here."""
    wanted: bool
    """The fleet repo asks for signatures (`history: signed`)."""
    commit: str = ""
    """Head; empty: there is none, by `unread`."""
    form: str = ""
    """SSH, OPENPGP or X509: of the signature that head carries; empty: it carries none of these."""
    checked: Checked | None = None
    """None: there is no head, or nothing to check it with."""
    unread: str = ""
    """Why there is no head to look at."""

    @property
    def findings(self) -> tuple[str, ...]:
        """What keeps a reconciler in this environment from acting on head."""
        if not self.keys and self.wanted:
            return (
                "fleet.yaml says `history: signed`, and no keys are given here to check a signature"
                f" with, so nothing is acted on: name them by {ALLOWED} or {OPENPGP}",
            )
        if self.checked is None:
            return ()
        words = f"head {self.commit[:10]}: {self.checked.words}"
        if not self.checked.at_commit:
            return (f"{words}; it is not acted on: sign a commit on top of it",)
        if not self.checked.now:
            return (
                f"{words}; it stays in force where it is, and does not come into force:"
                " sign a commit on top of it with a key that is valid",
            )
        return ()

    @property
    def line(self) -> str:
        """For people."""
        if not self.keys:
            asked = "not asked for: whoever can push to the branch decides what runs"
        else:
            asked = "asked for by " + ", ".join(f"{n} ({f})" for n, f in self.keys.items())
        return f"signatures: {asked}; {self._head}"

    @property
    def _head(self) -> str:
        if self.unread:
            return f"head cannot be looked at: {self.unread}"
        head = f"head {self.commit[:10]}"
        if self.checked is None:
            return f"{head} carries {f'one ({self.form}), unchecked' if self.form else 'none'}"
        if self.checked.at_commit and self.checked.now:
            return f"{head} is signed by {self.checked.who or self.checked.key}"
        return f"{head} has no good one"

    def to_json(self) -> dict[str, object]:
        """`signed`: null where it was not checked."""
        checked = self.checked
        good = None if checked is None else checked.at_commit and checked.now
        return {
            "asked_for": bool(self.keys),
            "keys": dict(self.keys),
            "wanted_by_fleet": self.wanted,
            "head": {
                "revision": self.commit,
                "signature": self.form,
                "signed": good,
                "by": (checked.who or checked.key) if checked else "",
                "why": checked.why if checked else self.unread,
            },
            "findings": list(self.findings),
        }


def look(session: Session, *, wanted: bool) -> Signing:
    """Checks head, or --ref, as a pass would. SettingsError where the keys must not be used."""
    from reconciler.fleet.signed import Unsigned, split

    settings, signers = session.settings, session.signers
    given = ((ALLOWED, settings.allowed_signers), (OPENPGP, settings.openpgp_keys))
    keys = {name: str(file) for name, file in given if file is not None}
    commit = ""
    try:
        commit = session.source.resolve(session.ref).commit
        raw = session.source.raw(commit)
    except GitError as error:
        return Signing(keys, wanted, commit, unread=str(error))
    name = ""
    with suppress(Unsigned):
        form = split(raw).form
        name = form.name if form is not None else "of an unknown kind"
    return Signing(keys, wanted, commit, name, signers.check(raw) if signers else None)
