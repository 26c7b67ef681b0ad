"""The engines by name: built in, or from other packages, which replace a built-in one of their
name.

A package offers one by an entry point in the group `fleet_reconciler.engines`, whose value is an
Engine or a class of one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from engines.base import Engine
from engines.command import CommandEngine
from engines.llamacpp import LlamaCpp
from engines.sglang import Sglang
from engines.sim import Sim
from engines.vllm import Vllm

if TYPE_CHECKING:
    from importlib import metadata

GROUP = "fleet_reconciler.engines"

BUILT_IN: tuple[Engine, ...] = (Vllm(), Sglang(), LlamaCpp(), CommandEngine(), Sim())


class UnknownEngine(KeyError):
    """No engine has this name; the message lists those there are."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(name)
        self.name = name
        self.known = tuple(known)

    def __str__(self) -> str:
        near = difflib.get_close_matches(self.name, self.known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        known = ", ".join(self.known)
        return f"unknown engine {self.name!r}: known are {known}{hint}"


class Registry:
    """Engines by name. `entry_points` is asked once, at the first look-up."""

    def __init__(
        self,
        built_in: Iterable[Engine],
        entry_points: Callable[[], Iterable[metadata.EntryPoint]] = tuple,
    ) -> None:
        self._built_in = tuple(built_in)
        self._entry_points = entry_points

    @cached_property
    def engines(self) -> Mapping[str, Engine]:
        """All of them; one from another package wins over a built-in one."""
        found = {engine.name: engine for engine in self._built_in}
        for point in self._entry_points():
            found[point.name] = _load(point)
        return found

    def get(self, name: str) -> Engine:
        """The engine called `name`. Raises UnknownEngine."""
        if name not in self.engines:
            raise UnknownEngine(name, self.names())
        return self.engines[name]

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self.engines))


def _load(point: metadata.EntryPoint) -> Engine:
    loaded = point.load()
    engine = loaded() if isinstance(loaded, type) else loaded
    needed = (
        "mixes_gpus",
        "loads_weights",
        "stop",
        "gpu_count",
        "check",
        "port_names",
        "build",
        "classify_exit",
    )
    absent = [name for name in needed if not hasattr(engine, name)]
    if absent:
        raise TypeError(f"engine {point.name} of {point.value} lacks {', '.join(absent)}")
    made: Engine = engine
    return made


def _installed() -> Iterable[metadata.EntryPoint]:
    # Imported late: it is 10 ms, which only a command that looks an engine up has to pay.
    from importlib import metadata

    return metadata.entry_points(group=GROUP)


DEFAULT = Registry(BUILT_IN, _installed)
