"""Which commit of a repo came into force at last under which ref: kept in the cache folder.

A head that cannot be resolved (its branch was deleted, `--ref` is misspelled) tells of no node, and
without an inventory nobody can be asked which revision is in force. Other branches must not answer:
whoever may push one would choose where we log in. What this reconciler itself put in force may.
Only a cache: where it is lost, a pass over such a head does nothing and says so.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from reconciler.core.model import Revision

_MAX_REFS = 64


class Followed:
    """The last commit in force by ref, in memory and in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = _read(path)

    def put(self, ref: str | None, revision: Revision) -> None:
        """`revision` is in force, and was found under `ref` (None: HEAD)."""
        name, found = ref or "HEAD", (revision.commit, revision.root_commit)
        if self._last.get(name) == found and self._path.is_file():
            return
        self._last.pop(name, None)
        self._last = dict([*self._last.items(), (name, found)][-_MAX_REFS:])
        with suppress(OSError):  # A cache that cannot be written: the next pass tries again.
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            new.write_text(json.dumps({"format": "1.0", "refs": self._last}), encoding="utf-8")
            new.replace(self._path)

    def get(self, ref: str | None) -> tuple[Revision, ...]:
        """Of `ref`; where it was never followed, of all other refs, the newest first."""
        name = ref or "HEAD"
        if name in self._last:
            return (Revision(self._last[name][0], name, root_commit=self._last[name][1]),)
        others = reversed(self._last.items())
        return tuple(Revision(commit, other, root_commit=root) for other, (commit, root) in others)


def _read(path: Path) -> dict[str, tuple[str, str]]:
    """What the file holds; nothing where it is absent or damaged."""
    try:
        refs = json.loads(path.read_text(encoding="utf-8"))["refs"]
        return {str(ref): (str(commit), str(root)) for ref, (commit, root) in refs.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
