"""OpenPGP signatures, by `gpg` in a folder of its own that holds the given keys and nothing else.

Read are the lines of `--status-fd` (GnuPG's doc/DETAILS), never what gpg says to people. No web of
trust, no keyserver, no agent: the keys of the file are obeyed, each with its subkeys, and no other.
`gpgv` is not used: it looks at neither expiry nor revocation.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from reconciler.fleet.checked import Checked
from reconciler.fleet.program import NOT_FOUND, Ended, run_program
from reconciler.fleet.signed import Signed

PROGRAM = "gpg"
_ALONE = (
    *("--no-options", "--batch", "--no-tty", "--no-autostart", "--disable-dirmngr"),
    *("--no-auto-key-retrieve", "--no-auto-key-locate", "--no-auto-check-trustdb"),
    *("--trust-model", "always", "--status-fd", "1"),
)
_STATUS = "[GNUPG:] "
_MISSING_KEY = "9"
"""ERRSIG's code for a key that is not there."""


def check(signed: Signed, keys: Path) -> Checked:
    """Judge an OpenPGP signature. Never raises."""
    with tempfile.TemporaryDirectory(prefix="reconcile-") as home:
        base = [PROGRAM, "--homedir", home, *_ALONE]
        imported = run_program([*base, "--import", str(keys)])
        if imported.code == NOT_FOUND:
            return Checked(why=f"it cannot be checked: {imported.err}; install gnupg")
        if not _lines(imported, "IMPORT_OK"):
            return Checked(why=f"it cannot be checked: {keys} holds no OpenPGP key that gpg reads")
        file = Path(home, "signature")
        file.write_bytes(signed.signature)
        said = run_program([*base, "--verify", str(file), "-"], signed.payload)
        made = _made(said)
        ended = _lines(said, "EXPKEYSIG") or _lines(said, "EXPSIG")
        if made and ended and len(_lines(said, "NEWSIG")) == 1:
            listed = run_program([*base, "--with-colons", "--list-keys", f"{made[0]}!"])
            # Of a key that is revoked too, gpg's one word for the signature tells only the end.
            if not listed.ok or revoked(listed.out, made[0], made[-1]):
                return Checked(key=_key(made), who=_who(said), why="its key is revoked")
            until_s = expiry(listed.out, made[0], made[-1])
            if _lines(said, "EXPKEYSIG") or (until_s and until_s <= signed.committed_s):
                return _expired(said, signed, made, until_s)
    return judged(said)


def judged(said: Ended) -> Checked:
    """What gpg's status says of one signature whose key has not expired."""
    made = _made(said)
    key, who = _key(made), _who(said)
    if len(_lines(said, "NEWSIG")) > 1:
        return Checked(key=key, why="it has more than one signature")
    if _lines(said, "BADSIG"):
        bad = _lines(said, "BADSIG")[0]
        return Checked(key=f"OpenPGP key {bad[0]}", why="the signature does not fit the commit")
    if _lines(said, "REVKEYSIG"):
        return Checked(key=key, who=who, why="its key is revoked")
    if _lines(said, "ERRSIG"):
        lost = _lines(said, "ERRSIG")[0]
        known = len(lost) > 5 and lost[5] != _MISSING_KEY
        name = lost[6] if len(lost) > 6 and lost[6] != "-" else lost[0]
        why = "gpg cannot check its kind" if known else "its key is not among the given keys"
        return Checked(key=f"OpenPGP key {name}", why=why)
    if made and _lines(said, "EXPSIG"):
        why = "the signature itself has expired, by what its maker asked for"
        return Checked(at_commit=True, key=key, who=who, why=why)
    if made and _lines(said, "GOODSIG") and said.ok:
        return Checked(True, True, key, who)
    return Checked(key=key, why=f"gpg does not say that it is good (exit code {said.code})")


def _expired(said: Ended, signed: Signed, made: list[str], until_s: int) -> Checked:
    """A good signature whose key has expired since, or had when it was made."""
    last_s = max(signed.committed_s, int(made[2]))
    if until_s and last_s < until_s:
        why = "its key was valid when the commit was made and has expired since"
        return Checked(at_commit=True, key=_key(made), who=_who(said), why=why)
    why = "its key had expired when the commit was made"
    return Checked(key=_key(made), who=_who(said), why=why)


def expiry(colons: str, fingerprint: str, primary: str) -> int:
    """Unix time at which a key ends, itself or with its primary key; 0: never, or not known.

    Of `--with-colons`: records pub and sub (field 7: expiry), each before its fpr (field 10).
    """
    ends = (fields[6] for fields in _keys(colons, fingerprint, primary))
    return min((int(end) for end in ends if end.isdigit()), default=0)


def revoked(colons: str, fingerprint: str, primary: str) -> bool:
    """Whether a key or its primary key is revoked (field 2 of their records is `r`)."""
    return any(fields[1] == "r" for fields in _keys(colons, fingerprint, primary))


def _keys(colons: str, fingerprint: str, primary: str) -> list[list[str]]:
    """The pub and sub records of these two."""
    found: list[list[str]] = []
    last: list[str] = []
    for line in colons.splitlines():
        fields = line.split(":")
        if fields[0] in ("pub", "sub"):
            last = fields
        elif fields[0] == "fpr" and last and fields[9] in (fingerprint, primary):
            found.append(last)
    return found


def _made(said: Ended) -> list[str]:
    """VALIDSIG's fields: fingerprint, day, time, …, the primary key's fingerprint; or nothing."""
    found = _lines(said, "VALIDSIG")
    whole = len(found) == 1 and len(found[0]) >= 10 and found[0][2].isdigit()
    return found[0][:10] if whole else []


def _key(made: list[str]) -> str:
    if not made:
        return ""
    part = f", a subkey of {made[-1]}" if made[-1] != made[0] else ""
    return f"OpenPGP key {made[0]}{part}"


def _who(said: Ended) -> str:
    for word in ("GOODSIG", "EXPKEYSIG", "EXPSIG", "REVKEYSIG"):
        for fields in _lines(said, word):
            return " ".join(fields[1:])
    return ""


def _lines(said: Ended, word: str) -> list[list[str]]:
    """The fields of each status line of this kind."""
    start = f"{_STATUS}{word} "
    # Not splitlines: a name or a notation may hold what Unicode calls a line's end.
    found = (line for line in said.out.split("\n") if f"{line} ".startswith(start))
    return [line[len(start) :].split(" ") for line in found]
