"""What an engine says of itself beside its commands, also where it comes from another package."""

from __future__ import annotations

from collections.abc import Sequence

from engines.base import Engine, InFlight
from engines.registry import DEFAULT, UnknownEngine


def in_flight(name: str) -> InFlight | None:
    """Where the engine called `name` tells its running requests; None: nowhere that is known."""
    found = _get(name)
    told: InFlight | None = getattr(found, "in_flight", None)
    return told


def answered_names(name: str, served_names: Sequence[str]) -> tuple[str, ...]:
    """Those of `served_names` that the engine called `name` answers to."""
    one = getattr(_get(name), "one_name", False)
    return tuple(served_names[:1] if one else served_names)


def _get(name: str) -> Engine | None:
    """None where this build has no engine of that name: a record may be of another build's."""
    try:
        return DEFAULT.get(name)
    except UnknownEngine:
        return None
