"""From the bytes of a file to text whose every character is harmless, or why not."""

from __future__ import annotations

import re

from reconciler.core.changes import Reason
from reconciler.fleet.findings import Finding
from reconciler.fleet.limits import Limits

LFS_POINTER = b"version https://git-lfs.github.com/spec/"

_BAD_CHAR = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    "\ud800-\udfff\ufffe\uffff]"
    "|\r(?!\n)"
)
BAD_VALUE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
    "\ufffe\uffff]"
)


def decode(file: str, raw: bytes, limits: Limits) -> tuple[str | None, list[Finding]]:
    """The text of a file whose characters are all harmless; else None and why."""

    def refuse(message: str, hint: str, line: int = 0, column: int = 0) -> Finding:
        return Finding(file, line, column, "", "", message, hint, Reason.PARSE_FAILED)

    if len(raw) > limits.file_bytes:
        return None, [
            refuse(
                f"it has {len(raw)} bytes, more than the {limits.file_bytes} that a file may have",
                "split it",
            )
        ]
    if raw.startswith(LFS_POINTER):
        return None, [
            refuse(
                "it is a Git LFS pointer, not YAML",
                "take YAML files out of LFS: drop their line in .gitattributes and add them anew",
            )
        ]
    try:
        text = raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        start = raw.rfind(b"\n", 0, error.start) + 1
        return None, [
            refuse(
                f"byte 0x{raw[error.start]:02x} is not UTF-8",
                "save the file as UTF-8",
                line,
                error.start - start + 1,
            )
        ]
    bad = [
        refuse(_bad_char_message(match.group()), "remove it", *_line_column(text, match.start()))
        for match, _ in zip(_BAD_CHAR.finditer(text), range(limits.findings), strict=False)
    ]
    return (None, bad) if bad else (text, [])


def _bad_char_message(char: str) -> str:
    code = ord(char[0])
    why = {
        0xFEFF: "byte order mark inside the file (were two files joined?)",
        0x2028: "line separator: one line in a review, two to a parser",
        0x2029: "paragraph separator: one line in a review, two to a parser",
        0x85: "next line: one line in a review, two to a parser",
        0xFFFE: "no character: is the file UTF-16, or damaged?",
        0xFFFF: "no character: is the file damaged?",
        0x0D: "carriage return without line feed: one line in a review, two to a parser",
    }.get(code)
    if why is None:
        why = (
            "direction mark: it shows text in another order"
            if code > 0x600
            else "control character"
        )
    return f"U+{code:04X} is not allowed ({why})"


def _line_column(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
