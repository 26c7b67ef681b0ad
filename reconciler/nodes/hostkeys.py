"""Which host keys a node may show: from its document, or from known_hosts files; never learnt.

`paramiko.HostKeys` compares each line with all before it (0.9 s at 4,000 hosts), so the files are
read into a dict here. Only hashed names and patterns need a scan. Format: sshd(8), "SSH_KNOWN_HOSTS
FILE FORMAT". Lines of `@cert-authority` are passed over: host certificates are not supported.
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
    return KnownKey(fields[0], fields[1], source)


def host_name(address: str, port: int) -> str:
    """The name under which known_hosts files have a host."""
    return address if port == 22 else f"[{address}]:{port}"


class KnownHosts:
    """Known_hosts files, read once. A file that is absent has no lines."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._plain: dict[str, list[KnownKey]] = {}
        self._hashed: list[tuple[bytes, bytes, KnownKey]] = []
        self._patterns: list[tuple[list[str], KnownKey]] = []
        self._revoked: set[str] = set()
        self._found: dict[str, list[KnownKey]] = {}
        for path in paths:
            self._read(path)

    def lookup(self, name: str) -> list[KnownKey]:
        """All keys for `host` or `[host]:port`, revoked ones left out."""
        name = name.lower()
        if name not in self._found:
            found = list(self._plain.get(name, ()))
            found += [key for salt, digest, key in self._hashed if _hash(salt, name) == digest]
            found += [key for patterns, key in self._patterns if _matches(patterns, name)]
            self._found[name] = [key for key in found if key.base64 not in self._revoked]
        return self._found[name]

    def revoked(self, encoded: str) -> bool:
        """Whether a `@revoked` line has this key."""
        return encoded in self._revoked

    def _read(self, path: Path) -> None:
        try:
            text = path.read_text("utf-8", "replace")
        except OSError:
            return
        for number, line in enumerate(text.splitlines(), 1):
            fields = line.split()
            if not fields or fields[0].startswith("#"):
                continue
            marker = fields.pop(0) if fields[0].startswith("@") else ""
            if len(fields) < 3:
                continue
            try:
                key = parse_key(f"{fields[1]} {fields[2]}", f"{path}:{number}")
            except ValueError:
                # One bad line must not make all other hosts unknown.
                continue
            if marker == "@revoked":
                self._revoked.add(key.base64)
            elif not marker:
                self._add(fields[0], key)

    def _add(self, names: str, key: KnownKey) -> None:
        if names.startswith("|1|"):
            parts = names.split("|")
            try:
                salt, digest = base64.b64decode(parts[2]), base64.b64decode(parts[3])
            except (IndexError, binascii.Error):
                return
            self._hashed.append((salt, digest, key))
            return
        patterns = names.lower().split(",")
        if any(set(pattern) & set("*?!") for pattern in patterns):
            self._patterns.append((patterns, key))
            return
        for name in patterns:
            self._plain.setdefault(name, []).append(key)


def _hash(salt: bytes, name: str) -> bytes:
    return hmac.digest(salt, name.encode(), "sha1")


def _matches(patterns: list[str], name: str) -> bool:
    # fnmatch would read [host]:22 as a set of characters.
    escaped = [pattern.replace("[", "[[]") for pattern in patterns]
    if any(p.startswith("!") and fnmatchcase(name, p[1:]) for p in escaped):
        return False
    return any(fnmatchcase(name, p) for p in escaped if not p.startswith("!"))
