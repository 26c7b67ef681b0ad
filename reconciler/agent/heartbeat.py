"""The supervisor's pulse, written in place into the lock file it holds.

Health is asked every few seconds; a temp file, an fsync and a rename each time would wear out disks
for nothing. Writing in place into blocks that are already there also works on a full disk, so a
shard's end is told even then. A torn write reads as no heartbeat (check value); status.json is
what outlasts a power cut.
"""

from __future__ import annotations

import os
from typing import Optional

from . import store
from .store import Damaged
from .wire import Json

SIZE = 4096

CARRIED = ("boot_id", "phase", "exit", "health", "ever_ready", "restarts")
"""What a status.json that could not be written would otherwise hide."""


def write(lock_fd: int, beat: Json) -> bool:
    """Overwrite the heartbeat; whether it could be written."""
    data = store.seal(beat)
    if len(data) > SIZE:
        return False
    try:
        return os.pwrite(lock_fd, data + b" " * (SIZE - len(data)), 0) == SIZE
    except OSError:
        return False


def read(path: str, cache: Optional[store.Cache] = None) -> Optional[Json]:
    """The last heartbeat; None where there is none, or it is torn."""
    try:
        with store.open_plain(path) as file:
            data = file.read(SIZE)
    except OSError:
        return None
    beat: Optional[Json] = _parse(data) if cache is None else cache.parse(path, data, _parse)
    return beat


def _parse(data: bytes) -> Optional[Json]:
    try:
        return store.parse(data, "lock") if data.strip() else None
    except Damaged:
        return None


def of(status: Json) -> Json:
    """The part of a status that the heartbeat repeats."""
    return {name: status[name] for name in CARRIED if name in status}
