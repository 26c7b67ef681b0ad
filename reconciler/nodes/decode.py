"""A node's `observe` result as a NodeAnswer, taking over what is as it was at the last look.

An idle fleet says the same thing each pass but for its ages. Decoding all of it anew costs more
than the network does, so values whose JSON is equal to the last one's are taken over as they are:
they are frozen, so nobody can tell (`true` that became `1` still reads as true).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import cache
from typing import Any

from reconciler.core.codec import DecodeError, from_json
from reconciler.core.observed import FORMAT, NodeAnswer
from reconciler.nodes.framing import MAX_DEPTH, too_deep


def decode_answer(
    data: dict[str, Any], before: tuple[dict[str, Any], NodeAnswer] | None
) -> NodeAnswer:
    """The answer in `data`; `before` is the last one of the node and the data it came from.

    Raises DecodeError with the key path of what is wrong.
    """
    major = str(data.get("format", "")).partition(".")[0]
    if major != FORMAT.partition(".")[0]:
        raise DecodeError(f"format {data.get('format')!r}, this build reads {FORMAT}")
    if before is None:
        if too_deep(data):
            raise DecodeError(f"nested deeper than {MAX_DEPTH}")
        return from_json(NodeAnswer, data)
    return typing.cast(NodeAnswer, _decode(NodeAnswer, data, *before, path=""))


def _decode(kind: Any, data: object, old_data: object, old: object, *, path: str) -> object:
    if data == old_data and type(data) is type(old_data):
        return old
    declared, kind = kind, _without_none(kind)
    objects = isinstance(data, dict) and isinstance(old_data, dict)
    if objects and dataclasses.is_dataclass(kind) and isinstance(old, typing.cast(type, kind)):
        given, was = typing.cast(dict[str, Any], data), typing.cast(dict[str, Any], old_data)
        return _dataclass(typing.cast(type, kind), given, was, old, path)
    if typing.get_origin(kind) is tuple and isinstance(old, tuple) and isinstance(data, list):
        inner = typing.get_args(kind)
        if len(inner) == 2 and inner[1] is Ellipsis and isinstance(old_data, list):
            return _items(inner[0], data, old_data, old, path)
    return _anew(declared, data, path)


def _dataclass(
    cls: type, data: dict[str, Any], old_data: dict[str, Any], old: object, path: str
) -> object:
    values: dict[str, object] = {}
    for name, kind in _fields(cls):
        if name in data:
            where = f"{path}.{name}" if path else name
            given = data[name]
            if name in old_data:
                was = getattr(old, name)
                values[name] = _decode(kind, given, old_data[name], was, path=where)
            else:
                values[name] = _anew(kind, given, where)
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise DecodeError(f"{path or cls.__name__}: {error}") from error


def _items(
    kind: Any, data: list[Any], old_data: list[Any], old: tuple[Any, ...], path: str
) -> tuple[object, ...]:
    same = min(len(data), len(old_data), len(old))
    head = (_decode(kind, data[i], old_data[i], old[i], path=f"{path}[{i}]") for i in range(same))
    tail = (_anew(kind, data[i], f"{path}[{i}]") for i in range(same, len(data)))
    return (*head, *tail)


def _anew(kind: Any, data: object, path: str) -> object:
    if (kind is Any or isinstance(data, (dict, list))) and too_deep(data):
        raise DecodeError(f"{path}: nested deeper than {MAX_DEPTH}")
    # `from_json` takes any type hint, not only classes; its signature cannot say so.
    return from_json(typing.cast("type[object]", kind), data, path)


@cache
def _fields(cls: type) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(cls)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(cls))


@cache
def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        if len(options) == 1:
            return options[0]
    return kind
