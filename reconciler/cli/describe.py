"""`reconcile command`: the command lines that a profile or placement gives, without any node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from reconciler.cli.options import output_option, worktree_options
from reconciler.cli.output import show_json
from reconciler.cli.session import Session
from reconciler.errors import Exit, SettingsError

if TYPE_CHECKING:
    from reconciler.core.describe import Description
    from reconciler.core.model import Desired


@click.command("command")
@click.argument("name", metavar="PLACEMENT|PROFILE")
@worktree_options
@click.option("--shell", is_flag=True, help="As text that can be pasted into shells on the nodes.")
@output_option("text", "json")
@click.pass_context
def command(
    ctx: click.Context, name: str, repo: str | None, ref: str | None, shell: bool, output: str
) -> int:
    """Show what would be executed for a placement or profile, rank by rank.

    Reads the working tree, or the commit that --ref names; asks no node.
    """
    from reconciler.core import describe
    from reconciler.core.codec import to_json
    from reconciler.core.shelltext import shell as as_shell

    with Session.of(ctx, repo, ref) as session:
        desired = _desired(session)
        try:
            described = describe.describe(desired, name)
        except ValueError as error:
            raise SettingsError("command", str(error)) from error
    if shell:
        click.echo(as_shell(described), nl=False)
    elif output == "json":
        show_json(to_json(described))
    else:
        click.echo("\n".join(_lines(described)))
    return int(Exit.OK)


def _desired(session: Session) -> Desired:
    if session.ref is None and session.source.has_worktree:
        return session.source.load_worktree()
    return session.source.load(session.revision())


def _lines(described: Description) -> list[str]:
    from reconciler.report.clean import masked_argv, masked_env, printable

    ports = ", ".join(f"{name} {port}" for name, port in described.ports.items())
    lines = [f"{described.subject}: engine {described.engine}; ports {ports}"]
    for rank in described.ranks:
        gpus = f"; GPUs {', '.join(rank.gpus)}" if rank.gpus else ""
        lines += ["", f"rank {rank.rank} on {rank.node} ({rank.address}){gpus}"]
        for one in rank.commands:
            wait = f", once {one.wait_for} accepts" if one.wait_for else ""
            lines.append(f"  {one.name}{wait}:")
            lines += [f"    {k}={printable(v)}" for k, v in sorted(masked_env(one.env).items())]
            lines += [f"    {k}=(read from {path})" for k, path in sorted(one.env_files.items())]
            lines += [f"    {line}" for line in _argv(masked_argv(one.argv))]
        lines += [f"  file {file.path}: {len(file.content)} bytes" for file in rank.files]
        lines.append(f"  ready: {rank.ready}")
        lines.append(f"  stop: {rank.stop}")
    return lines


def _argv(argv: tuple[str, ...]) -> list[str]:
    """An option and its value on one line, as a person would write it."""
    import shlex

    from reconciler.report.clean import printable

    lines: list[str] = []
    for word in map(printable, map(shlex.quote, argv)):
        last = lines[-1].strip() if lines else ""
        takes = last and not word.startswith("-") and (last[0] != "-" or " " not in last)
        if takes:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}" if lines else word)
    return lines
