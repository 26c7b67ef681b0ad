"""Frozen values to JSON and back, so that any stage can be saved to a file and replayed as a test.

Reading is tolerant of keys it does not know (a newer writer adds fields) and strict about types
(a damaged file must read as damaged, never as an empty value). A field equal to its default is
left out in writing where `compact` is asked for; that is what the fingerprint hashes.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

MAX_DEPTH = 64
"""Deeper data is refused: no value of ours nests further, and a hostile answer might."""

MOST = 2**63
"""No amount, age or id of ours is as large. JSON has no bound: `1e999` reads as infinity, and four
hundred digits as a whole number that no float holds; whoever rounds, formats or compares one fails
far from where it came in."""

LONGEST_SAID = 400
"""Of a message: a key or a value that does not belong may be megabytes long."""

MOST = 2**63
"""No amount, age or id of ours is larger. JSON has no bound: `1e999` reads as infinity, and four
hundred digits as a whole number that no float can hold; whoever rounds, formats or compares either
would fail far from where it came from."""

LONGEST_SAID = 80
"""Of a wrong value or of its key path, in a message: they may be megabytes."""


class DecodeError(ValueError):
    """The data does not have the shape of the type; the message names the path and both types."""

    def __init__(self, message: str) -> None:
        cut = len(message) > LONGEST_SAID
        super().__init__(f"{message[:LONGEST_SAID]}…" if cut else message)


def to_json(value: object, *, compact: bool = False) -> Any:
    """Plain dicts, lists and scalars for `value`; keys in field order."""
    kind: type = type(value)
    if kind in _PLAIN:
        return value
    defaults = _defaults(kind)
    if defaults is not None:
        pairs = [(name, getattr(value, name), default) for name, default in defaults]
        return {
            name: to_json(item, compact=compact)
            for name, item, default in pairs
            if not (compact and default == item)
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): to_json(v, compact=compact) for k, v in value.items()}
    if isinstance(value, (list, tuple, frozenset, set)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return [to_json(v, compact=compact) for v in items]
    return value


_PLAIN = frozenset({str, int, bool, float, type(None)})


class _NoDefault:
    """Equal to nothing: the field must be written."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = object.__hash__


@cache
def _defaults(kind: type) -> tuple[tuple[str, object], ...] | None:
    """Each field of a dataclass with what it is if it is not given; None: no dataclass.

    Found once a class: every start in a plan writes a profile of forty fields.
    """
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple((field.name, default_of(field)) for field in dataclasses.fields(kind))


def default_of(field: dataclasses.Field[Any]) -> object:
    """What the field is if it is not given; where it must be, something equal to no value."""
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _NoDefault()


def from_json(cls: type[T], data: object, path: str = "") -> T:
    """A `cls` from plain data. Raises DecodeError with the key path of the first misfit."""
    return typing.cast(T, _decode(cls, data, path, 0))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode(kind: Any, data: object, path: str, depth: int) -> object:
    if depth > MAX_DEPTH:
        raise DecodeError(f"{path}: nested deeper than {MAX_DEPTH}")
    origin = typing.get_origin(kind)
    if kind is Any or kind is object:
        return data
    if origin is typing.Union or origin is types.UnionType:
        return _decode_union(kind, data, path, depth)
    if origin is tuple:
        return _decode_tuple(typing.get_args(kind), data, path, depth)
    if origin in (dict, Mapping) or origin is typing.get_origin(Mapping[str, str]):
        _expect(isinstance(data, dict), "an object", data, path)
        key, inner = typing.get_args(kind)
        items = typing.cast("dict[str, object]", data).items()
        return {_key(key, k, path): _decode(inner, v, f"{path}.{k}", depth + 1) for k, v in items}
    if origin is frozenset:
        _expect(isinstance(data, list), "a list", data, path)
        return frozenset(_decode_tuple((typing.get_args(kind)[0], ...), data, path, depth))
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(typing.cast(type, kind), data, path, depth)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError:
            known = ", ".join(str(m.value) for m in kind)
            raise DecodeError(f"{path}: {data!r} is none of {known}") from None
    return _decode_scalar(kind, data, path)


def _key(kind: Any, key: str, path: str) -> str | int:
    """A map's key: JSON has only text, so numbers (ranks) are read back from it."""
    if kind is not int:
        return str(key)
    digits = key.removeprefix("-")
    whole = digits.isdecimal() and len(digits) <= len(str(MOST))
    _expect(whole, "a whole number as key", key, f"{path}.{key}")
    return int(key)


def _decode_union(kind: Any, data: object, path: str, depth: int) -> object:
    options = typing.get_args(kind)
    if data is None and type(None) in options:
        return None
    errors = []
    for option in options:
        if option is type(None):
            continue
        try:
            return _decode(option, data, path, depth + 1)
        except DecodeError as error:
            errors.append(str(error))
    raise DecodeError("; ".join(errors) or f"{path}: null is not allowed here")


def _decode_tuple(args: tuple[Any, ...], data: object, path: str, depth: int) -> tuple[object, ...]:
    _expect(isinstance(data, (list, tuple)), "a list", data, path)
    items = typing.cast("list[object]", data)
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_decode(args[0], v, f"{path}[{i}]", depth + 1) for i, v in enumerate(items))
    _expect(len(items) == len(args), f"{len(args)} items", data, path)
    pairs = enumerate(zip(args, items, strict=True))
    return tuple(_decode(a, v, f"{path}[{i}]", depth + 1) for i, (a, v) in pairs)


def _decode_dataclass(cls: type, data: object, path: str, depth: int) -> object:
    _expect(isinstance(data, dict), "an object", data, path)
    given = typing.cast("dict[str, object]", data)
    hints = _hints(cls)
    values = {}
    for field in dataclasses.fields(cls):
        if field.name in given:
            where = f"{path}.{field.name}" if path else field.name
            values[field.name] = _decode(hints[field.name], given[field.name], where, depth + 1)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise DecodeError(f"{path or cls.__name__}: {field.name!r} is missing")
    try:
        return cls(**values)
    except ValueError as error:
        raise DecodeError(f"{path or cls.__name__}: {error}") from error


def _decode_scalar(kind: Any, data: object, path: str) -> object:
    if kind is float:
        _expect(
            isinstance(data, (int, float)) and not isinstance(data, bool), "a number", data, path
        )
        return float(_in_bounds(typing.cast(float, data), path))
    if kind is int:
        _expect(isinstance(data, int) and not isinstance(data, bool), "an integer", data, path)
        return _in_bounds(typing.cast(int, data), path)
    if kind in (str, bool):
        _expect(type(data) is kind, "text" if kind is str else "true or false", data, path)
        return data
    raise DecodeError(f"{path}: cannot read a {kind!r}")


def _in_bounds(number: float, path: str) -> float:
    # Written so that NaN, which compares with nothing, is refused too.
    if not -MOST < number < MOST:
        raise DecodeError(f"{path}: a number beyond {MOST} or none at all")
    return number


def _expect(condition: bool, wanted: str, data: object, path: str) -> None:
    if not condition:
        raise DecodeError(f"{path}: {type(data).__name__} where {wanted} belongs")
