"""What validation says: one finding per mistake, each with its place, and how findings are shown.

Pure text in, text out. Nothing here reads a file or decides what a mistake is; the exit code and
the stream are the caller's business. Values that come out of a repo are escaped on the way out, so
that a terminal shows what a file holds and not what it wants the terminal to do.
"""

from __future__ import annotations

import difflib
import heapq
import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reconciler.core.changes import Reason
from reconciler.core.words import one_or

MAX_SHOWN = 200
"""Findings shown of one file as text: a broken generator can make a hundred thousand."""

MAX_PATH = 60
"""Characters of a key path that are shown."""

MAX_VALUE = 80
"""Characters of a value that a message repeats; the place tells where the rest is."""


@dataclass(frozen=True, order=True)
class Finding:
    """One mistake. The order of fields is the order in which findings are shown."""

    file: str
    line: int
    """1-based; 0 where the finding is about the file as a whole."""
    column: int
    """1-based, in characters."""
    path: str
    """Key path inside the document (`args[3]`); empty: the document or file as a whole."""
    subject: str
    """The thing: `placement chat`, or the file."""
    message: str
    """What is wrong with these values."""
    hint: str
    """What to do; empty where the message says it."""
    reason: Reason
    warning: bool = False

    @property
    def text(self) -> str:
        """`placement chat: replicas: 'two' is text …; write a whole number`."""
        parts = [self.subject, self.path] if self.path else [self.subject]
        said = ": ".join([*(part for part in parts if part), self.message])
        return f"{said}; {self.hint}" if self.hint else said

    @property
    def where(self) -> str:
        """`placements/chat.yaml:12:5`."""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file

    def __str__(self) -> str:
        level = "warning: " if self.warning else ""
        return f"{escape(self.where)}: {level}{escape(self.text)}"


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sorted by place, each once. What does not parse is not told again for having no shape."""
    once = set(findings)
    unparsed = {f.where for f in once if f.reason is Reason.PARSE_FAILED and f.line}
    return tuple(
        sorted(f for f in once if f.reason is not Reason.SCHEMA_FAILED or f.where not in unparsed)
    )


def errors(findings: Iterable[Finding], *, strict: bool = False) -> tuple[Finding, ...]:
    """Those that stop a revision; with `strict` warnings do too."""
    return tuple(f for f in findings if strict or not f.warning)


def summary(findings: Sequence[Finding]) -> str:
    """`3 errors, 1 warning in 2 files`; `no findings`."""
    if not findings:
        return "no findings"
    bad = sum(not f.warning for f in findings)
    warned = len(findings) - bad
    counts = [_count(n, word) for n, word in ((bad, "error"), (warned, "warning")) if n]
    return f"{', '.join(counts)} in {_count(len({f.file for f in findings}), 'file')}"


def as_text(findings: Sequence[Finding]) -> str:
    """One line each, at most `MAX_SHOWN` a file, and the count."""
    lines, shown = [], dict[str, int]()
    for finding in findings:
        shown[finding.file] = shown.get(finding.file, 0) + 1
        if shown[finding.file] <= MAX_SHOWN:
            lines.append(str(finding))
    lines += [
        f"{escape(file)}: {_count(count - MAX_SHOWN, 'more finding')} of this file"
        f" {one_or(count - MAX_SHOWN, 'is', 'are')} not shown"
        for file, count in shown.items()
        if count > MAX_SHOWN
    ]
    return "\n".join([*lines, summary(findings)]) + "\n"


def as_json(findings: Sequence[Finding]) -> str:
    """For machines: every finding with all its fields, and the counts."""
    return json.dumps(
        {
            "format_version": "1.0",
            "errors": sum(not f.warning for f in findings),
            "warnings": sum(f.warning for f in findings),
            "findings": [to_json(f) for f in findings],
        },
        indent=2,
    )


def to_json(finding: Finding) -> dict[str, object]:
    """One finding as plain data."""
    return {
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
        "path": finding.path,
        "subject": finding.subject,
        "message": finding.message,
        "hint": finding.hint,
        "reason": finding.reason.value,
        "severity": "warning" if finding.warning else "error",
    }


def as_github(findings: Sequence[Finding]) -> str:
    """Workflow commands that GitHub shows as annotations on the lines of a pull request.

    Source: GitHub's documentation, "Workflow commands for GitHub Actions": `%`, CR and LF are
    escaped in the message, and `:` and `,` too in properties.
    """
    lines = []
    for f in findings:
        place = f"file={_property(f.file)}"
        if f.line:
            place += f",line={f.line},col={f.column}"
        level = "warning" if f.warning else "error"
        lines.append(f"::{level} {place},title={_property(f.reason.value)}::{_data(f.text)}")
    return "".join(line + "\n" for line in lines)


def _data(text: str) -> str:
    return escape(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def escape(text: str) -> str:
    """`text` with what is not printable as `\\u…`: also zero-width and direction marks."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape_char(c) for c in text)


def _escape_char(char: str) -> str:
    if char.isprintable() and unicodedata.category(char) not in ("Cf", "Mn", "Me", "Zs"):
        return char
    if char == " ":
        return char
    code = ord(char)
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


def quoted(value: object) -> str:
    """A value as a message repeats it: quoted text, cut where it is long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    short = text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 1] + "…"
    return f"'{escape(short)}'"


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean 'replicas'?` where one of `known` is near; else the empty text.

    Long words are left out: difflib takes time with the product of both lengths.
    """
    options = [k for k in known if abs(len(k) - len(word)) <= 8 and len(k) <= MAX_VALUE]
    if len(word) > MAX_VALUE:
        return ""
    folded = {option.lower().replace("-", "_"): option for option in options}
    same = folded.get(word.lower().replace("-", "_"))
    match = [same] if same else difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    return f"did you mean '{match[0]}'?" if match else ""


def listed(words: Iterable[str], most: int = 12) -> str:
    """`a, b, c`, sorted, and how many more there are."""
    every = list(words)
    more = len(every) - most
    text = ", ".join(heapq.nsmallest(most, every))
    return f"{text} and {more} more" if more > 0 else text


def dotted(path: Iterable[str | int]) -> str:
    """A key path as it is shown: `env.A`, `args[3]`."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += f".{escape(key)}" if text else escape(key)
    return text if len(text) <= MAX_PATH else f"{text[: MAX_PATH - 1]}…"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
