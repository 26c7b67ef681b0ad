"""A commit apart: what was signed, the signature, and when it was made. Pure.

Format: git's own (Documentation/gitformat-signature): the signature stands in the header `gpgsig`,
continued by lines that begin with a blank, and signs the object without that header.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MAX_COMMIT = 4 << 20
MAX_SIGNATURE = 64 << 10


class Form(Enum):
    """By what a signature begins with."""

    SSH = "-----BEGIN SSH SIGNATURE-----"
    OPENPGP = "-----BEGIN PGP SIGNATURE-----"
    X509 = "-----BEGIN SIGNED MESSAGE-----"


@dataclass(frozen=True)
class Signed:
    """A commit as it is verified."""

    payload: bytes
    signature: bytes
    committed_s: int
    """Unix time, by the clock of whoever made the commit."""
    author: str = ""

    @property
    def form(self) -> Form | None:
        """None: of a kind that git does not make."""
        first = self.signature.split(b"\n", 1)[0].decode("ascii", "replace").strip()
        return next((form for form in Form if form.value == first), None)


class Unsigned(ValueError):
    """It has no signature, or more than one."""


def split(raw: bytes) -> Signed:
    """The parts of a raw commit object. Raises Unsigned."""
    if len(raw) > MAX_COMMIT:
        raise Unsigned(f"it is larger than {MAX_COMMIT >> 20} MiB")
    head, blank, body = raw.partition(b"\n\n")
    kept: list[bytes] = []
    found: list[list[bytes]] = []
    inside = False
    for line in head.split(b"\n"):
        if line.startswith(b" ") and inside:
            found[-1].append(line[1:])
            continue
        name, _, value = line.partition(b" ")
        inside = name in (b"gpgsig", b"gpgsig-sha256")
        if inside:
            found.append([value])
        else:
            kept.append(line)
    if not found:
        raise Unsigned("it is not signed")
    signature = b"\n".join(found[0]) + b"\n"
    if len(found) > 1 or len(signature) > MAX_SIGNATURE:
        raise Unsigned("it has more than one signature, or a very long one")
    headers = dict(reversed([line.split(b" ", 1) for line in kept if b" " in line]))
    author = headers.get(b"author", b"").split(b" <")[0].decode("utf-8", "replace")
    payload = b"\n".join(kept) + blank + body
    return Signed(payload, signature, _time(headers.get(b"committer", b"")), author)


def _time(committer: bytes) -> int:
    """Of `Name <mail> 1700000000 +0100`. Raises Unsigned."""
    parts = committer.rsplit(b" ", 2)
    if len(parts) != 3 or not parts[1].isdigit() or len(parts[1]) > 11:
        raise Unsigned("it does not say when it was made")
    return int(parts[1])
