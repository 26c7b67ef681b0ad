"""`reconcile status`: what runs, whether it is what git says, and who has to do something."""

from __future__ import annotations

import click

from reconciler.cli.options import output_option, repo_options
from reconciler.cli.output import show_json
from reconciler.cli.session import Session
from reconciler.errors import Exit


@click.command()
@repo_options
@output_option("text", "json")
@click.pass_context
def status(ctx: click.Context, repo: str | None, ref: str | None, output: str) -> int:
    """Show each placement: sync, health, conditions, replicas; and the nodes with a fault.

    Asks the nodes and changes nothing. Ends with 1 where head cannot be followed.
    """
    from reconciler.loop.passes import Request, run_pass
    from reconciler.report.report_json import status_json
    from reconciler.report.status_text import status_text

    with Session.of(ctx, repo, ref) as session:
        report = run_pass(session.edges(), Request(ref=session.ref, act=False))
    if output == "json":
        show_json(status_json(report))
    else:
        click.echo(status_text(report), nl=False)
    return int(Exit.ERROR if report.plan is None or report.head_error else Exit.OK)
