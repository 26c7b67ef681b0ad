"""Fetching a remote into a bare mirror, in a child process that can be ended.

libgit2 hangs on a silent server unless timeouts are set, and then still on one that trickles; a
thread in it cannot be ended, a process can. The child is kept for the next fetch, because starting
Python and loading pygit2 costs more than asking a remote whether anything is new. It reads one line
of JSON per request and answers with one.

The parent half (`Fetcher`) never touches the network; the child half (`main`) never decides.
"""

from __future__ import annotations

import fcntl
import json
import netrc
import os
import selectors
import shutil
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from reconciler.core.secrets import MASK
from reconciler.errors import GitError
from reconciler.fleet import fetch_errors
from reconciler.fleet.findings import escape, quoted

MAX_ANSWER = 1 << 20
"""Bytes of one answer of the child."""

MAX_PACKS = 40
"""Packs in a mirror before they are written into one: many small ones slow every read."""

MAX_PAUSE_S = 60.0
"""Between two fetches that fail: the first is tried again after a second, then half as often."""

SERVER_TIMEOUT_MS = 20_000
"""libgit2's own limit on silence; the hard deadline is the parent's."""


def has_password(url: str) -> bool:
    """Whether a URL holds a password: `https://user:token@host/…`."""
    return ":" in urllib.parse.urlsplit(url).netloc.rpartition("@")[0]


def shown_url(url: str) -> str:
    """`url` as messages may show it: forges take a token also as the user or in the query."""
    parts = urllib.parse.urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if at and (":" in user or parts.scheme != "ssh"):
        host = f"{MASK}@{host}"
    elif at:
        host = parts.netloc
    query = MASK if parts.query else ""
    return urllib.parse.urlunsplit((parts.scheme, host, parts.path, query, ""))


class AuthenticationFailed(GitError):
    """The remote does not let us in, or shows a host key that is not known."""


class Fetcher:
    """The parent's side: one child, one mirror, a hard deadline on each fetch."""

    def __init__(
        self,
        url: str,
        mirror: Path,
        timeout_s: float,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url
        self.mirror = mirror
        self.timeout_s = timeout_s
        self._clock_s = clock_s
        self._failures = 0
        self._problem: tuple[float, GitError] | None = None
        """Until when a remote that failed is left alone, and what is told meanwhile."""
        self.anew = False
        """The mirror was found damaged: the next fetch makes it again."""
        self._child: subprocess.Popen[bytes] | None = None

    def fetch(self) -> bool:
        """Make the mirror equal to the remote; whether anything changed. GitError.

        A remote that fails is left alone for a while, and the same is told: passes come every two
        seconds while something moves, each would wait for the deadline, and a forge that is asked
        with a wrong key at that rate locks the account.
        """
        if self._problem is not None and self._clock_s() < self._problem[0]:
            raise self._problem[1].with_traceback(None)
        try:
            changed = self._fetch()
        except GitError as error:
            self._failures += 1
            pause_s = min(MAX_PAUSE_S, 2.0 ** min(self._failures - 1, 10))
            self._problem = (self._clock_s() + pause_s, error)
            raise
        self._failures, self._problem = 0, None
        return changed

    def _fetch(self) -> bool:
        request = {"url": self.url, "mirror": str(self.mirror), "anew": self.anew}
        try:
            self.mirror.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            answer = self._ask(json.dumps(request).encode() + b"\n")
        except OSError as error:
            hint = "look at the disk of the cache folder, or set RECONCILE_CACHE_DIR"
            answer = {"message": f"{self.mirror}: {error.strerror}", "hint": hint}
        if answer.get("ok") is True:
            self.anew = False
            return bool(answer.get("changed", True))
        kind = AuthenticationFailed if answer.get("code") == "auth" else GitError
        hint = str(answer.get("hint") or "")
        message = str(answer.get("message")).replace(self.url, shown_url(self.url))
        raise kind(f"repo {quoted(shown_url(self.url))}", escape(message), hint)

    def close(self) -> None:
        """End the child at once."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _ask(self, line: bytes) -> dict[str, Any]:
        deadline = time.monotonic() + self.timeout_s
        child = self._child
        if child is None or child.poll() is not None:
            self.close()
            child = self._child = self._spawn()
        assert child.stdin is not None
        try:
            child.stdin.write(line)
            child.stdin.flush()
            answer = self._read_line(child, deadline)
        except OSError as error:
            answer = None
            reason = f"the fetching process ended: {error.strerror}"
        except ValueError:
            answer = None
            reason = "the fetching process said what is no answer"
        else:
            reason = f"no answer within {self.timeout_s:g} s"
        if answer is None:
            self.close()
            return {
                "message": reason,
                "hint": "look at the network, or raise RECONCILE_FETCH_TIMEOUT",
            }
        return answer

    def _spawn(self) -> subprocess.Popen[bytes]:
        # -P: the folder we stand in is the fleet repo, and no module of it must be imported.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "reconciler.fleet.fetcher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def _read_line(self, child: subprocess.Popen[bytes], deadline: float) -> dict[str, Any] | None:
        """One answer; None past the deadline or where the child has ended."""
        assert child.stdout is not None
        got = b""
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while b"\n" not in got:
                left = deadline - time.monotonic()
                if left <= 0 or len(got) > MAX_ANSWER or not selector.select(left):
                    return None
                chunk = os.read(child.stdout.fileno(), 65536)
                if not chunk:
                    raise OSError(0, "without an answer")
                got += chunk
        answer = json.loads(got)
        return answer if isinstance(answer, dict) else None


# --- the child --------------------------------------------------------------------------------


def main() -> None:
    """Answer requests until stdin ends."""
    for line in sys.stdin.buffer:
        request = json.loads(line)
        answer = _fetch(request["url"], Path(request["mirror"]), request["anew"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _fetch(url: str, mirror: Path, anew: bool) -> dict[str, Any]:
    import pygit2

    revoked = fetch_errors.revoked(url)
    if revoked is not None:
        return revoked
    pygit2.settings.owner_validation = False
    pygit2.settings.server_connect_timeout = SERVER_TIMEOUT_MS
    pygit2.settings.server_timeout = SERVER_TIMEOUT_MS
    try:
        lock = os.open(f"{mirror}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return {"ok": False, "message": f"{mirror}.lock: {error.strerror}"}
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _fetch_locked(pygit2, url, mirror, anew)
    except (_Remote, pygit2.GitError, KeyError, ValueError) as error:
        return fetch_errors.failure(str(error), url, SERVER_TIMEOUT_MS / 1000)
    except OSError as error:
        return {"ok": False, "message": f"{mirror}: {error.strerror}"}
    finally:
        os.close(lock)


class _Remote(Exception):
    """The remote does not answer or does not let us in: no fault of the mirror."""


def _fetch_locked(pygit2: Any, url: str, mirror: Path, anew: bool) -> dict[str, Any]:
    """A mirror that a power cut, a full disk or a person damaged is made again, beside the old one:
    it is a cache, and must not stop what it serves."""
    if not anew and (mirror / "HEAD").is_file():
        # Whatever it is that fails with this mirror, a whole one tells whether it was the mirror.
        with suppress(pygit2.GitError, KeyError, ValueError, OSError):
            return _update(pygit2, url, mirror)
    whole = mirror.with_name(f"{mirror.name}.new")
    _remove(whole)
    try:
        answer = _update(pygit2, url, whole)
        _remove(mirror)
        whole.rename(mirror)
    finally:
        _remove(whole)
    return answer


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _update(pygit2: Any, url: str, mirror: Path) -> dict[str, Any]:
    new = not mirror.exists()
    repo = pygit2.init_repository(str(mirror), bare=True) if new else pygit2.Repository(str(mirror))
    # What a killed fetch left behind: we hold the mirror's lock, so nobody is writing it.
    for left in [*mirror.rglob("*.lock"), *mirror.glob("objects/pack/*tmp*")]:
        left.unlink(missing_ok=True)
    remote = repo.remotes.create_anonymous(url)
    callbacks = _callbacks(pygit2)
    try:
        heads = remote.list_heads(callbacks=callbacks)
    except pygit2.GitError as error:
        raise _Remote(str(error)) from error
    wanted = {
        head.name: head.oid
        for head in heads
        if head.name.startswith(("refs/heads/", "refs/tags/")) and not head.name.endswith("^{}")
    }
    default = next((h.symref_target for h in heads if h.name == "HEAD"), None)
    present = {name: repo.references[name].target for name in repo.references}
    if not new and _same(pygit2, repo, wanted, present):
        return {"ok": True, "changed": False}
    # First, since a branch `a` stands in the way of a branch `a/b`.
    for name in set(present) - set(wanted):
        repo.references.delete(name)
    refspecs = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]
    remote.fetch(refspecs=refspecs, callbacks=callbacks)
    for name in list(repo.references):
        # A tag of a file or a folder: it names no revision, and with it libgit2 fetches no more.
        if not _is_commit(pygit2, repo, repo.references[name].target):
            repo.references.delete(name)
    if default:
        repo.set_head(default)
    _repack(repo, mirror)
    return {"ok": True, "changed": True}


def _same(pygit2: Any, repo: Any, wanted: dict[str, Any], present: dict[str, Any]) -> bool:
    """Whether every wanted reference is there with its object, or names no revision. KeyError."""
    return not set(present) - set(wanted) and all(
        # That it is there is no proof that it can be read; that it cannot be is one of damage.
        repo.odb.read_header(oid) if present.get(name) == oid else _is_no_commit(pygit2, repo, oid)
        for name, oid in wanted.items()
    )


def _is_no_commit(pygit2: Any, repo: Any, oid: Any) -> bool:
    return oid in repo and not _is_commit(pygit2, repo, oid)


def _is_commit(pygit2: Any, repo: Any, target: Any) -> bool:
    try:
        repo[target].peel(pygit2.Commit)
    except (pygit2.GitError, ValueError):
        return False
    return True


def _repack(repo: Any, mirror: Path) -> None:
    """One pack in place of many. Readers keep what they have open; a new look finds the new one."""
    packs = list(mirror.glob("objects/pack/pack-*.pack"))
    if len(packs) <= MAX_PACKS:
        return
    repo.pack()
    if not set(mirror.glob("objects/pack/pack-*.pack")) - set(packs):
        return
    for pack in packs:
        for part in (pack.with_suffix(".idx"), pack):
            part.unlink(missing_ok=True)


def _callbacks(pygit2: Any) -> Any:
    """Credentials in order: SSH's agent, then the usual key files; for HTTPS `~/.netrc`.

    No prompt, ever, and no password from a URL: it would stand in process lists and messages.
    """
    folder = Path.home() / ".ssh"
    keys = [p for n in ("id_ed25519", "id_ecdsa", "id_rsa") if (p := folder / n).is_file()]

    def public_half(key: Path) -> str | None:
        # Where the file is absent libssh2 works it out; a name of no file is an error to it.
        public = key.with_name(f"{key.name}.pub")
        return str(public) if public.is_file() else None

    class Callbacks(pygit2.RemoteCallbacks):  # type: ignore[misc]
        tried = 0

        def certificate_check(self, certificate: None, valid: bool, host: bytes) -> bool:
            # pygit2's own answer lets every SSH host key through. libgit2 (1.5 and newer) has
            # looked into known_hosts before it asks, and says in `valid` what it found there.
            return valid

        def credentials(self, url: str, username: str | None, allowed: Any) -> Any:
            user = username or "git"
            kinds = pygit2.enums.CredentialType
            if allowed & kinds.USERNAME and not allowed & kinds.SSH_KEY:
                return pygit2.Username(user)
            if allowed & kinds.USERPASS_PLAINTEXT:
                return self.password(urllib.parse.urlsplit(url).hostname or "")
            options = [pygit2.KeypairFromAgent(user)] if os.environ.get("SSH_AUTH_SOCK") else []
            options += [pygit2.Keypair(user, public_half(key), str(key), "") for key in keys]
            if not allowed & kinds.SSH_KEY or self.tried >= len(options):
                tried = [*(["ssh-agent"] if len(options) > len(keys) else []), *map(str, keys)]
                said = f"tried {', '.join(tried)}" if tried else "there is none to try"
                raise pygit2.GitError(
                    f"authentication failed: no key is accepted for user {user} ({said})"
                )
            self.tried += 1
            return options[self.tried - 1]

        def password(self, host: str) -> Any:
            self.tried += 1
            found = _netrc(host) if self.tried == 1 else None
            if found is None:
                why = "~/.netrc has no entry" if self.tried == 1 else "~/.netrc is not accepted"
                raise pygit2.GitError(f"authentication failed: {why} for {host}")
            return pygit2.UserPass(*found)

    return Callbacks()


def _netrc(host: str) -> tuple[str, str] | None:
    """User and password (or token) for `host`, where git and curl look for them too."""
    try:
        found = netrc.netrc(str(Path.home() / ".netrc")).authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return None
    return (found[0], found[2] or "") if found else None


if __name__ == "__main__":
    main()
