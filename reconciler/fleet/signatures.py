"""Whether a commit is signed by one of those whom this reconciler was told to obey.

The keys are files of the reconciler's machine and never of the repo: whoever can merge there could
add a key. A key's time is judged twice, when the commit was made and now; what follows from the two
is the loop's to say (docs/adr/0010). A signature that cannot be checked is no signature.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reconciler.fleet import openpgp, sshsig
from reconciler.fleet.checked import Checked
from reconciler.fleet.signed import Form, Unsigned, split


@dataclass(frozen=True)
class Signers:
    """Whom to obey."""

    allowed: Path | None = None
    """SSH: allowed_signers (ssh-keygen(1), ALLOWED SIGNERS)."""
    revoked: Path | None = None
    """SSH: a key revocation list, or public keys one a line."""
    openpgp: Path | None = None
    """Public keys, as `gpg --export` writes them, with or without --armor; all are obeyed."""

    unix_s: Callable[[], float] = time.time
    """When keys end is compared with this."""

    def __bool__(self) -> bool:
        """Whether signatures are asked for."""
        return self.allowed is not None or self.openpgp is not None

    def check(self, raw: bytes) -> Checked:
        """Judge a raw commit object. Never raises."""
        try:
            signed = split(raw)
        except Unsigned as error:
            return Checked(why=str(error))
        match signed.form:
            case Form.SSH if self.allowed is not None:
                return sshsig.check(signed, self.allowed, self.revoked, self.unix_s())
            case Form.SSH:
                return Checked(
                    key=sshsig.key_of(signed.signature),
                    why="its signature is of SSH, and only OpenPGP keys are given"
                    " (RECONCILE_ALLOWED_SIGNERS names SSH keys)",
                )
            case Form.OPENPGP if self.openpgp is not None:
                return openpgp.check(signed, self.openpgp)
            case Form.OPENPGP:
                return Checked(
                    why="its signature is of OpenPGP, and only SSH keys are given"
                    " (RECONCILE_OPENPGP_KEYS names OpenPGP keys)"
                )
            case Form.X509:
                return Checked(why="its signature is of X.509, which is not checked here")
            case None:
                return Checked(why="its signature is of an unknown form")
