"""Under which name this process takes leases.

The name is stable for a machine, an account and a fleet repo, so that a daemon that was killed goes
on at once under its own unexpired lease when it is started again. That is only safe while no second
process of that name lives: a file lock, which the kernel lifts with the process, sees to it, and
whoever does not get it acts under a name of its own and meets the first one's lease.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from reconciler.errors import SettingsError
from reconciler.settings import Settings


@dataclass
class Owner:
    """A name, and what holds it."""

    name: str
    cache_file: Path | None
    """Where last looks are kept; None: the name is for this process only."""
    lock: IO[bytes] | None = None

    def close(self) -> None:
        """Let another process have the name."""
        if self.lock is not None:
            self.lock.close()
            self.lock = None


def claim(settings: Settings, location: str) -> Owner:
    """The stable name if no other process has it, else one of this process alone."""
    folder = settings.cache_dir / "owners"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        stem = _stem(settings, folder, location)
        lock = (folder / f"{stem}.lock").open("ab")
    except OSError as error:
        raise SettingsError(
            f"cache folder {settings.cache_dir}",
            f"cannot be used: {error.strerror or error}",
            "make it writable, or set RECONCILE_CACHE_DIR to another one",
        ) from error
    base = settings.owner or f"{settings.user}@{settings.host}/{stem}"
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return Owner(f"{base}/{os.getpid()}-{secrets.token_hex(2)}", None)
    return Owner(base, folder / f"{stem}.looks.json", lock)


def _stem(settings: Settings, folder: Path, location: str) -> str:
    """Differs by machine (a shared home, a cloned image), account and repo."""
    seed = folder / f"{settings.host}.id"
    try:
        with os.fdopen(os.open(seed, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(16))
    except FileExistsError:
        pass
    text = f"{seed.read_bytes().hex()}\0{settings.user}\0{settings.owner}\0{location}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]
