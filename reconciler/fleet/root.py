"""Which folder is the fleet, for somebody who stands in one of its subfolders.

Git and its like work anywhere in their tree. Without this a subfolder would read as a fleet without
a Fleet document, and the advice to make one would put a second fleet inside the first.
"""

from __future__ import annotations

import os
from pathlib import Path

from reconciler.fleet.tree import TOP


def fleet_of(folder: Path) -> Path | None:
    """`folder`, or the nearest one above it that holds a fleet.yaml; None: there is none.

    Looks no further than the top of the git work tree that `folder` is in: what lies above it is
    somebody else's.
    """
    start = folder.absolute()
    for one in (start, *start.parents):
        if any(os.path.isfile(one / name) for name in TOP):
            return one
        if os.path.lexists(one / ".git") or _is_repository(one):
            return None
    return None


def _is_repository(folder: Path) -> bool:
    """A repository's own folder, bare or `.git`: it stands for itself."""
    return os.path.isfile(folder / "HEAD") and os.path.isdir(folder / "objects")
