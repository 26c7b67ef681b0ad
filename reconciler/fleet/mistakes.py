"""Values as other tools write them, and the same thing as it is written here.

A duration with its unit, a port by its number or a repository's id in place of a path are refused
by their type or pattern; what that says is true, and helps nobody.
"""

from __future__ import annotations

import re
from typing import Any

from reconciler.fleet.strictyaml import Path

_SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
_DURATION = re.compile(r"([0-9]{1,6}) ?(s|sec|m|min|h)")
_SIZE = re.compile(r"([0-9]{1,6}) ?(g|gb|gi|gib)", re.IGNORECASE)
_REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}|[a-z0-9]{1,16}://.{1,256}")
LONGEST = 512
"""Longer values are nobody's habit."""

_NUMBERED = "name it: the reconciler gives the number, and '$(port.NAME)' refers to it"
_HEALTH = (
    "write the name of a port: http, or one of `ports`; its number is the reconciler's to give"
)
_WEIGHTS = (
    "weights lie on the nodes before a start: write the absolute path of their folder or file"
)


def meant(kind: str, path: Path, value: Any) -> str:
    """What to write in place of `value` at `path` of a document of `kind`; empty: not known."""
    if isinstance(value, str) and len(value) > LONGEST:
        return ""
    keys = tuple(str(key) for key in path if not isinstance(key, int))
    last = keys[-1] if keys else ""
    found = _unit(last, value) or (_of_model(keys, value) if kind == "Model" else "")
    return found or (_of_profile(keys, value) if kind == "Profile" else "")


def _unit(key: str, value: Any) -> str:
    text = value.strip() if isinstance(value, str) else ""
    duration = _DURATION.fullmatch(text) if key.endswith("_s") else None
    if duration:
        return f"write the seconds: {int(duration[1]) * _SECONDS[duration[2]]}"
    size = _SIZE.fullmatch(text) if key.endswith("_gib") else None
    return f"write the number of GiB: {int(size[1])}" if size else ""


def _of_model(keys: tuple[str, ...], value: Any) -> str:
    if keys[:1] not in (("path",), ("paths",)) or not isinstance(value, str):
        return ""
    if value.startswith("~"):
        return "write the whole path: '~' is another folder for each user"
    return _WEIGHTS if _REPOSITORY.fullmatch(value) else ""


def _of_profile(keys: tuple[str, ...], value: Any) -> str:
    match keys:
        case ("ports",) if isinstance(value, int) or str(value)[:1].isdigit():
            return _NUMBERED
        case ("health", "port") if isinstance(value, int) or str(value)[:1].isdigit():
            return _HEALTH
        case ("runtime", "kind") if value in ("docker", "podman"):
            return f"write 'kind: container' and 'tool: {value}'"
        case ("runtime", "kind") if value in ("conda", "virtualenv", "python"):
            return "write 'kind: venv' and its folder as 'path'"
        case ("needs", "memlock") if value in (-1, "-1"):
            return "write 'unlimited'"
        case ("health",) if isinstance(value, str) and value.startswith("/"):
            return f"write 'health: {{path: {value}}}'"
        case ("parallel",) if isinstance(value, int):
            return f"write 'parallel: {{tp: {value}}}'"
        case ("runtime",) if isinstance(value, str):
            return "write 'runtime: {kind: …}', with a path or an image"
    return ""
