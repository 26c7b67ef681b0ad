"""Characters that a web page or a word processor put in: they look like what was meant.

An en dash in place of two hyphens, a no-break space inside a path, a quote that is no quote to
YAML: a reader of the pull request sees nothing, and the engine ends minutes later over a flag or
path that seems to be right. Text that people read (reasons, labels, files) may hold them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from reconciler.core.changes import Reason
from reconciler.core.model import Profile
from reconciler.fleet.checks.secrets import texts
from reconciler.fleet.findings import Finding, quoted
from reconciler.fleet.repo import Entry, Repo
from reconciler.fleet.strictyaml import Path

_UNSEEN = re.compile(
    "[\u00a0\u00ad\u034f\u115f\u1160\u1680\u180e\u2000-\u200f\u202f\u205f-\u2064\u3000\u3164\uffa0]"
)
"""Blanks of other widths and what has no width (Unicode 15, categories Zs and Cf, and fillers)."""

_DASH = re.compile("[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]+").match
_QUOTED = re.compile("[\u2018\u201a\u201c\u201e\u00ab].*[\u2018\u2019\u201c\u201d\u00bb]", re.S)


def check(repo: Repo) -> Iterator[Finding]:
    """Findings about the paths of models, and the arguments and environments of profiles."""
    for entry in repo.of("Model").values():
        model = entry.value
        paths: list[tuple[Path, str]] = [(("path",), model.path)]
        paths += [(("paths", pool), path) for pool, path in model.paths.items()]
        paths += [(("files", index), path) for index, path in enumerate(model.files)]
        for where, text in paths:
            if unseen := _UNSEEN.search(text):
                yield _finding(repo, entry, where, text, _is(unseen.group()), "type it anew")
            elif text != text.strip():
                said = "begins or ends with a blank"
                yield _finding(repo, entry, where, text, said, "remove it", warning=True)
    for entry in repo.of("Profile").values():
        if entry.value is None:
            continue
        for where, text in repo.memory.of(entry.value, _beyond_ascii):
            # A mistake of a base is told where it is written.
            if where[0] in entry.document.data:
                yield from _word(repo, entry, where, text)


def _beyond_ascii(profile: Profile) -> list[tuple[Path, str]]:
    """Texts that a program reads and that may hold lookalikes."""
    return [
        (where, text)
        for where, _, text in texts(profile)
        if where[0] != "files" and not text.isascii()
    ]


def _word(repo: Repo, entry: Entry, where: Path, text: str) -> Iterator[Finding]:
    is_arg = isinstance(where[-1], int)
    if is_arg and (dash := _DASH(text)):
        said, hint = f"begins with {_named(dash.group()[0])}", "write '-' or '--'"
        yield _finding(repo, entry, where, text, said, hint)
    elif _QUOTED.fullmatch(text):
        said = f"stands in quotes ({_named(text[0])}) that YAML takes for a part of it"
        is_flag = is_arg and text[1:2] in ("-", "\u2013", "\u2014")
        yield _finding(repo, entry, where, text, said, 'write "', warning=not is_flag)
    elif unseen := _UNSEEN.search(text):
        is_flag = is_arg and text.startswith("-")
        hint = "type it anew"
        yield _finding(repo, entry, where, text, _is(unseen.group()), hint, warning=not is_flag)


def _is(char: str) -> str:
    return f"holds {_named(char)}, which looks like a blank or like nothing"


def _named(char: str) -> str:
    return f"U+{ord(char):04X}"


def _finding(
    repo: Repo, entry: Entry, where: Path, text: str, said: str, hint: str, *, warning: bool = False
) -> Finding:
    message = f"{quoted(text)} {said}"
    return repo.finding(entry, where, message, hint, reason=Reason.SCHEMA_FAILED, warning=warning)
