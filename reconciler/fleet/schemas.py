"""The JSON Schemas of `schema/`, as readers: a document in, one of `core/model`'s values out.

The schemas are the only place that knows a field's YAML spelling, bounds and patterns. A reader is
compiled from a schema and the type it fills, once; it checks and converts in one go, because a
fleet of ten thousand documents is read at every pass. It only says *that* a document does not fit
(`Misfit`); what is wrong, in words, comes from jsonschema (`explain.py`), over the same schema. A
test holds the two equal.

Read by exact path, not by import: an unrelated package on PyPI is called `schema` too.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from reconciler.core import model

FOLDER = Path(__file__).resolve().parents[2] / "schema"

KINDS: Mapping[str, type] = {
    "Fleet": model.Fleet,
    "Node": model.Node,
    "Model": model.Model,
    "Profile": model.Profile,
    "Placement": model.Placement,
}

SPELLINGS = {"class": "klass"}
"""YAML's word → the field's name, where Python keeps the word for itself."""

SCHEMA_ONLY = frozenset({"kind", "extends", "abstract"})
"""Top-level properties that are gone before `core/model` sees a document."""

Reader = Callable[[Any], Any]


class Misfit(Exception):
    """The data does not fit the schema."""


@cache
def schema(kind: str) -> dict[str, Any]:
    """The schema of a kind, version 1."""
    text = (FOLDER / f"{kind.lower()}.v1.json").read_text(encoding="utf-8")
    return typing.cast("dict[str, Any]", json.loads(text))


@cache
def reader(kind: str) -> Reader:
    """Reads one document of `kind`; raises Misfit."""
    root = schema(kind)
    return _object(root, root, KINDS[kind])


def compiled_pattern(pattern: str) -> re.Pattern[str]:
    """`pattern` with the `$` of JSON Schema: Python's own also matches before a last line feed."""
    return re.compile(re.sub(r"(?<!\\)\$$", r"\\Z", pattern))


def fits_pattern(match: Callable[[str], object], text: str, most: int) -> bool:
    """Length first: what takes time with the square of it must stay short."""
    return len(text) <= most and match(text) is not None


def resolve(node: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """`node`, or what its `$ref` names inside `root`."""
    reference = node.get("$ref")
    if reference is None:
        return node
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return typing.cast("Mapping[str, Any]", found)


def expected(kind: str, path: tuple[str | int, ...]) -> Mapping[str, Any]:
    """The schema of the value at `path` of a document; empty where it has none."""
    root = schema(kind)
    node: Mapping[str, Any] = root
    for key in path:
        node = resolve(node, root)
        if isinstance(key, int):
            node = node.get("items") or {}
        else:
            more = node.get("additionalProperties")
            node = node.get("properties", {}).get(key) or (more if isinstance(more, dict) else {})
    return resolve(node, root)


# --- compiling --------------------------------------------------------------------------------


def _compile(node: Mapping[str, Any], root: Mapping[str, Any], kind: Any) -> Reader:
    node = resolve(node, root)
    kind = _without_none(kind)
    if kind is model.Limit:
        return _limit(_any_of(node, root))
    if dataclasses.is_dataclass(kind):
        return _object(node, root, typing.cast(type, kind))
    origin = typing.get_origin(kind)
    if origin is tuple:
        return _array(node, root, typing.get_args(kind)[0])
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(node, root, typing.get_args(kind)[1])
    if "anyOf" in node:
        return _any_of(node, root)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(node, kind)
    return _scalar(node)


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        options = [o for o in typing.get_args(kind) if o is not type(None)]
        return options[0] if len(options) == 1 else kind
    return kind


def _object(node: Mapping[str, Any], root: Mapping[str, Any], cls: type) -> Reader:
    hints = typing.get_type_hints(cls)
    fields: dict[str, tuple[str, Reader]] = {}
    for name, sub in node["properties"].items():
        if node is root and name in SCHEMA_ONLY:
            fields[name] = ("", _scalar(sub))
        else:
            field = SPELLINGS.get(name, name)
            fields[name] = (field, _compile(sub, root, hints[field]))
    required = frozenset(node.get("required", ()))
    notes = node.get("patternProperties") is not None
    get = fields.get

    def read(data: Any) -> Any:
        if type(data) is not dict or not required <= data.keys():
            raise Misfit
        values = {}
        for key, value in data.items():
            known = get(key)
            if known is None:
                if notes and key.startswith("x-"):
                    continue
                raise Misfit
            converted = known[1](value)
            if known[0]:
                values[known[0]] = converted
        return cls(**values)

    return read


def _array(node: Mapping[str, Any], root: Mapping[str, Any], item_kind: Any) -> Reader:
    item = _compile(node["items"], root, item_kind)
    least, most = node.get("minItems", 0), node["maxItems"]
    unique = node.get("uniqueItems", False)

    def read(data: Any) -> Any:
        if type(data) is not list or not least <= len(data) <= most:
            raise Misfit
        values = tuple([item(value) for value in data])
        if unique and len(set(values)) < len(values):
            raise Misfit
        return values

    return read


def _mapping(node: Mapping[str, Any], root: Mapping[str, Any], value_kind: Any) -> Reader:
    value_reader = _compile(node["additionalProperties"], root, value_kind)
    names = node["propertyNames"]
    match, longest = compiled_pattern(names["pattern"]).search, names["maxLength"]
    most = node["maxProperties"]

    def read(data: Any) -> Any:
        if type(data) is not dict or len(data) > most:
            raise Misfit
        for key in data:
            if not fits_pattern(match, key, longest):
                raise Misfit
        return {key: value_reader(value) for key, value in data.items()}

    return read


def _scalar(node: Mapping[str, Any]) -> Reader:
    if "const" in node:
        return _choice((node["const"],))
    if "enum" in node:
        return _choice(tuple(node["enum"]))
    wanted = node["type"]
    if wanted == "boolean":
        return _typed(bool)
    if wanted == "integer":
        return _integer(node)
    if wanted == "string":
        return _text(node)
    if wanted == ["string", "integer"]:
        text = _text(node)
        return lambda data: str(data) if type(data) is int else text(data)
    raise NotImplementedError(f"no reader for {node}")


def _typed(kind: type) -> Reader:
    def read(data: Any) -> Any:
        if type(data) is not kind:
            raise Misfit
        return data

    return read


def _choice(options: tuple[Any, ...]) -> Reader:
    kinds = {type(option) for option in options}

    def read(data: Any) -> Any:
        if type(data) not in kinds or data not in options:
            raise Misfit
        return data

    return read


def _enum(node: Mapping[str, Any], kind: type[Enum]) -> Reader:
    check = _choice(tuple(node["enum"]))
    return lambda data: kind(check(data))


def _integer(node: Mapping[str, Any]) -> Reader:
    low, high = node.get("minimum"), node.get("maximum")

    def read(data: Any) -> Any:
        if type(data) is not int:
            raise Misfit
        if (low is not None and data < low) or (high is not None and data > high):
            raise Misfit
        return data

    return read


def _text(node: Mapping[str, Any]) -> Reader:
    least, most = node.get("minLength", 0), node.get("maxLength", 1 << 20)
    pattern = node.get("pattern")
    match = compiled_pattern(pattern).search if pattern else None

    def read(data: Any) -> Any:
        if type(data) is not str or not least <= len(data) <= most:
            raise Misfit
        if match is not None and match(data) is None:
            raise Misfit
        return data

    return read


def _any_of(node: Mapping[str, Any], root: Mapping[str, Any]) -> Reader:
    options = [_scalar(resolve(option, root)) for option in node["anyOf"]]

    def read(data: Any) -> Any:
        for option in options:
            try:
                return option(data)
            except Misfit:
                continue
        raise Misfit

    return read


def _limit(check: Reader) -> Reader:
    def read(data: Any) -> Any:
        value = check(data)
        if isinstance(value, str):
            return model.Limit(percent=int(value.removesuffix("%")))
        return model.Limit(count=value)

    return read
