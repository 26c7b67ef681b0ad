"""SSH signatures, by `ssh-keygen -Y` as git uses it (PROTOCOL.sshsig; needs OpenSSH 8.8).

git gives ssh-keygen the commit's time as `verify-time`, in local time like the times in
allowed_signers; so does this, and asks a second time for now.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from reconciler.fleet.checked import Checked
from reconciler.fleet.program import NOT_FOUND, Ended, run_program
from reconciler.fleet.signed import Signed

PROGRAM = "ssh-keygen"
NAMESPACE = "git"
MAX_PRINCIPALS = 16


def check(signed: Signed, allowed: Path, revoked: Path | None, now_s: float) -> Checked:
    """Judge an SSH signature. Never raises."""
    key = key_of(signed.signature)
    with tempfile.TemporaryDirectory(prefix="reconcile-") as folder:
        file = Path(folder, "signature")
        file.write_bytes(signed.signature)
        one = _Question(signed, file, allowed, revoked)
        then, who_then, why_then = one.ask(signed.committed_s)
        now, who_now, why_now = one.ask(now_s)
    if then and now:
        return Checked(True, True, key, who_now)
    if then:
        why = f"its key was valid when the commit was made and no longer is ({why_now})"
        return Checked(True, False, key, who_then, why)
    if now:
        why = f"its key is valid now and was not when the commit was made ({why_then})"
        return Checked(False, True, key, who_now, why)
    return Checked(False, False, key, "", why_now)


class _Question:
    """The same signature, asked about at two times."""

    def __init__(self, signed: Signed, file: Path, allowed: Path, revoked: Path | None) -> None:
        self._signed, self._file, self._allowed, self._revoked = signed, file, allowed, revoked

    def ask(self, at_s: float) -> tuple[bool, str, str]:
        """Good, whose, why not."""
        at = f"-Overify-time={time.strftime('%Y%m%d%H%M%S', time.localtime(at_s))}"
        found = self._run("find-principals", at)
        if not found.ok:
            empty = f"{self._allowed} holds no key"
            listed = "its key is not among the allowed signers"
            return False, "", _why(found, listed if holds_a_key(self._allowed) else empty)
        why = ""
        for principal in found.out.splitlines()[:MAX_PRINCIPALS]:
            argv = ("-n", NAMESPACE, "-I", principal, at)
            good = self._run("verify", *argv)
            if good.ok and self._revoked is not None:
                if self._run("verify", *argv, "-r", str(self._revoked)).ok:
                    return True, principal, ""
                return False, "", "its key is revoked"
            if good.ok:
                return True, principal, ""
            why = _refusal(good)
        return False, "", why or "its key is not among the allowed signers"

    def _run(self, what: str, *options: str) -> Ended:
        base = [PROGRAM, "-Y", what, "-f", str(self._allowed), "-s", str(self._file)]
        return run_program([*base, *options], self._signed.payload)


def holds_a_key(allowed: Path) -> bool:
    """Whether any line of an allowed_signers file is one: principals, options, key type, key.

    True where it cannot be read: ssh-keygen says that better.
    """
    try:
        lines = allowed.read_text("utf-8", "replace").splitlines()
    except OSError:
        return True
    return any(_KEY.search(line) for line in lines if not line.lstrip().startswith("#"))


_KEY = re.compile(r"\s(ssh-|ecdsa-|sk-)[\w@.-]+\s+AAAA[\w+/=]+")
"""Every SSH key begins with the length of its type's name, in base64 `AAAA`."""


def _why(ended: Ended, otherwise: str) -> str:
    """For people: what ssh-keygen said where that is more than `otherwise`."""
    if ended.code == NOT_FOUND:
        return f"it cannot be checked: {ended.err}; install openssh-client"
    told = [line for line in ended.err.splitlines() if _tells(line)]
    return f"{otherwise}: {told[0]}" if told else otherwise


def _refusal(ended: Ended) -> str:
    """Why a signature by a listed key is not accepted."""
    if "incorrect signature" in ended.err:
        return "the signature does not fit the commit"
    return _why(ended, "ssh-keygen does not accept its key")


_TELLING = ("expired", "not yet valid", "Unable to open", "not permitted", "ended after", "option")
"""Of ssh-keygen's messages, those that say more than that it failed."""


def _tells(line: str) -> bool:
    return any(word in line for word in _TELLING)


def key_of(signature: bytes) -> str:
    """`SSH key SHA256:…` of the key that a signature says it is by; empty: it says none."""
    lines: Sequence[bytes] = signature.strip().splitlines()[1:-1]
    try:
        blob = base64.b64decode(b"".join(lines), validate=True)
    except (binascii.Error, ValueError):
        return ""
    size = int.from_bytes(blob[10:14], "big")
    if blob[:6] != b"SSHSIG" or not 0 < size <= len(blob) - 14:
        return ""
    digest = hashlib.sha256(blob[14 : 14 + size]).digest()
    return f"SSH key SHA256:{base64.b64encode(digest).decode().rstrip('=')}"
