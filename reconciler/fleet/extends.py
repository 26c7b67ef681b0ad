"""`extends` of profiles: resolved before `core/model` and the fingerprint see a profile.

Maps merge key by key, at every depth; everything else, lists too, replaces what the base says. So
`args` of a profile are always read in one place, in one order. `name`, `extends` and `abstract` are
never inherited. What a base has cannot be taken away, only replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_CHAIN = 8
"""Profiles in one chain: a reader has to hold them all in mind."""

OWN = frozenset({"kind", "name", "extends", "abstract"})


class Cycle(Exception):
    """A profile extends itself, perhaps over others; `args[0]` has the names in order."""


class TooLong(Exception):
    """A chain is longer than `MAX_CHAIN`; `args[0]` has the names in order."""


def chain(name: str, documents: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """The profiles that `name` builds on, nearest first; a name that is not known ends it."""
    found: list[str] = [name]
    while (base := documents.get(found[-1], {}).get("extends")) is not None:
        if base in found:
            raise Cycle([*found, base])
        found.append(base)
        if len(found) > MAX_CHAIN:
            raise TooLong(found)
    return tuple(found[1:])


def merged(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """`top` over `base`, both plain data of profiles."""
    inherited = {key: value for key, value in base.items() if key not in OWN}
    return _over(inherited, top)


def _over(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in top.items():
        under = out.get(key)
        if isinstance(value, dict) and isinstance(under, dict):
            out[key] = _over(under, value)
        else:
            out[key] = value
    return out


def size(data: Any) -> int:
    """Values in plain data, to bound what many profiles may inherit from a large one."""
    if isinstance(data, dict):
        return 1 + sum(size(value) for value in data.values())
    if isinstance(data, list):
        return 1 + len(data)
    return 1
