"""YAML as a fleet repo may write it: one meaning for a reader, an editor and the parser.

Bytes in, plain documents out, or findings with line and column. The C parser's *events* are walked
with a stack of our own, so nothing recurses, and depth, number of values and the size after alias
expansion are counted before a value exists. What is refused and why:

- duplicate keys, also two `<<` in one mapping: a merge of two branches leaves both lines;
- keys that are not text, tags, dates, floats, `yes`/`no`/`on`/`off`, `010`, `1_000`, `0x1f`: YAML
  and its readers disagree on what they mean (nothing in a fleet repo is a float);
- byte order marks inside, U+2028, U+2029, U+0085, direction marks, control characters, a lone
  carriage return: one line in a review, two to a parser;
- anything but UTF-8.

Merge keys (`<<: *base`, `<<: [*a, *b]`) are allowed: own keys win, then the earlier of a list.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml._yaml import CParser

from reconciler.core.changes import Reason
from reconciler.fleet.findings import Finding, dotted, quoted

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Limits:
    """Bounds on what a repo may hold; each is checked before anything walks the data."""

    file_bytes: int = 4 << 20
    total_bytes: int = 64 << 20
    files: int = 20_000
    """YAML files. Other files are neither read nor counted against `total_bytes`."""
    entries: int = 200_000
    """Entries of the tree, folders included."""
    documents: int = 20_000
    """Documents of one file."""
    depth: int = 24
    """Nesting inside a document; the schemas need 6."""
    values: int = 20_000
    """Values of one document, aliases counted as often as they are used."""
    total_values: int = 1_000_000
    """Values of the whole repo: about 200 MB."""
    findings: int = 200
    """Findings of one file after which its reading ends."""


@dataclass(frozen=True)
class Odd:
    """A plain scalar that YAML does not read as what a reader sees; `text` is what is written."""

    path: Path
    text: str
    sort: str
    """float | number | date | switch | equals"""


@dataclass
class Document:
    """One YAML document of a file."""

    file: str
    index: int
    """Its number among the file's documents, for looking up positions."""
    line: int
    column: int
    data: Any
    odd: tuple[Odd, ...] = ()
    positions: dict[Path, tuple[int, int]] | None = None
    """Line and column of each value (`path`) and key (`path` + `KEY`); only when asked for."""


@dataclass
class Parsed:
    """What one file holds."""

    documents: list[Document] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    complete: bool = True
    """False: reading ended early, so the file may define more than is known."""
    values: int = 0


KEY = "\0key"
"""Last element of a position's path that points at a key; no key of a document can equal it."""

LFS_POINTER = b"version https://git-lfs.github.com/spec/"

_BAD_CHAR = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
    "|\r(?!\n)"
)
_BAD_VALUE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_INT = re.compile(r"0|-?[1-9][0-9]{0,17}").fullmatch
_MAYBE_ODD = re.compile(
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
    ("date", re.compile(r"[0-9]{4}-[0-9][0-9]?-[0-9][0-9]?([Tt \t].*)?").fullmatch),
    ("equals", re.compile(r"=|<<").fullmatch),
)
LONGEST_ODD = 256
"""Characters of a plain scalar up to which it is asked whether it looks like a number or a date."""

_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def _is_text(text: str) -> bool:
    """Whether every reader takes a plain scalar for text."""
    if text in _NULLS or text in _BOOLS or _INT(text):
        return False
    return len(text) > LONGEST_ODD or not any(matches(text) for _, matches in _ODD)


class _Again(Exception):
    """Something is wrong: the file is walked once more, with positions."""


class _Stop(Exception):
    """Reading of this file cannot go on."""


def parse(file: str, raw: bytes, limits: Limits) -> Parsed:
    """The documents of one file. Never raises for what a file holds."""
    text, findings = decode(file, raw, limits)
    if text is None:
        return Parsed(findings=findings, complete=False)
    try:
        return _Walk(file, text, limits, record=False).run()
    except _Again:
        return parse_with_positions(file, text, limits)


def parse_with_positions(file: str, text: str, limits: Limits) -> Parsed:
    """As `parse`, slower: the documents carry the position of each key and value."""
    return _Walk(file, text, limits, record=True).run()


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
        0x0D: "carriage return without line feed: one line in a review, two to a parser",
    }.get(code)
    if why is None:
        why = (
            "direction mark: it shows text in another order"
            if code > 0x2000
            else "control character"
        )
    return f"U+{code:04X} is not allowed ({why})"


def _line_column(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


class _Frame:
    """An open mapping or sequence."""

    __slots__ = ("anchor", "data", "is_map", "key", "merges", "start")

    def __init__(self, is_map: bool, anchor: str | None, start: int) -> None:
        self.is_map = is_map
        self.data: Any = {} if is_map else []
        self.key: Any = _NO_KEY
        self.anchor = anchor
        self.start = start
        self.merges: list[Any] | None = None


_NO_KEY = object()
_MERGE = object()


class _Walk:
    """One pass over the events of one file."""

    def __init__(self, file: str, text: str, limits: Limits, *, record: bool) -> None:
        self.file = file
        self.limits = limits
        self.record = record
        self.parser = CParser(text)
        self.out = Parsed()
        self.positions: dict[Path, tuple[int, int]] = {}
        self.stack: list[_Frame] = []
        self.root: Any = None
        self.odd: list[Odd] = []
        self.anchors: dict[str, tuple[Any, int] | None] = {}
        self.values = 0
        self.mark: Any = None

    # --- the loop ---

    def run(self) -> Parsed:
        try:
            self._documents()
        except yaml.MarkedYAMLError as error:
            self._yaml_error(error)
        except _Stop:
            self.out.complete = False
        return self.out

    def _documents(self) -> None:
        next_event = self.parser.get_event
        while True:
            event = next_event()
            if event is None or isinstance(event, yaml.StreamEndEvent):
                return
            if isinstance(event, yaml.DocumentStartEvent):
                if len(self.out.documents) >= self.limits.documents:
                    self.mark = event.start_mark
                    self._report(f"more than {self.limits.documents} documents", "split the file")
                    raise _Stop
                self._document(event)

    def _document(self, start: Any) -> None:
        self.positions, self.stack, self.odd, self.anchors = {}, [], [], {}
        self.values, self.root = 0, None
        first = None
        next_event: Callable[[], Any] = self.parser.get_event
        stack, limits = self.stack, self.limits
        while True:
            event = next_event()
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self.values += 1
                self._scalar(event)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self.values += 1
                self._open(event, kind is yaml.MappingStartEvent)
                if len(stack) > limits.depth:
                    self._report(
                        f"nested deeper than {limits.depth}", "nothing in a fleet repo nests so far"
                    )
                    raise _Stop
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._close()
            elif kind is yaml.AliasEvent:
                self._alias(event)
            else:
                break
            first = first or event.start_mark
            if self.values > limits.values:
                self.mark = event.start_mark
                self._report(
                    f"more than {limits.values} values in one document, aliases expanded",
                    "split the document, or write less by alias",
                )
                raise _Stop
        self.out.values += self.values
        mark = first or start.start_mark
        if self.root is not None:
            self.out.documents.append(
                Document(
                    self.file,
                    len(self.out.documents),
                    mark.line + 1,
                    mark.column + 1,
                    self.root,
                    tuple(self.odd),
                    self.positions if self.record else None,
                )
            )

    # --- events ---

    def _scalar(self, event: Any) -> None:
        self.mark = event.start_mark
        value: Any = event.value
        if event.tag is not None:
            self._refuse_tag(event.tag)
        stack = self.stack
        if stack and stack[-1].is_map and stack[-1].key is _NO_KEY:
            self._key(event, stack[-1])
            return
        if event.style is None or event.style == "":
            if _MAYBE_ODD(value) or not value:
                value = self._plain(value)
        elif event.style == '"' and _BAD_VALUE.search(value):
            self._report(
                f"{quoted(value)} has control characters, written as escapes", "remove them"
            )
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, 1)
        self._put(value)

    def _plain(self, text: str) -> Any:
        """What a plain scalar is. Only whole decimal numbers, true, false, null and text exist."""
        if text in _NULLS:
            return None
        if text in _BOOLS:
            return _BOOLS[text]
        if _INT(text):
            return int(text)
        if len(text) > LONGEST_ODD:
            return text
        for sort, matches in _ODD:
            if matches(text):
                self.odd.append(Odd(self._path(), text, sort))
                break
        return text

    def _key(self, event: Any, frame: _Frame) -> None:
        text = event.value
        plain = event.style is None or event.style == ""
        if event.anchor is not None:
            self.anchors[event.anchor] = (text, 1)
        if plain and text == "<<":
            if frame.merges is not None:
                self._report("'<<' is given twice in one mapping", "write '<<: [*a, *b]'")
            frame.merges = frame.merges or []
            frame.key = _MERGE
            return
        if plain and (not text or _MAYBE_ODD(text)) and not _is_text(text):
            what = "an empty key" if not text else f"the key {text} is not text to YAML"
            self._report(what, f'quote it: "{text}"' if text else "give it a name")
        elif _BAD_VALUE.search(text) or "\n" in text:
            self._report(f"the key {quoted(text)} has control characters", "remove them")
        if text in frame.data:
            line = self.positions.get((*self._path(), text, KEY), (0, 0))[0]
            self._report(
                f"the key {quoted(text)} is given twice in one mapping (first on line {line})",
                "keep one of them",
            )
        frame.key = text
        if self.record:
            self.positions.setdefault((*self._path(), KEY), self._here())

    def _open(self, event: Any, is_map: bool) -> None:
        self.mark = event.start_mark
        if event.tag is not None:
            self._refuse_tag(event.tag)
        stack = self.stack
        if stack and stack[-1].is_map and stack[-1].key is _NO_KEY:
            self._report("a key that is itself a list or mapping", "keys are plain words")
            raise _Stop
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        if self.record:
            self.positions.setdefault(self._path(), self._here())
        stack.append(_Frame(is_map, event.anchor, self.values))

    def _close(self) -> None:
        frame = self.stack.pop()
        if frame.merges:
            for source in frame.merges:
                for key, value in source.items():
                    frame.data.setdefault(key, value)
        if frame.anchor is not None:
            self.anchors[frame.anchor] = (frame.data, self.values - frame.start + 1)
        self._put(frame.data, placed=True)

    def _alias(self, event: Any) -> None:
        self.mark = event.start_mark
        name = event.anchor
        if name not in self.anchors:
            self._report(
                f"alias *{name} has no anchor before it in this document", "define it first"
            )
            raise _Stop
        known = self.anchors[name]
        if known is None:
            self._report(
                f"alias *{name} is inside what it names: it would hold itself", "remove it"
            )
            raise _Stop
        value, count = known
        self.values += count
        stack = self.stack
        if stack and stack[-1].is_map and stack[-1].key is _NO_KEY:
            self._report(f"alias *{name} is used as a key", "write the key out")
            raise _Stop
        self._put(value)

    def _put(self, value: Any, placed: bool = False) -> None:
        if self.record and not placed:
            self.positions.setdefault(self._path(), self._here())
        if not self.stack:
            self.root = value
            return
        frame = self.stack[-1]
        if not frame.is_map:
            frame.data.append(value)
            return
        if frame.key is _MERGE:
            self._merge(frame, value)
        else:
            frame.data[frame.key] = value
        frame.key = _NO_KEY

    def _merge(self, frame: _Frame, value: Any) -> None:
        sources = value if isinstance(value, list) else [value]
        if not all(isinstance(source, dict) for source in sources):
            self._report("'<<' takes a mapping or a list of mappings", "write '<<: *base'")
            return
        self.values += sum(map(len, sources))
        assert frame.merges is not None
        frame.merges.extend(sources)

    # --- findings ---

    def _path(self) -> Path:
        """Path of the value that comes next."""
        return tuple(
            ("<<" if f.key is _MERGE else f.key) if f.is_map else len(f.data)
            for f in self.stack
            if not (f.is_map and f.key is _NO_KEY)
        )

    def _here(self) -> tuple[int, int]:
        return self.mark.line + 1, self.mark.column + 1

    def _refuse_tag(self, tag: str) -> None:
        shown = quoted(tag.replace("tag:yaml.org,2002:", "!!"))
        self._report(f"the tag {shown} is not allowed", "remove it; quote a value that is text")

    def _report(self, message: str, hint: str) -> None:
        if not self.record:
            raise _Again
        line, column = self._here()
        path = dotted(self._path())
        self.out.findings.append(
            Finding(self.file, line, column, path, "", message, hint, Reason.PARSE_FAILED)
        )
        if len(self.out.findings) >= self.limits.findings:
            raise _Stop

    def _yaml_error(self, error: yaml.MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        problem = error.problem or "cannot be parsed"
        message = f"not YAML: {problem}" + (f" ({error.context})" if error.context else "")
        self.out.findings.append(
            Finding(self.file, line, column, "", "", message, _advice(message), Reason.PARSE_FAILED)
        )
        self.out.complete = False


def _advice(message: str) -> str:
    """What to do about the parser's commonest complaints (libyaml 0.2.5)."""
    for part, advice in (
        (
            "cannot start any token",
            "indent with spaces, and quote values that start with @, ` or %",
        ),
        ("mapping values are not allowed", "quote a value that holds ': '"),
        ("block scalar", "quote a value that starts with > or |"),
        (
            "did not find expected key",
            "look at the indentation, and quote a value that holds quotes",
        ),
        ("could not find expected ':'", "a line without a colon; look at the indentation"),
        ("exceeded maximum nesting depth", "nothing in a fleet repo nests so far"),
        ("while scanning a quoted scalar", "a quote is opened and never closed"),
    ):
        if part in message:
            return advice
    return "look at this line and the one before it"
