"""`reconcile hold`: the node itself refuses to act, because a person works on it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from reconciler.cli.leasing import actor
from reconciler.cli.options import repo_options, seconds
from reconciler.cli.session import Session
from reconciler.errors import Exit, SettingsError
from reconciler.report.words import duration

A_DAY_S = 86_400.0


@click.command()
@click.argument("node")
@click.option(
    "--for", "for_s", callback=seconds, metavar="DURATION", help="Until it ends by itself: 2h, 1d."
)
@click.option("--reason", metavar="TEXT", help="Why; everyone sees it.")
@click.option("--launch", metavar="LAUNCH", default="", help="Hold this launch only.")
@click.option("--clear", is_flag=True, help="End the hold.")
@repo_options
@click.pass_context
def hold(
    ctx: click.Context,
    node: str,
    for_s: float | None,
    reason: str | None,
    launch: str,
    clear: bool,
    repo: str | None,
    ref: str | None,
) -> int:
    """Leave NODE (or one launch on it) alone: starts, stops and repairs are refused there."""
    if not clear and not reason:
        raise SettingsError("hold", "a reason is missing", "say why: --reason 'replacing a fan'")
    with Session.of(ctx, repo, ref) as session:
        desired = session.inventory()
        if node not in desired.nodes:
            known = ", ".join(sorted(desired.nodes)) or "none"
            raise SettingsError(f"node {node}", "does not exist", f"there are: {known}")
        if clear:
            session.pool.request(desired, node, "hold", clear=True)
            click.echo(f"{node} is no longer held.")
            return int(Exit.OK)
        wish: dict[str, object] = {"who": actor(session), "reason": reason, "launch": launch}
        if for_s is not None:
            wish["for_s"] = for_s
        session.pool.request(desired, node, "hold", set=wish)
    if for_s is None:
        click.echo(f"{launch or node} is held; `reconcile hold {node} --clear` ends it.")
        return int(Exit.OK)
    end = datetime.now(UTC) + timedelta(seconds=for_s)
    day = "%H:%M" if for_s < A_DAY_S else "%Y-%m-%d %H:%M"
    click.echo(f"{launch or node} is held until {end:{day}} UTC ({duration(for_s)}).")
    return int(Exit.OK)
