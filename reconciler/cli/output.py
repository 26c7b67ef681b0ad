"""Printing: colour by plan symbol on a terminal, plain everywhere else, JSON for machines."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

_COLORS = {"+": "green", "-": "red", "-/+": "yellow", "+/-": "yellow", "~": "cyan"}
_COLORS |= {"?": "magenta", "!": "red"}


def is_terminal() -> bool:
    """Whether a person is at both ends: asked, and able to answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


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
