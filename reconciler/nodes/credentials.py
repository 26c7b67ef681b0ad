"""With which keys a connection is tried: identity files (with their certificates), then ssh-agent.

Agents are asked, never forwarded. A passphrase is never asked for: an encrypted key works through
ssh-agent. Keys are read once and kept; none of them is ever part of a message, only its name is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import paramiko

from reconciler.nodes.endpoint import DEFAULT_KEYS, Endpoint

MAX_ATTEMPTS = 5
"""sshd's MaxAuthTries is 6; the one after it costs the connection."""
AGENT_S = 5.0
"""An agent that does not list its keys in this time is left out (it may wait for a person)."""


@dataclass(frozen=True)
class Candidate:
    """A key to try, and how messages name it."""

    label: str
    key: paramiko.PKey


class Credentials:
    """The keys of one pool."""

    def __init__(
        self,
        home: Path,
        open_agent: Callable[[], AbstractContextManager[tuple[paramiko.PKey, ...]]] | None = None,
    ) -> None:
        self._home = home
        self._open_agent = open_agent or agent_keys
        self._files: dict[Path, Candidate | str] = {}
        self._lock = threading.Lock()

    def candidates(self, endpoint: Endpoint, notes: list[str]) -> Generator[Candidate]:
        """Keys in the order to try them; why one cannot be used goes to `notes`.

        Close it when a key was accepted: ssh-agent signs over a connection that lives until then.
        """
        defaults = [self._home / ".ssh" / name for name in DEFAULT_KEYS]
        files = endpoint.identity_files or tuple(path for path in defaults if path.exists())
        encrypted = False
        left = MAX_ATTEMPTS
        for path in files:
            found = self._file(path)
            if isinstance(found, str):
                notes.append(found)
                encrypted = encrypted or "encrypted" in found
            elif left:
                left -= 1
                yield found
        if endpoint.identities_only and not encrypted:
            return
        with self._open_agent() as keys:
            for key in keys:
                if not left:
                    notes.append("ssh-agent has more keys than sshd lets us try")
                    return
                if not endpoint.identities_only or _is_one_of(key, files):
                    left -= 1
                    yield Candidate(f"ssh-agent {key.get_name()} {key.fingerprint}", key)

    def _file(self, path: Path) -> Candidate | str:
        with self._lock:
            if path not in self._files:
                self._files[path] = _load(path)
            return self._files[path]


def _load(path: Path) -> Candidate | str:
    try:
        key = paramiko.PKey.from_path(path)
    except FileNotFoundError:
        return f"{path} does not exist"
    except PermissionError:
        return f"{path} cannot be read"
    except (paramiko.PasswordRequiredException, TypeError):
        # `cryptography` answers a missing passphrase with TypeError.
        return f"{path} is encrypted: load it with ssh-add"
    except (paramiko.SSHException, ValueError, paramiko.pkey.UnknownKeyType) as error:
        kind = type(error).__name__
        return f"{path} is no private key that can be used ({kind})"
    return Candidate(f"{path} {key.fingerprint}", key)


def _is_one_of(key: paramiko.PKey, files: tuple[Path, ...]) -> bool:
    """Whether the public half beside an identity file is this key (what IdentitiesOnly means)."""
    for path in files:
        public = path.with_name(path.name + ".pub")
        if public.exists() and key.get_base64() in public.read_text("utf-8", "replace"):
            return True
    return False


@contextmanager
def agent_keys() -> Iterator[tuple[paramiko.PKey, ...]]:
    """Keys of the ssh-agent that SSH_AUTH_SOCK names; they can sign until the block is left.

    Each call opens a connection of its own and closes it: paramiko's agent client is not safe to
    share between threads, has no timeout, and leaves its socket to the garbage collector.
    """
    asked = _AgentQuestion()
    thread = threading.Thread(target=asked.ask, name="ssh-agent", daemon=True)
    thread.start()
    thread.join(AGENT_S)
    try:
        yield asked.keys
    finally:
        asked.close()


class _AgentQuestion:
    """One connection to ssh-agent. Whoever comes last closes it: `ask` may outlive the wait."""

    def __init__(self) -> None:
        self.keys: tuple[paramiko.PKey, ...] = ()
        self._agent: paramiko.Agent | None = None
        self._over = False
        self._lock = threading.Lock()

    def ask(self) -> None:
        try:
            agent = paramiko.Agent()
        except (paramiko.SSHException, OSError):
            return
        with self._lock:
            if not self._over:
                self._agent, self.keys = agent, tuple(agent.get_keys())
                return
        agent.close()

    def close(self) -> None:
        with self._lock:
            self._over = True
            agent, self._agent = self._agent, None
        if agent is not None:
            agent.close()
