"""Today's side of every comparison, computed once a pass: profiles, fingerprints, allowed nodes.

Also reads the profiles inside records. A thousand records usually hold a handful of different
profiles, so equal ones are read once; one that cannot be read is one launch's damage.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from reconciler.core.codec import DecodeError, from_json
from reconciler.core.fingerprint import explain, fingerprint
from reconciler.core.model import Desired, Node, NodeState, Placement, ResolvedProfile
from reconciler.core.observed import Place
from reconciler.core.verdict import FieldChange


class Catalog:
    """One revision, with what follows from it alone. Lives for one pass."""

    def __init__(self, desired: Desired) -> None:
        self.desired = desired
        by_profile: dict[str, tuple[ResolvedProfile, str]] = {}
        self._today: dict[str, tuple[ResolvedProfile, str]] = {}
        for name, placement in desired.placements.items():
            if placement.profile not in by_profile:
                resolved = desired.resolved(placement)
                by_profile[placement.profile] = resolved, fingerprint(resolved)
            self._today[name] = by_profile[placement.profile]
        self._recorded: dict[str, list[tuple[Any, ResolvedProfile | None]]] = {}
        self._explained: dict[tuple[str, str], tuple[FieldChange, ...]] = {}
        self._allowed: dict[tuple[object, ...], dict[str, str]] = {}
        self._known: dict[str, dict[str, str]] = {}

    def today(self, placement: str) -> tuple[ResolvedProfile, str]:
        """Profile and fingerprint of a placement of this revision."""
        return self._today[placement]

    def recorded(self, placement: str, print_: str, raw: Any) -> ResolvedProfile | None:
        """The profile of a record; today's where the fingerprint is today's.

        What needs no restart may differ then, and today's word on that is the one that counts.
        """
        today = self._today.get(placement)
        if today is not None and today[1] == print_:
            return today[0]
        known = self._recorded.setdefault(print_, [])
        for seen, resolved in known:
            if seen is raw or seen == raw:
                return resolved
        made = _read(raw)
        known.append((raw, made))
        return made

    def explain(
        self, before: tuple[ResolvedProfile | None, str], after: tuple[ResolvedProfile | None, str]
    ) -> tuple[FieldChange, ...]:
        """Why two fingerprints differ; empty where one of the profiles cannot be read."""
        key = before[1], after[1]
        if key not in self._explained:
            known = before[0] and after[0] and before[1] != after[1]
            self._explained[key] = explain(before[0], after[0]) if known else ()  # type: ignore[arg-type]
        return self._explained[key]

    def why_not(self, placement: Placement, places: Iterable[Place]) -> str:
        """Why a launch may not stay where it is; empty: it may."""
        known = self._known.get(placement.name)
        if known is None:
            known = self._known[placement.name] = self._of_kind(placement)
        for place in places:
            reason = known.get(place.node)
            if reason is None:
                reason = known[place.node] = self._why_not_node(placement, place.node)
            if reason:
                return reason
            if place.fabric is not None and place.fabric != placement.fabric:
                was, now = place.fabric or "no fabric", placement.fabric or "no fabric"
                return f"it uses {was}, the placement asks for {now}"
        return ""

    def _of_kind(self, placement: Placement) -> dict[str, str]:
        """Node → why not, shared by all placements of which every rule says the same."""
        selector = tuple(placement.selector.items())
        kind = placement.pool, placement.nodes, selector, placement.fabric
        return self._allowed.setdefault(kind, {})

    @staticmethod
    def may_live(placement: Placement, node: Node) -> bool:
        """Whether a replica could be on `node`, whatever state people gave that since."""
        return not any(rule(placement, node) for rule in _MAY_LIVE)

    def _why_not_node(self, placement: Placement, name: str) -> str:
        node = self.desired.nodes.get(name)
        if node is None or name in self.desired.departed:
            return f"node {name} is no longer in the fleet"
        return next((text for rule in _ALLOWED if (text := rule(placement, node))), "")


def _read(raw: Any) -> ResolvedProfile | None:
    try:
        return from_json(ResolvedProfile, raw)
    except DecodeError:
        return None


# --- Where a launch may stay: an ordered table; a cordon is not in it ---------------------------


def _state(placement: Placement, node: Node) -> str:
    if node.state in (NodeState.DRAINING, NodeState.LOST):
        return f"node {node.name} is {node.state.value}" + (
            f" ({node.reason})" if node.reason else ""
        )
    return ""


def _pool(placement: Placement, node: Node) -> str:
    if placement.pool and node.pool != placement.pool:
        return f"node {node.name} is in pool {node.pool}, the placement asks for {placement.pool}"
    return ""


def _pins(placement: Placement, node: Node) -> str:
    if placement.nodes and node.name not in placement.nodes:
        return f"node {node.name} is none of the pinned {', '.join(placement.nodes)}"
    return ""


def _selector(placement: Placement, node: Node) -> str:
    for key, value in placement.selector.items():
        if node.labels.get(key) != value:
            return f"node {node.name} has {key}={node.labels.get(key, '')}, not {value}"
    return ""


def _fabric(placement: Placement, node: Node) -> str:
    if placement.fabric and placement.fabric not in node.fabrics:
        return f"node {node.name} is not on fabric {placement.fabric}"
    return ""


_ALLOWED = (_state, _pool, _pins, _selector, _fabric)
_MAY_LIVE = (_pool, _pins, _selector, _fabric)


@lru_cache(maxsize=65536)
def parse_replica(replica: str) -> tuple[str, int] | None:
    """Placement and ordinal of `llama-prod-0`; None: not the name of a replica."""
    placement, _, ordinal = replica.rpartition("-")
    if not placement or not (ordinal.isascii() and ordinal.isdecimal()):
        return None
    return placement, int(ordinal)
