"""The reconciler's own secrets: small files in one folder of this machine, read when one is sent.

Values go from here into a start's request and nowhere else: not into a log, a message or a result.
They are kept for one apply only, so that a rotated secret is the one that the next pass sends.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

from engines import secretref
from reconciler.errors import ReconcileError

MAX_BYTES = 64 * 1024
"""Of a value; the agent takes as much (`reconciler/agent/environment.py`)."""
MAX_TOTAL = 1024 * 1024
"""Of one start: a request has room for 8 MiB, its spec included."""

OTHERS = 0o077


class SecretError(ReconcileError):
    """A secret cannot be read or must not be used. Names the file, never what is in it."""


class SecretStore:
    """The folder; None where a caller has none, so that every secret is missing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def value(self, name: str) -> str:
        """The secret `name`: its file's text less one newline. SecretError says why not."""
        subject = f"secret {name}"
        if not secretref.NAME.fullmatch(name):
            raise SecretError(subject, "is no name of a secret", "name a file of the secret folder")
        if self.folder is None:
            raise SecretError(subject, "there is no folder of secrets", "set RECONCILE_SECRETS_DIR")
        path = self.folder / name
        subject += f" ({path})"
        try:
            data = _read(self.folder, name)
        except FileNotFoundError:
            hint = "put the value there, mode 0600, where the reconciler runs"
            raise SecretError(subject, "there is no such file", hint) from None
        except OSError as error:
            raise SecretError(subject, error.strerror or "cannot be read") from None
        except _Unfit as unfit:
            raise SecretError(subject, unfit.reason, unfit.hint) from None
        return _checked(subject, data)


class Snapshot:
    """Each secret read once: all ranks of a launch get one value, whatever is edited meanwhile.

    Safe from several threads.
    """

    def __init__(self, store: SecretStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: dict[str, str | SecretError] = {}

    def values(self, names: Sequence[str]) -> dict[str, str]:
        """The values by name. SecretError with everything that is wrong."""
        with self._lock:
            for name in names:
                if name not in self._known:
                    self._known[name] = self._read(name)
            read = {name: self._known[name] for name in names}
        wrong = [value for value in read.values() if isinstance(value, SecretError)]
        if len(wrong) == 1:
            raise wrong[0]
        if wrong:
            raise SecretError(f"{len(wrong)} secrets", "; ".join(map(str, wrong)))
        found = {name: value for name, value in read.items() if isinstance(value, str)}
        if sum(map(len, found.values())) > MAX_TOTAL:
            reason = f"{len(found)} of them have more than {MAX_TOTAL} bytes together"
            raise SecretError("secrets", reason, "name fewer of them in the profile")
        return found

    def lacks(self, names: Sequence[str]) -> str:
        """What is wrong with those of `names` that a start would be refused for; empty: nothing."""
        try:
            self.values(names)
        except SecretError as error:
            return str(error)
        return ""

    def _read(self, name: str) -> str | SecretError:
        try:
            return self._store.value(name)
        except SecretError as error:
            return error


class _Unfit(Exception):
    """A file that must not be used as a secret."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason, hint)
        self.reason, self.hint = reason, hint


def _read(folder: Path, name: str) -> bytes:
    """What the file holds, by descriptors: what was judged is what is read. OSError, _Unfit."""
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _refuse_open_to_others(f"the folder {folder}", os.fstat(inside).st_mode, f"700 {folder}")
        if stat.S_ISLNK(os.lstat(name, dir_fd=inside).st_mode):
            raise _Unfit("is a symbolic link, which may lead anywhere", "put the file itself there")
        # Without O_NONBLOCK the open of a pipe would wait for ever for somebody who writes.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(name, "rb", opener=lambda own, _: os.open(own, flags, dir_fd=inside)) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise _Unfit("is no regular file", "put the value into a file")
            _refuse_open_to_others("the file", mode, f"600 {folder / name}")
            return file.read(MAX_BYTES + 3)
    finally:
        os.close(inside)


def _refuse_open_to_others(what: str, mode: int, fix: str) -> None:
    if mode & OTHERS:
        raise _Unfit(f"{what} is open to others (mode {stat.S_IMODE(mode):04o})", f"chmod {fix}")


def _checked(subject: str, data: bytes) -> str:
    # Editors end files with a newline, and a token with one is refused by whoever checks it.
    value = data.removesuffix(b"\n").removesuffix(b"\r") if data.endswith(b"\n") else data
    if len(value) > MAX_BYTES:
        reason = f"has more than {MAX_BYTES} bytes"
        raise SecretError(subject, reason, "a secret is a key or a token, not a document")
    if not value:
        raise SecretError(subject, "is empty", "put the value into it")
    if b"\0" in value:
        raise SecretError(subject, "holds a NUL, which no variable can hold", "store it as text")
    if value.strip() != value:
        reason = "begins or ends with white space, beyond one newline at its end"
        raise SecretError(subject, reason, "take it out: it would be part of the value")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        # The error itself would quote the bytes.
        raise SecretError(subject, "is no UTF-8 text", "store it as text") from None
