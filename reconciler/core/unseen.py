"""What may be running out of sight: why a replica of which nothing is seen must not be started.

A silent node of which a last look is at hand is known: its launches read unreachable by name. Of
one that was never seen (the reconciler has just started) anything may be true, so whatever may
live there waits until it answers or a person calls it lost.
"""

from __future__ import annotations

from reconciler.core.catalog import Catalog
from reconciler.core.model import Placement
from reconciler.core.views import Sightings
from reconciler.core.wanted import Want

MAX_NAMED = 5
"""Nodes named in one message."""


class Unseen:
    """Per placement, the nodes of which nothing is known. Lives for one pass."""

    def __init__(self, catalog: Catalog, sightings: Sightings) -> None:
        documents = catalog.desired.nodes
        self._blind = [documents[n] for n in sorted(sightings.blind) if n in documents]
        self._catalog = catalog
        self._texts: dict[str, str] = {}

    def perhaps(self, placement: Placement, want: Want) -> str:
        """Where the replica may be running (`perhaps on gpu-a`); empty: nowhere."""
        if not self._blind:
            return ""
        if want.node:
            silent = any(n.name == want.node for n in self._blind)
            return f"perhaps on {want.node}" if silent else ""
        if placement.name not in self._texts:
            names = [n.name for n in self._blind if self._catalog.may_live(placement, n)]
            self._texts[placement.name] = _text(names)
        return self._texts[placement.name]


def _text(names: list[str]) -> str:
    if not names:
        return ""
    more = f" or {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"perhaps on {', '.join(names[:MAX_NAMED])}{more}"
