"""Publishes the endpoints: reads what was published before, writes what changed, runs the hook.

The folder is the only memory, so a reconciler that starts over, or a one-shot pass, goes on where
the last one was. Nothing here raises for a full disk or a hook that fails: both are told in the
report and tried again at the next pass, and no pass waits for either.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from reconciler.core.endpoints import Endpoints, State, endpoints
from reconciler.core.model import Desired
from reconciler.core.observed import Observed
from reconciler.core.verdict import Diff
from reconciler.loop.hook import run_hook
from reconciler.report.endpoints import MAIN, rendered
from reconciler.report.endpoints.published import NewerFormat, read_published
from reconciler.report.passreport import EndpointCount, EndpointsStatus

HOOK_TIMEOUT_S = 10.0
LEASE_SHARE = 3
"""The hook gets no more than this part of the leases' life: its pass still has to act."""

MARKER = ".hook-done"
"""Holds the digest of what the hook has last ended well for; without it, the hook runs."""
LOCK = ".lock"


class CannotPublish(Exception):
    """The folder cannot be read or written, or is not ours."""


@dataclass(frozen=True)
class Publisher:
    """Where endpoints go, and what is run after a change."""

    folder: Path
    hook: tuple[str, ...] = ()
    hook_timeout_s: float = HOOK_TIMEOUT_S

    def publish(
        self,
        desired: Desired,
        observed: Observed,
        judged: Diff,
        *,
        leaving: Collection[str] = (),
        now: str,
    ) -> EndpointsStatus:
        """Bring the folder up to date. Never raises for what is outside this program."""
        try:
            with self._lock():
                before, note = self._before(desired.fleet.id)
                after = endpoints(desired, observed, judged, before, leaving=leaving, now=now)
                changed = self._write(rendered(after))
        except OSError as error:
            return self._failed(f"{error.filename or self.folder}: {error.strerror}")
        except CannotPublish as error:
            return self._failed(str(error))
        limit_s = min(self.hook_timeout_s, desired.fleet.lease_s / LEASE_SHARE)
        return EndpointsStatus(
            folder=str(self.folder),
            changed=changed,
            counts=_counts(after),
            kept=_kept(after),
            note=note,
            hook_error=self._run_hook(rendered(after)[MAIN], limit_s) if self.hook else "",
        )

    def _failed(self, why: str) -> EndpointsStatus:
        return EndpointsStatus(folder=str(self.folder), error=why)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """One writer: another one's list is as good as ours, so ours need not wait for it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CannotPublish(f"{self.folder}: another process publishes there") from None
            yield
        finally:
            os.close(fd)

    # --- Files --------------------------------------------------------------------------------

    def _before(self, fleet: str) -> tuple[Endpoints | None, str]:
        """What was published last, and a note where it could not be used.

        A file that cannot be *read* is no memory that was lost: then nothing is written.
        """
        path = self.folder / MAIN
        try:
            before = read_published(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None, ""
        except NewerFormat as error:
            raise CannotPublish(f"{path} {error}; it is left as it is") from error
        except ValueError as error:
            return None, f"{path} is damaged and was made anew: {error}"
        if before.fleet != fleet:
            raise CannotPublish(
                f"{path} is of fleet {before.fleet or 'none'}, not of {fleet}; one folder a fleet"
            )
        return before, ""

    def _write(self, files: dict[str, str]) -> bool:
        changed = False
        for name, text in files.items():
            path, data = self.folder / name, text.encode()
            try:
                same = path.read_bytes() == data
            except FileNotFoundError:
                same = False
            if not same:
                write_atomically(path, data)
                changed = True
        return changed

    # --- The hook -----------------------------------------------------------------------------

    def _run_hook(self, text: str, limit_s: float) -> str:
        digest = _digest(text, self.hook)
        marker = self.folder / MARKER
        with suppress(OSError, ValueError):
            if marker.read_text(encoding="ascii") == digest:
                return ""
        why = run_hook(self.hook, self.folder, limit_s)
        if why:
            return why
        try:
            write_atomically(marker, digest.encode())
        except OSError as error:
            return f"{marker}: {error.strerror}; the hook will run again"
        return ""


def write_atomically(path: Path, data: bytes) -> None:
    """The old content or the new one, never a part, also after a power cut."""
    fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o644)
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _digest(text: str, hook: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([text, *hook]).encode()).hexdigest()


def _counts(found: Endpoints) -> tuple[EndpointCount, ...]:
    """By served name and state; a name that is wanted counts its ready ones also where none is."""
    counts = Counter((name, e.state) for e in found.entries for name in e.names)
    for name in found.names:
        counts[(name, State.READY)] += 0
    return tuple(
        EndpointCount(name, state.value, number) for (name, state), number in sorted(counts.items())
    )


def _kept(found: Endpoints) -> tuple[str, ...]:
    return tuple(
        f"{e.replica} on {e.node}: {e.state.value} since {e.since} ({e.why})"
        for e in found.entries
        if e.state is not State.READY
    )
