"""~/.ssh/config as people have it: files that include files, `Match` blocks, a line that is wrong.

paramiko reads one file, passes over `Include` in silence, and ends with an exception of its own on
what it does not know; so the text is put together here first. Format: ssh_config(5) of OpenSSH 9.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from pathlib import Path

import paramiko
from paramiko.ssh_exception import ConfigParseError, CouldNotCanonicalize

from reconciler.core.observed import LookError
from reconciler.errors import SettingsError
from reconciler.nodes.protocol import NodeUnseen

MAX_DEPTH = 16
"""Files that include each other (OpenSSH's own limit)."""

_LINE = re.compile(r"(\w+)(?:\s*=\s*|\s+)(.+)")
_NOT_ASKED = re.compile(
    r"\b(exec|tagged|localnetwork|sessiontype|command|version)\b", re.IGNORECASE
)
"""Criteria of `Match` that are not supported. paramiko would run the command of an `exec` with our
standard input: it would eat the answer to a question that is asked there."""

_NEVER = "Host !*"
"""Stands for a block that asks what cannot be answered here: its settings are left out."""


def read(path: Path, home: Path) -> paramiko.SSHConfig | None:
    """What `path` and the files that it includes say; None where there is none or it is empty.

    Relative names in `Include` are below `home`/.ssh. Raises SettingsError with the line that
    cannot be read.
    """
    lines = list(_lines(path, home, 0))
    if not lines:
        return None
    text = "\n".join(lines)
    try:
        return paramiko.SSHConfig.from_text(text)
    except ConfigParseError as error:
        raise SettingsError(f"{path}", f"cannot be read: {error}", "see ssh_config(5)") from error


def lookup(config: paramiko.SSHConfig | None, subject: str, host: str) -> dict[str, object]:
    """The settings for `host`. NodeUnseen where the file asks for what is not supported."""
    if config is None:
        return {}
    try:
        return dict(config.lookup(host))
    except (CouldNotCanonicalize, ConfigParseError, KeyError, ValueError) as error:
        reason = f"~/.ssh/config cannot be followed for {host}: {type(error).__name__}: {error}"
        hint = "say it in the node's ssh settings, or in a Host block"
        raise NodeUnseen(subject, LookError.UNREACHABLE, reason, hint) from error


def _lines(path: Path, home: Path, depth: int, block: str = "Host *") -> Iterator[str]:
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError:
        # OpenSSH goes on, too; what is missing then shows at the login.
        return
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise SettingsError(f"{path}:{number}", f"no keyword and value: {line!r}", "remove it")
        keyword = found[1].lower()
        if keyword == "include":
            for name in _included(found[2], home):
                if depth >= MAX_DEPTH:
                    hint = "do they include each other?"
                    raise SettingsError(f"{path}:{number}", "too many files in files", hint)
                yield from _lines(name, home, depth + 1, block)
            # What follows still belongs to the block in which the file was included.
            yield block
            continue
        if keyword in ("host", "match"):
            block = line if keyword == "host" or not _NOT_ASKED.search(found[2]) else _NEVER
            line = block
        yield line


def _included(patterns: str, home: Path) -> Iterator[Path]:
    for word in re.findall(r'"([^"]+)"|(\S+)', patterns):
        name = word[0] or word[1]
        name = str(home / name[2:]) if name.startswith("~/") else str(home / ".ssh" / name)
        yield from map(Path, sorted(glob.glob(name)))
