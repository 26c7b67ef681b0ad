"""Why a remote could not be fetched, in words that say what to do.

libgit2's own messages name neither the known_hosts line nor what to try, and a silent server is a
"syscall failure". The texts on the left are those of libgit2 1.9 with libssh2 and OpenSSL. The
first row that matches counts.
"""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path
from typing import Any

from reconciler.hostkeys import KnownHosts, host_name

AUTH, FETCH = "auth", "fetch"

_LOGIN = {
    "ssh": "look at the user in the URL, and at which of our keys the server lets in (ssh-agent, "
    "then ~/.ssh/id_ed25519, id_ecdsa, id_rsa without passphrase)",
    "https": "~/.netrc must have `machine HOST login USER password TOKEN` for the URL's host",
}
_CERTIFICATE = (
    "it must be for the URL's host and of an authority that this machine trusts (SSL_CERT_FILE "
    "names others); where it is, somebody answers in the server's place"
)
_SILENT = "is it git's server that listens there? look at the host and port in the URL"
_PATH = (
    "look at the path in the URL; a private repository that our login may not see reads the same"
)

_ROWS = (
    (r"authenti|credential|\b40[13]\b", AUTH, ""),
    (r"certificate", AUTH, _CERTIFICATE),
    (r"resolve address", FETCH, "look at the host's name in the URL"),
    (r"failed to connect|refused|unreachable", FETCH, "look at the host and port in the URL"),
    (r"timed out|temporarily unavailable|banner", FETCH, _SILENT),
    (r"not appear to be a git|find repository|resolve path|no such|\b404\b", FETCH, _PATH),
)
_OTHER = "`git ls-remote` of the URL may say more"

_HOST_KEY = re.compile(r"host ?key|known_hosts", re.IGNORECASE)
_MUTE = re.compile(r"timed out|temporarily unavailable", re.IGNORECASE)


def failure(message: str, url: str, timeout_s: float) -> dict[str, Any]:
    """The child's answer: code, message and hint. `timeout_s` is libgit2's limit on silence."""
    message = message.strip()
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "ssh" and _HOST_KEY.search(message):
        return _answer(AUTH, *_host_key(parts))
    for signs, code, hint in _ROWS:
        if re.search(signs, message, re.IGNORECASE):
            if _MUTE.search(message):
                message = f"it accepts connections and says nothing within {timeout_s:g} s"
            return _answer(code, message, hint or _LOGIN.get(parts.scheme, _OTHER))
    return _answer(FETCH, message, _OTHER)


def revoked(url: str) -> dict[str, Any] | None:
    """The answer where known_hosts gives the host a key that it revokes; None: it does not.

    libssh2 passes over `@revoked`, and which key the host shows is not told to us: so a revoked key
    must not stand there as the host's own at all.
    """
    parts = urllib.parse.urlsplit(url)
    lines = _known().revoked_of(_name(parts)) if parts.scheme == "ssh" else []
    if not lines:
        return None
    hint = "take the key's own line out of it, and put in the key that the host has now"
    return _answer(AUTH, "; ".join(lines), hint)


def _answer(code: str, message: str, hint: str) -> dict[str, Any]:
    return {"ok": False, "code": code, "message": message, "hint": hint}


def _host_key(parts: urllib.parse.SplitResult) -> tuple[str, str]:
    name, known = _name(parts), _known()
    keys = known.lookup(name)
    if keys:
        expected = " or ".join(f"{key.type} {key.fingerprint} ({key.source})" for key in keys)
        return (
            f"{name} shows another host key than {expected}",
            "if its key was changed, put the new one into ~/.ssh/known_hosts from a source that "
            "you trust; if it was not, somebody answers in its place",
        )
    said = known.why_none(name)
    return (
        f"no host key is known for {name}: ~/.ssh/known_hosts has none"
        + (f" ({said})" if said else ""),
        "put its key there from a source that you trust; keys are never learnt",
    )


def _known() -> KnownHosts:
    return KnownHosts([Path.home() / ".ssh" / "known_hosts"], [Path("/etc/ssh/ssh_known_hosts")])


def _name(parts: urllib.parse.SplitResult) -> str:
    return host_name(parts.hostname or "", parts.port or 22)
