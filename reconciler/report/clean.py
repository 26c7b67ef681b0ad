"""The one sink through which text of nodes and of YAML passes before a person or a log sees it.

Two dangers end here. A node's answer or a commit may hold terminal escapes or bidirectional marks
that make a plan read as something else: they are shown as escapes. And a value may be a secret:
what a field or flag of a telling name holds is replaced, whatever it is, because a masked harmless
value costs a look at the repo and a shown secret costs a rotation.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from reconciler.core.secrets import MASK, sensitive, without_secrets

LONGEST_VALUE = 120
"""Characters of one value in a plan; a rendered file's text would push the rest off the screen."""

_KEEP = frozenset("\t")
_BREAKING = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode categories that move the cursor, reorder text or cannot be encoded."""


LONGEST_LINE = 8_000
"""A node's words reach a terminal by this way: an error of eight megabytes is no message."""


def printable(text: str) -> str:
    """`text` on one line, as it may be shown: without what has the shape of a secret, and with an
    escape for whatever could move a cursor or reorder what is read."""
    text = without_secrets(text)
    if len(text) > LONGEST_LINE:
        text = f"{text[:LONGEST_LINE]}… ({len(text)} characters)"
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
        return without_secrets(data)
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
