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
from itertools import islice
from typing import Any

import yaml
from yaml._yaml import CParser

from reconciler.core.changes import Reason
from reconciler.fleet.findings import Finding, dotted, quoted
from reconciler.fleet.limits import Limits
from reconciler.fleet.plaintext import BAD_VALUE, decode
from reconciler.fleet.scalars import MAYBE_ODD, is_text, plain

Path = tuple[str | int, ...]


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
    aliases: bool = False
    """Some value is written once and used again."""


KEY = "\0key"
"""Last element of a position's path that points at a key; no key of a document can equal it."""


_CONFLICT = re.compile(r"^<{7} .{0,80}", re.MULTILINE)


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
        self.text = text
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
        except yaml.YAMLError as error:
            said = str(error).split("\n", 1)[0]
            self.out.findings.append(
                Finding(self.file, 1, 1, "", "", f"not YAML: {said}", "", Reason.PARSE_FAILED)
            )
            self.out.complete = False
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
            if MAYBE_ODD(value) or not value:
                value = self._plain(value)
        elif event.style == '"' and BAD_VALUE.search(value):
            self._report(
                f"{quoted(value)} has control characters, written as escapes", "remove them"
            )
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, 1)
        self._put(value)

    def _plain(self, text: str) -> Any:
        """A plain scalar's value; what is odd is noted with its path."""
        value, sort = plain(text)
        if sort:
            self.odd.append(Odd(self._path(), text, sort))
        return value

    def _key(self, event: Any, frame: _Frame) -> None:
        text = event.value
        bare = event.style is None or event.style == ""
        if event.anchor is not None:
            self.anchors[event.anchor] = (text, 1)
        if bare and text == "<<":
            if frame.merges is not None:
                self._report("'<<' is given twice in one mapping", "write '<<: [*a, *b]'")
            frame.merges = frame.merges or []
            frame.key = _MERGE
            return
        if bare and (not text or MAYBE_ODD(text)) and not is_text(text):
            what = "an empty key" if not text else f"the key {text} is not text to YAML"
            self._report(what, f'quote it: "{text}"' if text else "give it a name")
        elif BAD_VALUE.search(text) or "\n" in text:
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
            hint = "keys are plain words; a template ('{{ … }}') is not filled in here"
            self._report("a key that is itself a list or mapping", hint)
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
        self.out.aliases = True
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
        if conflict := _CONFLICT.search(self.text):
            line = self.text.count("\n", 0, conflict.start()) + 1
            message = f"a merge conflict that was not resolved: {quoted(conflict.group())}"
            hint = (
                "keep one of the two sides, and remove the lines with <<<<<<<, ======= and >>>>>>>"
            )
            self.out.findings.append(
                Finding(self.file, line, 1, "", "", message, hint, Reason.PARSE_FAILED)
            )
            self.out.complete = False
            return
        mark = error.problem_mark or error.context_mark
        if "quoted scalar" in (error.context or "") and "unexpected" in (error.problem or ""):
            mark = error.context_mark or mark  # where it was opened, not where the file ended
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        problem = error.problem or "cannot be parsed"
        message = f"not YAML: {problem}" + (f" ({error.context})" if error.context else "")
        advice = _advice(message)
        if "mapping values are not allowed" in message and self._is_first_colon(mark):
            advice = "look at the indentation: it must begin in the column of its neighbours"
        self.out.findings.append(
            Finding(self.file, line, column, "", "", message, advice, Reason.PARSE_FAILED)
        )
        self.out.complete = False

    def _is_first_colon(self, mark: yaml.Mark | None) -> bool:
        """Whether no ': ' stands before `mark` on its line: then no value of it holds one."""
        if mark is None:
            return False
        line = next(islice(self.text.split("\n"), mark.line, None), "")
        return ": " not in line[: mark.column]


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
        ("incompatible YAML document", "remove the line with %YAML"),
        ("directive", "a line that starts with % is for the parser: remove it"),
        ("expected <document start>", "put '---' between two documents"),
        ("exceeded maximum nesting depth", "nothing in a fleet repo nests so far"),
        ("while scanning a quoted scalar", "a quote is opened and never closed"),
    ):
        if part in message:
            return advice
    return "look at this line and the one before it"
