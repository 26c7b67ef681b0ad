"""Waiting for something to become true, with a deadline: never a bare sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(look: Callable[[], T], what: str = "it", within_s: float = 10.0) -> T:
    """The first true value of `look`; AssertionError with `what` and the last value otherwise."""
    deadline = time.monotonic() + within_s
    seen = look()
    while not seen and time.monotonic() < deadline:
        time.sleep(0.01)
        seen = look()
    assert seen, f"{what}: not within {within_s:g} s, last seen {seen!r}"
    return seen
