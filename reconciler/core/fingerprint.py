"""One short text for all that makes a running launch out of date, and the fields behind it.

The fingerprint is computed from what people wrote, never from the commands that the code builds
from it, nor from the place where a replica runs: neither an upgrade nor a scheduler's choice may
turn a fleet stale. So it covers exactly the fields that `core/model.py` marks with `restart`, and
a value equal to its default is left out: a field that is added later changes no fingerprint.

The method `p1` never changes. `tests/core/test_fingerprint.py` pins literal values of it; if one
of those fails, the change is wrong, not the test.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from functools import cache, lru_cache
from typing import Any

from reconciler.core.codec import default_of, to_json
from reconciler.core.model import ResolvedProfile
from reconciler.core.verdict import FieldChange

METHOD = "p1"
MAX_TEXT = 120
"""Longer values are cut in explanations: a rendered file must not fill the plan."""


def fingerprint(resolved: ResolvedProfile) -> str:
    """`p1:` and the SHA-256 of the canonical JSON of all fields whose edit needs a restart.

    A model without served names is served under its own name, so that name counts: clients would
    otherwise ask a renamed model under a name that the running server does not know. No other
    name is in it.
    """
    return _of(_Same(resolved))


class _Same:
    """Equal for the same two objects only; it holds them, so no other can take their place.

    From pass to pass most profiles of a daemon are the same objects, and thousands of them make
    fingerprints a third of its work.
    """

    def __init__(self, resolved: ResolvedProfile) -> None:
        self.resolved = resolved
        self._ids = id(resolved.profile), id(resolved.model)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._ids == other._ids

    def __hash__(self) -> int:
        return hash(self._ids)


@lru_cache(maxsize=20_000)
def _of(same: _Same) -> str:
    resolved = same.resolved
    model = _restart_fields(resolved.model, compact=True)
    model["served_names"] = list(_served_names(resolved))
    content = {"model": model, "profile": _restart_fields(resolved.profile, compact=True)}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"{METHOD}:{hashlib.sha256(text.encode('ascii')).hexdigest()}"


def method_known(value: str) -> bool:
    """Whether this build can compare `value`: it has a fingerprint, by a method not newer."""
    return value.startswith(METHOD + ":")


def explain(before: ResolvedProfile, after: ResolvedProfile) -> tuple[FieldChange, ...]:
    """The fields behind two different fingerprints, as paths (`profile.args[2]`), sorted.

    deepdiff costs tens of milliseconds to import and much more on big equal values, so it is
    loaded here and called only for pairs that differ.
    """
    from deepdiff import DeepDiff

    tree = DeepDiff(_explained(before), _explained(after), view="tree")
    changes = {
        FieldChange(_path(level.path(output_format="list")), _text(level.t1), _text(level.t2))
        for kind in tree.values()
        for level in kind
    }
    return tuple(sorted(changes, key=lambda c: (_sort_key(c.path), c.before, c.after)))


def _served_names(resolved: ResolvedProfile) -> tuple[str, ...]:
    return resolved.model.served_names or (resolved.model.name,)


def _explained(resolved: ResolvedProfile) -> dict[str, Any]:
    """Like what is hashed, but with defaults spelled out: `1 → 2` says more than `→ 2`."""
    model = _restart_fields(resolved.model, compact=False)
    model["served_names"] = list(_served_names(resolved))
    return {"profile": _restart_fields(resolved.profile, compact=False), "model": model}


def _restart_fields(value: Any, *, compact: bool) -> dict[str, Any]:
    kind: type = type(value)
    pairs = [(name, getattr(value, name), default) for name, default in _marked(kind)]
    return {
        name: to_json(item, compact=compact)
        for name, item, default in pairs
        if not (compact and default == item)
    }


@cache
def _marked(kind: type) -> tuple[tuple[str, object], ...]:
    """The fields whose edit needs a restart, each with its default."""
    fields = (f for f in dataclasses.fields(kind) if f.metadata.get("restart"))
    return tuple((f.name, default_of(f)) for f in fields)


def _path(parts: list[str | int]) -> str:
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _sort_key(path: str) -> tuple[tuple[int, str], ...]:
    """`args[2]` before `args[10]`."""
    parts = path.replace("]", "").replace("[", ".").split(".")
    return tuple((int(p), "") if p.isdecimal() else (-1, p) for p in parts)


def _text(value: object) -> str:
    """A value in few words; empty where there is none on this side."""
    kind = type(value).__name__
    if kind == "NotPresent" or value in ("", [], {}, None):
        return ""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
