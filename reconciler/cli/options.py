"""Options that commands share, spelled once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?:\d+[smhd])+|\d+")


MOST_S = 366 * 86400
"""Of any duration: what is longer is a slip of the hand, and no calendar has its end."""


def seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """`90s`, `2h`, `1h30m`; a bare number is seconds. For `callback=`."""
    if value is None:
        return None
    if not _DURATION.fullmatch(value):
        raise click.BadParameter(f"{value!r} is no duration; write 90s, 15m, 2h or 1d", ctx, param)
    if value.isdigit():
        parts = [(value, "s")]
    else:
        parts = re.findall(r"(\d+)([smhd])", value)
    # Ten digits are three hundred years in seconds; Python refuses to read thousands of them.
    if any(len(number) > 10 for number, _ in parts):
        found = float(MOST_S + 1)
    else:
        found = float(sum(int(number) * _UNITS[unit] for number, unit in parts))
    if found > MOST_S:
        raise click.BadParameter(f"{value!r} is longer than 366d", ctx, param)
    return found


def at_least_a_second(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> float | None:
    """As `seconds`, where none at all would mean never, or without a pause."""
    found = seconds(ctx, param, value)
    if found is not None and found < 1:
        raise click.BadParameter(f"{value!r} is too short; write 1s or more", ctx, param)
    return found


def at_most_a_day(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """As `at_least_a_second`, within what `interval_s` of fleet.yaml may be."""
    found = at_least_a_second(ctx, param, value)
    if found is not None and found > _UNITS["d"]:
        raise click.BadParameter(f"{value!r} is too long; write 1d or less", ctx, param)
    return found


def not_empty(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """An empty text is most often a variable of a script that is not set: never the default."""
    if value is not None and not value.strip():
        what = param.metavar
        raise click.BadParameter(f"it is empty: give {what}, or leave the option out", ctx, param)
    return value


class Folder(click.Path):
    """A folder, there already or not; an empty text would be the working directory."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does it. Raises BadParameter."""
        if isinstance(value, str) and not value.strip():
            self.fail("it is empty: give a folder, or leave it out", param, ctx)
        return super().convert(value, param, ctx)


def _repo_options(default_ref: str) -> Callable[[F], F]:
    def add(command: F) -> F:
        command = click.option(
            "--ref",
            metavar="REF",
            callback=not_empty,
            help=f"Branch, tag or commit; default: {default_ref}.",
        )(command)
        return click.option(
            "--repo",
            metavar="PATH|URL",
            callback=not_empty,
            help="The fleet repo; default: the working directory, or the fleet that it is in.",
        )(command)

    return add


repo_options = _repo_options("HEAD")
"""`--repo` and `--ref`; given after a subcommand they win over those before it."""

worktree_options = _repo_options("the working tree (HEAD where there is none)")
"""The same, of commands that show what is not committed yet."""

root_options = _repo_options("HEAD (a dry run: the working tree)")
"""The same, before any subcommand."""


def output_option(*kinds: str) -> Callable[[F], F]:
    """`--output`, with text as default."""
    return click.option(
        "--output",
        "-o",
        type=click.Choice(kinds),
        default=kinds[0],
        show_default=True,
        help="Form of the output.",
    )


secrets_option = click.option(
    "--secrets",
    type=Folder(),
    metavar="DIR",
    help="Folder of the reconciler's own secrets; default: RECONCILE_SECRETS_DIR.",
)
"""The folder of `reconciler:NAME`; on the machine that acts, and never in git."""


reason_option = click.option(
    "--reason",
    metavar="TEXT",
    required=True,
    help="Why; everyone sees it, and the journal keeps it.",
)
