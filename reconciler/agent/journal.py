"""Who asked what of this node, and what came of it: survives the loss of the control machine.

Append-only and bounded. A journal that cannot be written stops nothing: a stop on a full disk must
still be a stop.
"""

from __future__ import annotations

import json
import os
from typing import List

from .wire import Json

MAX_BYTES = 4 * 1024 * 1024
"""Then it becomes `journal.jsonl.1`; two files of this size are kept."""


def append(root: str, entry: Json) -> None:
    """One line, written in one piece."""
    path = os.path.join(root, "journal.jsonl")
    line = json.dumps(entry, ensure_ascii=True, separators=(",", ":")) + "\n"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(fd).st_size > MAX_BYTES:
                os.replace(path, path + ".1")
            os.write(fd, line.encode("ascii"))
        finally:
            os.close(fd)
    except OSError:
        pass


def read(root: str, count: int) -> List[Json]:
    """The last `count` entries, oldest first; lines cut short by a crash are left out."""
    entries: List[Json] = []
    for name in ("journal.jsonl", "journal.jsonl.1"):
        entries = _entries(os.path.join(root, name))[-(count - len(entries)) :] + entries
        if len(entries) >= count:
            break
    return entries


def _entries(path: str) -> List[Json]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            lines = file.readlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            found.append(entry)
    return found
