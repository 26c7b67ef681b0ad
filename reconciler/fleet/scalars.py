"""What a plain YAML scalar is: text, a decimal whole number, true, false or nothing.

What YAML readers disagree on is *odd*: it has no value here, only the words that are written.
"""

from __future__ import annotations

import re
from typing import Any

INT = re.compile(r"0|-?[1-9][0-9]{0,17}").fullmatch
MAYBE_ODD = re.compile(
    r"[-+.0-9=<]|[yYnNoO~]|null|Null|NULL|true|True|TRUE|false|False|FALSE"
).match
_ODD = (
    # What PyYAML's resolver (YAML 1.1) or the YAML 1.2 core schema reads as something but text.
    ("switch", re.compile(r"yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF").fullmatch),
    (
        "number",
        re.compile(
            r"[-+]?0b[01_]+|[-+]?0x[0-9a-fA-F_]+|[-+]?0o[0-7]+|[-+]?[0-9][0-9_]*"
            r"|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+"
        ).fullmatch,
    ),
    (
        "float",
        re.compile(
            r"[-+]?([0-9][0-9_]*)?\.[0-9_]+([eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*\.?([eE][-+]?[0-9]+)?"
            r"|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]*|[-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?"
            r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
        ).fullmatch,
    ),
    ("date", re.compile(r"[0-9]{4}-[0-9][0-9]?-[0-9][0-9]?([Tt \t]\s*[0-9]{1,2}:.*)?").fullmatch),
    ("equals", re.compile(r"=|<<").fullmatch),
)
LONGEST_ODD = 256
"""Characters of a plain scalar up to which it is asked whether it looks like a number or a date."""

_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def is_text(text: str) -> bool:
    """Whether every reader takes a plain scalar for text."""
    if text in _NULLS or text in _BOOLS or INT(text):
        return False
    return len(text) > LONGEST_ODD or not any(matches(text) for _, matches in _ODD)


def plain(text: str) -> tuple[Any, str]:
    """The value of a plain scalar, and in which way it is odd; empty: in none."""
    if text in _NULLS:
        return None, ""
    if text in _BOOLS:
        return _BOOLS[text], ""
    if INT(text):
        return int(text), ""
    if len(text) > LONGEST_ODD:
        return text, ""
    return text, next((sort for sort, matches in _ODD if matches(text)), "")
