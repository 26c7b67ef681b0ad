"""Pairs replicas that nobody wants with wanted ones that have no launch: renames, not restarts.

A renamed placement or profile, or one replica less here and one more there, changes no command;
so what runs is relabelled and judged under its new name. First by equal fingerprint, then by same
model and pool, always in order of ordinal.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from reconciler.core.catalog import Catalog
from reconciler.core.views import Sighting
from reconciler.core.wanted import Group, Want


@dataclass(frozen=True)
class Free:
    """A replica that nobody wants and that could go on under another name."""

    group: Group
    fingerprint: str
    model: str
    pool: str


@dataclass(frozen=True)
class Empty:
    """A wanted replica that has no launch."""

    want: Want
    placement: str
    fingerprint: str
    model: str
    pool: str


def pair(unwanted: Iterable[Group], empty: Sequence[Empty], catalog: Catalog) -> dict[str, Group]:
    """Wanted replica → the unwanted one whose launches it takes over."""
    free = [f for g in unwanted if (f := _free(g, catalog)) is not None]
    free.sort(key=lambda f: (f.group.placement, f.group.ordinal))
    pairs: dict[str, Group] = {}
    for of_empty, of_free in _KEYS:
        if not free:
            break
        waiting: dict[Hashable, list[Empty]] = {}
        for e in sorted(empty, key=lambda e: (e.placement, e.want.ordinal)):
            if e.want.replica not in pairs:
                waiting.setdefault((*of_empty(e), e.want.node), []).append(e)
        left = []
        for f in free:
            match = waiting.get((*of_free(f), "")) or waiting.get((*of_free(f), f.group.leader))
            if match:
                pairs[match.pop(0).want.replica] = f.group
            else:
                left.append(f)
        free = left
    return pairs


Key = tuple[str, ...]

_KEYS: tuple[tuple[Callable[[Empty], Key], Callable[[Free], Key]], ...] = (
    # Equal fingerprint; where it may also stay put before where it would have to move.
    (lambda e: (e.fingerprint, e.pool), lambda f: (f.fingerprint, f.pool)),
    (lambda e: (e.fingerprint,), lambda f: (f.fingerprint,)),
    (lambda e: (e.model, e.pool), lambda f: (f.model, f.pool)),
    (lambda e: (e.model, e.pool), lambda f: (f.model, "")),  # a placement that names no pool
)


def _free(group: Group, catalog: Catalog) -> Free | None:
    sighting = next((s for s, end in group.launches if end is None and _goes_on(s)), None)
    if sighting is None:
        return None
    profile = sighting.view.profile
    node = catalog.desired.nodes.get(sighting.leader)
    return Free(
        group,
        sighting.view.fingerprint,
        profile.model.name if profile else "",
        node.pool if node else "",
    )


def _goes_on(sighting: Sighting) -> bool:
    """Alive, or perhaps alive out of sight; neither on its way out nor of unknown content."""
    view = sighting.view
    return (view.alive or bool(sighting.silence)) and not view.stop_asked and not sighting.damage
