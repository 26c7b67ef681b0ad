"""Which host keys a machine may show: a document's, or those of known_hosts files; never learnt.

`paramiko.HostKeys` compares each line with all before it (0.9 s at 4,000 hosts), so the files are
read into a dict here. Only hashed names and patterns need a scan. Format: sshd(8), "SSH_KNOWN_HOSTS
FILE FORMAT". A key of a `@revoked` line is refused for every host, whoever else vouches for it. One
of `@cert-authority` signs certificates of hosts, which are not supported: it is no host's own key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path


@dataclass(frozen=True)
class KnownKey:
    """A key that a host may show; `source` says who said so."""

    type: str
    base64: str
    source: str

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` shows it."""
        return fingerprint(base64.b64decode(self.base64))


def fingerprint(blob: bytes) -> str:
    """`SHA256:…` of a public key."""
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


def parse_key(text: str, source: str) -> KnownKey:
    """`ssh-ed25519 AAAA… [comment]`. Raises ValueError with what is wrong."""
    fields = text.split()
    if len(fields) < 2:
        raise ValueError("a host key is a type and its base64, `ssh-ed25519 AAAA…`")
    try:
        blob = base64.b64decode(fields[1], validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error
    length = int.from_bytes(blob[:4], "big")
    if blob[4 : 4 + length] != fields[0].encode():
        raise ValueError(f"the key is not of type {fields[0]}")
    # Spare bits of base64 may be written in several ways, and keys are compared as text.
    return KnownKey(fields[0], base64.b64encode(blob).decode(), source)


def host_name(address: str, port: int) -> str:
    """The name under which known_hosts files have a host."""
    return address if port == 22 else f"[{address}]:{port}"


class KnownHosts:
    """Known_hosts files, read once. A file that is absent has no lines."""

    def __init__(self, paths: Iterable[Path], revoking: Iterable[Path] = ()) -> None:
        """Of `revoking` only the `@revoked` lines count."""
        self._plain: dict[str, list[KnownKey]] = {}
        self._hashed: list[tuple[bytes, bytes, KnownKey]] = []
        self._patterns: list[tuple[list[str], KnownKey]] = []
        self._revoked: dict[str, str] = {}
        self._authorities: list[tuple[str, KnownKey]] = []
        self._found: dict[str, list[KnownKey]] = {}
        read = list(paths)
        for path in read:
            self._read(path)
        for path in revoking:
            if path not in read:
                self._read(path, only="@revoked")

    def lookup(self, name: str) -> list[KnownKey]:
        """All keys for `host` or `[host]:port`, revoked ones left out."""
        name = name.lower()
        if name not in self._found:
            self._found[name] = [k for k in self._all(name) if k.base64 not in self._revoked]
        return self._found[name]

    def revoked(self, encoded: str) -> str:
        """The file and line that revokes this key; empty: none does."""
        return self._revoked.get(encoded, "")

    def revoked_of(self, name: str) -> list[str]:
        """Each line that gives `host` or `[host]:port` a key that is revoked, in words."""
        return [
            f"{key.source} has {key.fingerprint}, which {self._revoked[key.base64]} revokes"
            for key in self._all(name.lower())
            if key.base64 in self._revoked
        ]

    def why_none(self, name: str) -> str:
        """What the files say of a host of which they have no key that counts; empty: nothing."""
        said = self.revoked_of(name)
        said += [
            f"{key.source} names an authority of host certificates, which are not supported"
            for names, key in self._authorities
            if _names(names, name.lower())
        ]
        return "; ".join(said)

    def _all(self, name: str) -> list[KnownKey]:
        found = list(self._plain.get(name, ()))
        found += [key for salt, digest, key in self._hashed if _hash(salt, name) == digest]
        return found + [key for patterns, key in self._patterns if _matches(patterns, name)]

    def _read(self, path: Path, only: str = "") -> None:
        try:
            text = path.read_text("utf-8", "replace")
        except OSError:
            return
        for number, line in enumerate(text.splitlines(), 1):
            fields = line.split()
            if not fields or fields[0].startswith("#"):
                continue
            marker = fields.pop(0) if fields[0].startswith("@") else ""
            if len(fields) < 3 or (only and marker != only):
                continue
            try:
                key = parse_key(f"{fields[1]} {fields[2]}", f"{path}:{number}")
            except ValueError:
                # One bad line must not make all other hosts unknown.
                continue
            if marker == "@revoked":
                self._revoked[key.base64] = key.source
            elif marker == "@cert-authority":
                self._authorities.append((fields[0], key))
            elif not marker:
                self._add(fields[0], key)

    def _add(self, names: str, key: KnownKey) -> None:
        if names.startswith("|1|"):
            salted = _salted(names)
            if salted is not None:
                self._hashed.append((*salted, key))
            return
        patterns = names.lower().split(",")
        if any(set(pattern) & set("*?!") for pattern in patterns):
            self._patterns.append((patterns, key))
            return
        for name in patterns:
            self._plain.setdefault(name, []).append(key)


def _salted(names: str) -> tuple[bytes, bytes] | None:
    """(salt, digest) of a hashed name; None where it is damaged."""
    parts = names.split("|")
    try:
        return base64.b64decode(parts[2]), base64.b64decode(parts[3])
    except (IndexError, binascii.Error):
        return None


def _names(names: str, name: str) -> bool:
    """Whether the first field of a line, of any form, names the host."""
    if names.startswith("|1|"):
        salted = _salted(names)
        return salted is not None and _hash(salted[0], name) == salted[1]
    return _matches(names.lower().split(","), name)


def _hash(salt: bytes, name: str) -> bytes:
    return hmac.digest(salt, name.encode(), "sha1")


def _matches(patterns: list[str], name: str) -> bool:
    # fnmatch would read [host]:22 as a set of characters.
    escaped = [pattern.replace("[", "[[]") for pattern in patterns]
    if any(p.startswith("!") and fnmatchcase(name, p[1:]) for p in escaped):
        return False
    return any(fnmatchcase(name, p) for p in escaped if not p.startswith("!"))
