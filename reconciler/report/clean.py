"""The one sink through which text of nodes and of YAML passes before a person or a log sees it.

Two dangers end here. A node's answer or a commit may hold terminal escapes or bidirectional marks
that make a plan read as something else: they are shown as escapes. And a value may be a secret:
what a field or flag of a telling name holds is replaced, whatever it is, because a masked harmless
value costs a look at the repo and a shown secret costs a rotation.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "(sensitive)"

LONGEST_VALUE = 120
"""Characters of one value in a plan; a rendered file's text would push the rest off the screen."""

_TELLING = re.compile(
    r"(api[-_]?key|token(?!i|s\b|_?id)|secret|passw(or)?d|credential|private[-_]?key|authorization)",
    re.IGNORECASE,
)
"""Names whose values are secrets. `tokenizer`, `max-tokens` and `pad_token_id` are not."""

_SHAPES = re.compile(
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}|nvapi-[\w-]{20,}"
    r"|-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----|(?<=://)[^/@:\s]{1,64}:[^/@\s]{1,128}(?=@)"
)
"""Prefixes that issuers publish for secret scanners, and passwords in URLs: an engine's last log
lines may hold one, and no field's name tells."""

_KEEP = frozenset("\t")
_BREAKING = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode categories that move the cursor, reorder text or cannot be encoded."""


def printable(text: str) -> str:
    """`text` on one line, as it may be shown: without what has the shape of a secret, and with an
    escape for whatever could move a cursor or reorder what is read."""
    text = _SHAPES.sub(MASK, text)
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _harmless(c) else _escaped(c) for c in text)


def _harmless(char: str) -> bool:
    return char in _KEEP or unicodedata.category(char) not in _BREAKING


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def cleaned(data: Any) -> Any:
    """JSON as it may be given out: every text without what has the shape of a secret."""
    if isinstance(data, str):
        return _SHAPES.sub(MASK, data)
    if isinstance(data, Mapping):
        return {key: cleaned(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [cleaned(value) for value in data]
    return data


def shortened(text: str, limit: int = LONGEST_VALUE) -> str:
    """`text`, cut in the middle where it is longer than `limit`: both ends tell values apart."""
    if len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail - 1]}…{text[-tail:]}"


def sensitive(name: str) -> bool:
    """Whether a field, variable or flag of this name holds a secret."""
    return bool(_TELLING.search(name))


def masked(path: str, value: str) -> str:
    """The value of a field as it may be shown; its path decides, or a flag inside the value."""
    if not value:
        return value
    if sensitive(path):
        return MASK
    name, equals, _ = value.strip("'\"").partition("=")
    if equals and name.startswith("-") and sensitive(name):
        return f"{name}={MASK}"
    return value


def masked_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line as it may be shown: the value after a telling flag is replaced."""
    shown = []
    hide = False
    for word in argv:
        if hide and not word.startswith("--"):
            shown.append(MASK)
        else:
            shown.append(masked("", word))
        hide = word.startswith("-") and "=" not in word and sensitive(word)
    return tuple(shown)


def masked_env(env: Mapping[str, str]) -> dict[str, str]:
    """An environment as it may be shown."""
    return {name: masked(name, value) for name, value in env.items()}
