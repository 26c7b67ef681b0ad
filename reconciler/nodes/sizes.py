"""Whether what a launch needs has the same size on every rank's node.

A copy that was cut off loads on one rank and fails on the other, minutes after both have started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def differing(sizes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What differs, in words: each path with its bytes on every node. `sizes`: node → path → bytes.

    A path that only some of the nodes need (another pool keeps it elsewhere) is compared on those.
    """
    by_path: dict[str, dict[str, Any]] = {}
    for node, told in sorted(sizes.items()):
        for path, size in told.items():
            by_path.setdefault(path, {})[node] = size
    return [
        f"{path} differs: " + ", ".join(f"{size} bytes on {node}" for node, size in found.items())
        for path, found in by_path.items()
        if len(set(found.values())) > 1
    ]
