"""Printing: colour by plan symbol on a terminal, plain everywhere else, JSON for machines."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from reconciler.errors import SettingsError

_COLORS = {"+": "green", "-": "red", "-/+": "yellow", "+/-": "yellow", "~": "cyan"}
_COLORS |= {"?": "magenta", "!": "red"}


def is_terminal() -> bool:
    """Whether a person sees what goes to stdout."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def can_ask() -> bool:
    """Whether a person can be asked: they read stderr where stdout goes elsewhere (`| tee`)."""
    return sys.stdin.isatty() and (sys.stdout.isatty() or sys.stderr.isatty())


def agreed(question: str) -> bool:
    """Ask, on stderr where stdout goes elsewhere. Only where `can_ask`."""
    return click.confirm(question, err=not sys.stdout.isatty())


def must_agree(question: str, *, yes: bool) -> bool:
    """For what only a person may say. SettingsError where there is nobody to ask, and no --yes."""
    if yes:
        return True
    if not can_ask():
        raise SettingsError("nobody to ask here (no terminal)", "add --yes", "nothing was changed")
    return agreed(question)


def show(text: str) -> None:
    """Text to stdout; a plan's lines are coloured by the symbol that they start with."""
    for line in text.splitlines():
        symbol = line.split(None, 1)[0] if line[:2] == "  " and line[2:3].strip() else ""
        click.echo(click.style(line, fg=_COLORS[symbol]) if symbol in _COLORS else line)


def show_json(data: Any) -> None:
    """One JSON document to stdout."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def say(text: str) -> None:
    """A remark for a person: to stderr, so that stdout stays what was asked for."""
    click.echo(text, err=True)
