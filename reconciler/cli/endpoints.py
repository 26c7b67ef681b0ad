"""`--endpoints` and its companions: where this machine publishes what serves (docs/endpoints.md).

A setting of the control machine and not of git: two machines that follow one fleet repo each have
a balancer of their own.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reconciler.cli.options import Folder, seconds
from reconciler.errors import SettingsError

if TYPE_CHECKING:
    from reconciler.loop.publish import Publisher
    from reconciler.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])


def endpoints_options(command: F) -> F:
    """The three options; `publisher` makes something of them."""
    command = click.option(
        "--endpoints-hook-timeout",
        callback=seconds,
        default="10s",
        show_default=True,
        metavar="DURATION",
        help="How long the hook may take; at most a third of lease_s.",
    )(command)
    command = click.option(
        "--endpoints-hook",
        metavar="COMMAND",
        help="Run this after a change of the endpoints: words as in a shell, but without one.",
    )(command)
    return click.option(
        "--endpoints",
        type=Folder(),
        metavar="DIR",
        help="Publish what serves as files in this folder.",
    )(command)


def publisher(
    settings: Settings, folder: Path | None, hook: str | None, hook_timeout_s: float
) -> Publisher | None:
    """As the options say, else the environment. SettingsError where they do not go together."""
    from reconciler.loop.publish import Publisher

    folder = folder or settings.endpoints_dir
    hook = hook if hook is not None else settings.endpoints_hook
    if folder is None:
        if hook:
            raise SettingsError(
                "--endpoints-hook", "there are no endpoints to run it for", "give --endpoints DIR"
            )
        return None
    return Publisher(folder.absolute(), _argv(hook), hook_timeout_s)


def _argv(hook: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(hook))
    except ValueError as error:
        raise SettingsError("--endpoints-hook", f"{hook!r}: {error}", "close the quote") from error
    if words and shutil.which(words[0]) is None:
        raise SettingsError(
            "--endpoints-hook",
            f"{words[0]} is no program that can be executed",
            "give its whole path, and make it executable",
        )
    return words
