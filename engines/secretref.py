"""Secrets by reference: `reconciler:NAME` in a profile, and the path of what it becomes.

Profile, plan, spec.json and fingerprint hold names and paths. A value is read when a start is sent,
and nothing in here, nor in the core, may ever see one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

PREFIX = "reconciler:"
FOLDER = "secrets"
"""In the launch's folder on the node; the agent has the same word."""
NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")
"""A file name that leaves no folder; the schema has the same pattern. It ends with a letter or
digit, so that a path in running text has one end."""


def name_of(reference: str) -> str | None:
    """The NAME of a `reconciler:NAME`; None for a file on the node."""
    name = reference.removeprefix(PREFIX)
    return name if name != reference and NAME.fullmatch(name) else None


def names(references: Iterable[str]) -> list[str]:
    """The names among `references`, each once, in order of the alphabet."""
    return sorted({name for name in map(name_of, references) if name is not None})


def path(reference: str, launch_dir: str) -> str:
    """The file on the node: as written, or where the agent puts what the reconciler sends along."""
    name = name_of(reference)
    return reference if name is None else f"{launch_dir}/{FOLDER}/{name}"


def on_node(env_files: Mapping[str, str], launch_dir: str) -> dict[str, str]:
    """Variable → file on the node."""
    return {variable: path(reference, launch_dir) for variable, reference in env_files.items()}
