"""Which flag a word of a command line is, as the engine's own parser would read it.

A reserved flag must be found in every spelling that the engine accepts: short and long, with
underscores, joined by `=`, negated, dotted, glued to a short flag (`-n2`), and, where the parser
is argparse, as any unambiguous prefix. The tables come from the parsers themselves
(`engines/tables`). An engine on a node may be newer than its table: a flag that is not in it is a
warning, never an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module


@dataclass(frozen=True)
class Flag:
    """One flag of an engine."""

    names: tuple[str, ...]
    arity: str
    """`0`, `1`, `2`, `?` (one or none), `+` (one or more)."""
    json: bool = False
    removed: bool = False
    env: str = ""

    @property
    def name(self) -> str:
        """The spelling to speak of it by: the first long one."""
        return next((n for n in self.names if n.startswith("--")), self.names[0])


@dataclass(frozen=True)
class FlagTable:
    """All flags of one engine and how its parser matches them."""

    source: str
    version: str
    abbreviates: bool
    """argparse: an unambiguous prefix stands for the flag."""
    flags: tuple[Flag, ...]
    spellings: Mapping[str, Flag]

    def find(self, word: str) -> tuple[Flag, ...]:
        """The flags that `word` may stand for: one if it is clear, none if it is unknown.

        Several where a prefix is ambiguous: the engine refuses it, but a table of another version
        may not, so every one of them counts.
        """
        name = spelled(word)
        for exact in (word.split("=", 1)[0], name):
            if exact in self.spellings:
                return (self.spellings[exact],)
        if not self.abbreviates or name in ("-", "--"):
            return ()
        found = self.starts(word)
        if not found and not word.startswith("--") and word[:2] in self.spellings:
            found = (self.spellings[word[:2]],)
        return found

    def starts(self, word: str) -> tuple[Flag, ...]:
        """The flags with a spelling that begins with `word`."""
        name = spelled(word)
        return tuple(dict.fromkeys(f for n, f in self.spellings.items() if n.startswith(name)))

    def nearest(self, word: str) -> str:
        """The spelling closest to `word`, or empty."""
        close = difflib.get_close_matches(spelled(word), self.spellings, n=1, cutoff=0.75)
        return close[0] if close else ""


@dataclass(frozen=True)
class Word:
    """One flag of a list of arguments, with what belongs to it."""

    index: int
    """Its place in the list."""
    text: str
    flags: tuple[Flag, ...]
    """What it may stand for; empty: unknown to the table, or no flag at all."""
    values: tuple[tuple[int, str], ...] = ()
    """(place, value): the words that it takes, or what follows its `=`."""
    stray: bool = False
    """Not a flag, and no flag before it takes it."""


def spelled(word: str) -> str:
    """The flag's name in `word`, as the tables spell it: without value, dots and underscores."""
    name = word.split("=", 1)[0]
    if not name.startswith("--"):
        return name.split(".", 1)[0] if len(name) > 2 else name
    return "--" + name[2:].split(".", 1)[0].replace("_", "-")


def is_flag(word: str) -> bool:
    """Whether a parser would see a flag in `word`: `-1`, `-` and words with spaces are values."""
    head = word.split("=", 1)[0]
    return len(head) > 1 and head[0] == "-" and not head[1].isdigit() and " " not in head


def walk(table: FlagTable, args: tuple[str, ...]) -> Iterator[Word]:
    """The flags of `args` in order, each with its values; a value is never taken for a flag."""
    index, open_ended = 0, False
    while index < len(args):
        text = args[index]
        if not is_flag(text):
            yield Word(index, text, (), stray=not open_ended)
            index += 1
            continue
        flags = table.find(text)
        values = tuple(_values(table, flags, args, index))
        yield Word(index, text, flags, values)
        open_ended = not flags
        index = max([index, *(place for place, _ in values)]) + 1


def _values(
    table: FlagTable, flags: tuple[Flag, ...], args: tuple[str, ...], index: int
) -> Iterator[tuple[int, str]]:
    if "=" in args[index]:
        yield index, args[index].split("=", 1)[1]
        return
    if flags and not args[index].startswith("--") and not table.starts(args[index]):
        yield index, args[index][2:]
        return
    if not flags or "." in args[index]:
        most = 1 if flags else 0
    else:
        most = {"0": 0, "1": 1, "2": 2, "?": 1, "+": len(args)}[flags[0].arity]
    fixed = bool(flags) and flags[0].arity in ("1", "2") and not table.abbreviates
    for place in range(index + 1, min(index + 1 + most, len(args))):
        # argparse never takes a known flag for a value; llama.cpp takes whatever comes next.
        if not fixed and is_flag(args[place]):
            return
        yield place, args[place]


@cache
def table(name: str) -> FlagTable:
    """The table of `engines/tables/<name>.py`."""
    module = import_module(f"engines.tables.{name}")
    flags = tuple(_flag(row) for row in module.ROWS.strip().splitlines())
    spellings = {spelling: flag for flag in flags for spelling in flag.names}
    return FlagTable(module.SOURCE, module.VERSION, module.ABBREVIATES, flags, spellings)


def _flag(row: str) -> Flag:
    words = row.split()
    names = tuple(word for word in words if word.startswith("-"))
    arity, *rest = words[len(names) :]
    env = next((word[4:] for word in rest if word.startswith("env=")), "")
    return Flag(names, arity, "json" in rest, "removed" in rest, env)
