"""Why a document does not fit its schema, in words, at its line.

Called only for documents that a reader (schemas.py) has refused, so speed is no concern here, but
hostile input is: lengths are checked before patterns, and nothing compares every item with every
other one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from reconciler.core.changes import Reason
from reconciler.core.secrets import looks_secret
from reconciler.fleet import schemas
from reconciler.fleet.elsewhere import instead
from reconciler.fleet.findings import Finding, dotted, listed, nearest, quoted
from reconciler.fleet.mistakes import meant
from reconciler.fleet.strictyaml import KEY, Document, Odd, Path

MAX_DIGITS = 18
"""Longer numbers are in no field's bounds."""

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

LONGEST_PATTERN_TEXT = 4096
"""Longer text is refused by its length; a pattern never sees it."""

WORDS = {
    "string": "text",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}


def explain(kind: str, subject: str, document: Document, most: int = 200) -> list[Finding]:
    """Every misfit of a document, or `most` of them. `document.positions` must be there."""
    findings = [_odd(kind, subject, document, odd) for odd in document.odd[:most]]
    told = {odd.path for odd in document.odd}
    for error in _validator(kind).iter_errors(document.data):
        path = tuple(error.absolute_path)
        if len(findings) >= most:
            break
        if path not in told:
            findings += _told(kind, subject, document, path, error, most)
    return findings


def place(document: Document, path: Path, *, key: bool = False) -> tuple[int, int]:
    """Line and column of the value at `path` (or of its key), else of what is nearest around it."""
    positions = document.positions or {}
    if key and (*path, KEY) in positions:
        return positions[(*path, KEY)]
    for end in range(len(path), 0, -1):
        if path[:end] in positions:
            return positions[path[:end]]
    return document.line, document.column


@cache
def _validator(kind: str) -> Any:
    import jsonschema  # 80 ms, which only a revision with findings pays

    base = jsonschema.Draft202012Validator
    checker = base.TYPE_CHECKER.redefine("integer", lambda _, v: type(v) is int)
    extend: Any = jsonschema.validators.extend
    strict = extend(
        base, validators={"pattern": _pattern, "uniqueItems": _unique}, type_checker=checker
    )
    return strict(schemas.schema(kind))


def _pattern(_: Any, pattern: str, text: Any, node: Mapping[str, Any]) -> Iterator[ValidationError]:
    from jsonschema.exceptions import ValidationError

    if not isinstance(text, str) or len(text) > min(LONGEST_PATTERN_TEXT, _longest(node)):
        return
    if schemas.compiled_pattern(pattern).search(text) is None:
        yield ValidationError("pattern")


def _longest(node: Mapping[str, Any]) -> int:
    return int(node.get("maxLength", LONGEST_PATTERN_TEXT))


def _unique(_: Any, wanted: bool, items: Any, __: Any) -> Iterator[ValidationError]:
    from jsonschema.exceptions import ValidationError

    if wanted and isinstance(items, list):
        seen = [json.dumps(item, sort_keys=True, default=str) for item in items]
        if len(set(seen)) < len(seen):
            yield ValidationError("unique")


# --- one error --------------------------------------------------------------------------------


def _told(
    kind: str, subject: str, document: Document, path: Path, error: ValidationError, most: int
) -> list[Finding]:
    def at(message: str, hint: str, where: Path = path, *, key: bool = False) -> Finding:
        line, column = place(document, where, key=key)
        shown = dotted(where)
        return Finding(
            document.file, line, column, shown, subject, message, hint, Reason.SCHEMA_FAILED
        )

    def said(name: str) -> str:
        return instead(kind, path, name, document.data)

    value: Any = error.instance
    limit: Any = error.validator_value
    node: Any = error.schema
    rule = str(error.validator)
    match rule:
        case "required":
            missing = next(name for name in limit if f"'{name}' is a required" in error.message)
            near = _misspelt(missing, value, node)
            return [at(f"'{missing}' is missing", near or _describe(node["properties"][missing]))]
        case "additionalProperties":
            unknown = (n for n in value if n not in node["properties"] and not _is_note(n, node))
            return [
                at(*_unknown(name, node, path, said(name)), (*path, name), key=True)
                for name in islice(unknown, most)
            ]
        case "propertyNames" | "pattern" if path and error.parent is None and _in_names(error):
            return [at(f"the key {quoted(value)} is not allowed", _pattern_hint(node))]
        case "type":
            message, hint = _wrong_type(kind, path, value, limit, document)
            return [at(message, meant(kind, path, value) or hint)]
        case "pattern":
            hint = meant(kind, path, value) or _pattern_hint(node)
            return [at(f"{_shown(path, value)} is not allowed", hint)]
        case "enum" | "const":
            options = limit if rule == "enum" else [limit]
            known = [str(o) for o in options if o != ""]
            if path == ("version",):
                hint = f"this build reads version {limit}: upgrade the reconciler"
                return [at(f"version {quoted(value)} is not known", hint)]
            hint = meant(kind, path, value) or nearest(str(value), known) or "choose one of them"
            return [at(f"{quoted(value)} is none of {', '.join(known)}", hint)]
        case "anyOf":
            return [at(*_no_option(value, limit, error))]
        case _:
            return [at(*_bound(rule, value, limit))]


def _shown(path: Path, value: str) -> str:
    """The value, unless it may be a secret: findings go into logs and pull requests."""
    name = str(path[-1]) if len(path) > 1 and path[-2] in ("env", "secrets") else ""
    return "its value" if looks_secret(name, value) else quoted(value)


def _in_names(error: ValidationError) -> bool:
    return "propertyNames" in error.absolute_schema_path


def _is_note(name: str, node: Mapping[str, Any]) -> bool:
    return name.startswith("x-") and "patternProperties" in node


def _describe(node: Mapping[str, Any]) -> str:
    text = str(node.get("description", "")).split(". ")[0].split("; ")[0].rstrip(".")
    return f"add it: {text[:1].lower()}{text[1:]}" if text else "add it"


def _misspelt(missing: str, value: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    extra = [name for name in value if name not in node["properties"]]
    near = nearest(missing, extra)
    return near.replace("did you mean", "is it").replace("?", " that is meant?") if near else ""


def _unknown(name: str, node: Mapping[str, Any], path: Path, special: str) -> tuple[str, str]:
    known = list(node["properties"])
    message = f"unknown field {quoted(name)}"
    if special:
        return message, special
    if path == ("gpus",) and name == "declared":
        return message, "write 'source: declared'"
    if name.startswith("."):
        return message, f"a place for anchors is named x-…: write 'x-{name[1:]}'"
    return message, nearest(name, known) or f"fields here are {listed(known, 40)}"


def _pattern_hint(node: Mapping[str, Any]) -> str:
    return f"write {node['x-pattern-says']}" if "x-pattern-says" in node else "see the reference"


def _wrong_type(
    kind: str, path: Path, value: Any, limit: Any, document: Document
) -> tuple[str, str]:
    wanted = limit if isinstance(limit, list) else [limit]
    what = _what(value)
    belongs = WORDS[wanted[0]]
    message = f"{what} where {belongs} belongs"
    if value is None:
        return message, "give a value, or remove the key"
    if wanted == ["array"] and isinstance(value, str):
        return (
            message,
            "write a list, one argument an item: it is passed on as it is, without a shell",
        )
    if wanted == ["array"] and isinstance(value, dict):
        return message, "write a list: each item starts with '- '"
    if "string" in wanted and isinstance(value, (bool, int)):
        written = str(value).lower() if isinstance(value, bool) else str(value)
        also = ' (or "True", as it is to be)' if value is True else ""
        return message, f'quote it: "{written}"{also}'
    if wanted == ["integer"] and isinstance(value, str):
        number = value.strip()
        bare = number.isascii() and number.isdigit()
        return message, f"write {int(number)}, without quotes" if bare else "write a whole number"
    if wanted == ["boolean"] and isinstance(value, str):
        return message, "write true or false, without quotes"
    if wanted == ["object"]:
        return message, "write 'key: value' lines below it"
    return message, f"write {belongs}"


def _what(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"'{str(value).lower()}' is true or false to YAML,"
    if isinstance(value, int):
        return f"{value} is a number"
    if isinstance(value, str):
        return f"{quoted(value)} is text"
    return "a list" if isinstance(value, list) else "a mapping"


def _no_option(value: Any, options: list[Any], error: ValidationError) -> tuple[str, str]:
    says = []
    for option in options:
        if option.get("type") == "integer":
            says.append(f"a whole number from {option['minimum']} to {option['maximum']}")
        elif "enum" in option:
            says.append(" or ".join(f"'{o}'" for o in option["enum"]))
        else:
            says.append(str(option.get("x-pattern-says", "text")))
    text = value.strip() if isinstance(value, str) else ""
    if text.isascii() and text.isdigit():
        return f"{quoted(value)} is text", f"write {int(text[:20])}, without quotes"
    plain = isinstance(value, (str, int)) and not isinstance(value, bool)
    shown = quoted(value) if plain else _what(value)
    return f"{shown} is not allowed", f"write {', or '.join(says)}"


def _bound(validator: str, value: Any, limit: Any) -> tuple[str, str]:
    match validator:
        case "minimum":
            return f"{value} is less than {limit}", f"{limit} is the least allowed"
        case "maximum":
            return f"{value} is more than {limit}", f"{limit} is the most allowed"
        case "maxLength":
            return f"it has {len(value)} characters", f"at most {limit} are allowed"
        case "minLength" | "minItems":
            return "it is empty", "give at least one"
        case "maxItems":
            return f"it has {len(value)} items", f"at most {limit} are allowed"
        case "maxProperties":
            return f"it has {len(value)} keys", f"at most {limit} are allowed"
        case "uniqueItems":
            return "an item is given twice", "keep one of them"
        case _:
            return f"it does not fit the schema ({validator})", "see the reference"


# --- odd scalars ------------------------------------------------------------------------------


def _odd(kind: str, subject: str, document: Document, odd: Odd) -> Finding:
    line, column = place(document, odd.path)
    wanted = schemas.expected(kind, odd.path)
    message, hint = _odd_words(odd, _kinds(wanted))
    if odd.sort == "float" and _takes_share(wanted):
        share = _share(odd.text)
        hint = f"write {share}" if share else "write a whole number, or a share such as 30%"
    return Finding(
        document.file,
        line,
        column,
        dotted(odd.path),
        subject,
        message,
        hint,
        Reason.SCHEMA_FAILED,
    )


def _kinds(node: Mapping[str, Any]) -> set[str]:
    """The types that a value may have; of a choice with numbers, the number is what is meant."""
    found: set[str] = set()
    for option in node.get("anyOf", [node]):
        kind = option.get("type", [])
        found |= {kind} if isinstance(kind, str) else set(kind)
    return {"integer"} if "anyOf" in node and "integer" in found else found


def _odd_words(odd: Odd, wanted: set[str]) -> tuple[str, str]:
    text = odd.text
    quote = f'quote it: "{text}"'
    if odd.sort == "switch":
        switch = "true" if text.lower() in ("yes", "on") else "false"
        hint = f"write {switch}" if wanted == {"boolean"} else quote
        return f"{text} is true or false to some YAML readers and text to others", hint
    if odd.sort == "date":
        return f"{text} is a date to YAML", quote
    if odd.sort == "equals":
        return f"{text} has a meaning of its own in YAML", quote
    if wanted == {"integer"}:
        return (
            f"{text} is not a plain whole number",
            _count_hint(text),
        )
    if odd.sort == "float":
        return f"{text} is a number with a fraction to YAML where text belongs", quote
    return f"{text} is a number that YAML reads in its own way", quote


def _takes_share(node: Mapping[str, Any]) -> bool:
    return any("%" in option.get("pattern", "") for option in node.get("anyOf", [node]))


def _share(text: str) -> str:
    """`30%` for `0.3`; empty where it is no share or no whole number of percent."""
    match = re.fullmatch(r"0?\.([0-9]{1,2})0*", text)
    return f"{int(match[1].ljust(2, '0'))}%" if match else ""


def _count_hint(text: str) -> str:
    if text.isdigit() and text.startswith("0"):
        return "write it without zeros in front"
    whole = _whole(text)
    return f"write {whole}" if whole else "write a whole number in digits"


def _whole(text: str) -> str:
    """The plain spelling of a whole number written otherwise; empty where that is not clear."""
    digits = text.replace("_", "").lstrip("+")
    head, _, tail = digits.partition(".")
    if len(head) > MAX_DIGITS:
        return ""
    if head.isascii() and head.isdigit() and not tail.strip("0") and not head.startswith("0"):
        return head
    return ""
