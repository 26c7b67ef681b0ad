"""The environment of the control machine, read once, here and nowhere else.

Everything that a flag can say is a flag; the environment is for what belongs to the machine or the
account: where caches lie, who acts, whether to colour. Nodes never see any of it.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reconciler.errors import SettingsError

VARIABLES = {
    "RECONCILE_CACHE_DIR": "folder of mirrors, parsed files, last looks; default: the user's cache",
    "RECONCILE_OWNER": "name under which leases are taken; default: user@host and this clone",
    "RECONCILE_KNOWN_HOSTS": "known_hosts file in place of ~/.ssh/known_hosts",
    "RECONCILE_SSH_CONFIG": "ssh_config file instead of ~/.ssh/config",
    "RECONCILE_ALLOWED_SIGNERS": "allowed_signers file: only commits that they sign are obeyed",
    "RECONCILE_REVOKED_SIGNERS": "SSH keys (or a key revocation list) that are obeyed no more",
    "RECONCILE_OPENPGP_KEYS": "OpenPGP public keys: only commits that these sign are obeyed",
    "RECONCILE_ENDPOINTS_DIR": "folder in which endpoints are published; as --endpoints",
    "RECONCILE_ENDPOINTS_HOOK": "command that is run after a change of them; as --endpoints-hook",
    "RECONCILE_SECRETS_DIR": "folder of `reconciler:NAME` secrets, as --secrets; default: "
    "reconcile/secrets in the user's configuration folder",
    "RECONCILE_FETCH_TIMEOUT": "seconds that fetching a repo by its URL may take; default: 60",
    "NO_COLOR": "any text: no colours",
}
"""What is read, for `reconcile --help` and the documentation (HOME, USER, XDG_*_HOME too)."""


MAX_SECONDS = 86400


@dataclass(frozen=True)
class Settings:
    """What the machine and the account say."""

    home: Path
    user: str
    host: str
    cache_dir: Path
    secrets_dir: Path
    owner: str = ""
    fetch_timeout_s: float = 60.0
    """Hard deadline of one fetch; a first clone of a large fleet repo takes seconds."""
    known_hosts: Path | None = None
    ssh_config: Path | None = None
    allowed_signers: Path | None = None
    revoked_signers: Path | None = None
    openpgp_keys: Path | None = None
    endpoints_dir: Path | None = None
    endpoints_hook: str = ""
    color: bool = True

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """From `environ`, the process's own by default. SettingsError names the variable."""
        env = os.environ if environ is None else environ
        home = Path(env.get("HOME") or os.path.expanduser("~"))
        default = Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "reconcile"
        config = Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "reconcile"
        known_hosts = _file(env, "RECONCILE_KNOWN_HOSTS")
        return cls(
            home=home,
            user=env.get("USER") or _account(),
            host=socket.gethostname(),
            cache_dir=_absolute(env, "RECONCILE_CACHE_DIR") or default,
            secrets_dir=_absolute(env, "RECONCILE_SECRETS_DIR") or config / "secrets",
            owner=env.get("RECONCILE_OWNER", ""),
            fetch_timeout_s=_seconds(env, "RECONCILE_FETCH_TIMEOUT", cls.fetch_timeout_s),
            known_hosts=known_hosts,
            ssh_config=_file(env, "RECONCILE_SSH_CONFIG"),
            allowed_signers=_file(env, "RECONCILE_ALLOWED_SIGNERS"),
            revoked_signers=_file(env, "RECONCILE_REVOKED_SIGNERS"),
            openpgp_keys=_file(env, "RECONCILE_OPENPGP_KEYS"),
            endpoints_dir=_absolute(env, "RECONCILE_ENDPOINTS_DIR"),
            endpoints_hook=env.get("RECONCILE_ENDPOINTS_HOOK", ""),
            color=not env.get("NO_COLOR"),
        )


def _account() -> str:
    """By name; by number where it has none, as in a container that runs under any user id."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def child_environment(**values: str) -> dict[str, str]:
    """The environment of a program that we start on this machine: ours, with `values` on top."""
    return {**os.environ, **values}


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name)
    if not text:
        return default
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= MAX_SECONDS:
        reason = f"{text!r} is no number of seconds between 0 and {MAX_SECONDS}"
        raise SettingsError(name, reason, "write a number, such as 90")
    return found


def _absolute(env: Mapping[str, str], name: str) -> Path | None:
    """A relative path would mean another folder in each working directory."""
    text = env.get(name)
    if not text:
        return None
    path = Path(text)
    if not path.is_absolute():
        raise SettingsError(name, f"{text!r} is not absolute", "write the whole path")
    return path


def _file(env: Mapping[str, str], name: str) -> Path | None:
    path = _absolute(env, name)
    if path is not None and not path.is_file():
        raise SettingsError(name, f"there is no file {path}", "correct or unset the variable")
    return path
