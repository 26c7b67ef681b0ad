"""What to exec, with which environment: one module per inference engine, pure, standard library
only.

Nothing in here runs, reads or waits; `base.py` is the contract with the core. `get` and `names`
are the way in.
"""

from engines.base import Engine
from engines.registry import DEFAULT, UnknownEngine

__all__ = ["Engine", "UnknownEngine", "get", "names"]


def get(name: str) -> Engine:
    """The engine called `name`. Raises UnknownEngine, which lists the known ones."""
    return DEFAULT.get(name)


def names() -> tuple[str, ...]:
    """The names of all engines, sorted."""
    return DEFAULT.names()
