"""Frozen values made the short way, for the few that are made ten thousand times a pass.

The `__init__` of a frozen dataclass sets field by field through `object.__setattr__`, which costs
twice as much as giving the instance its fields at once; at ten thousand shards that is most of a
pass.
"""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def made(cls: type[T], fields: dict[str, Any]) -> T:
    """An instance of a frozen dataclass without slots, equal to `cls(**fields)`.

    Every field without a default, and every one with a default *factory*, must be given: plain
    defaults are found on the class. Nothing checks that here; a test holds the callers to it.
    `fields` becomes the instance's own: nobody else may keep it.
    """
    value = object.__new__(cls)
    _set(value, "__dict__", fields)
    return value


_set = object.__setattr__
