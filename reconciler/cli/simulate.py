"""`reconcile simulate`: a rollout played forward before anybody merges it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from reconciler.cli.options import not_empty, output_option, seconds, worktree_options
from reconciler.cli.output import say, show, show_json
from reconciler.cli.session import Session
from reconciler.cli.standin import check_stand_in, chosen
from reconciler.errors import Exit, SettingsError

if TYPE_CHECKING:
    from reconciler.loop.forecasting import Foreseen
    from reconciler.simulate.forecast import Forecast


@click.command()
@worktree_options
@click.option("--offline", is_flag=True, help="Ask no node: begin with every node empty.")
@click.option(
    "--base",
    metavar="REF",
    callback=not_empty,
    help="Ask no node: begin as if all of REF ran, from where this branch left it.",
)
@click.option(
    "--observed",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Begin with a saved `reconcile observe` instead of the nodes.",
)
@click.option(
    "--load",
    callback=seconds,
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="Load time of models whose facts.load_minutes is not written down.",
)
@click.option(
    "--limit",
    callback=seconds,
    default="1d",
    show_default=True,
    metavar="DURATION",
    help="Stop after so much virtual time.",
)
@click.option(
    "--failing",
    multiple=True,
    metavar="PROFILE",
    help="What if this profile never became ready? May be repeated.",
)
@click.option("--approved", is_flag=True, help="As if `reconcile approve` let everything through.")
@output_option("text", "json", "markdown")
@click.pass_context
def simulate(
    ctx: click.Context,
    repo: str | None,
    ref: str | None,
    offline: bool,
    base: str | None,
    observed: Path | None,
    load: float,
    limit: float,
    failing: tuple[str, ...],
    approved: bool,
    output: str,
) -> int:
    """Play a revision's rollout forward in virtual time; touch nothing.

    From the nodes as they are now: every step, how long until converged, the lowest number of ready
    replicas of each placement on the way, what is held, and what cannot be known. Looks at the
    working tree, or at the commit that --ref names. With --base it shows what a branch would do to
    a fleet on which its base runs, and needs no node.

    Exit codes: 0 it converges; 3 something is held, or the limit came first; 4 a guard or a policy
    holds it.
    """
    from reconciler.loop.forecasting import foresee
    from reconciler.loop.values import Request
    from reconciler.simulate.forecast import Assumptions

    check_stand_in(offline, base, observed)
    given = Assumptions(load, limit, frozenset(failing), approved)
    with Session.of(ctx, repo, ref) as session:
        worktree = session.ref is None and _has_worktree(session)
        stand_in = chosen(session, offline, base, observed)
        edges = session.edges(stand_in)
        _check_profiles(session, failing, worktree)
        made = foresee(edges, Request(ref=session.ref, worktree=worktree, act=False), given)
    return _show(made, output, stand_in.basis if stand_in else "")


def _check_profiles(session: Session, failing: tuple[str, ...], worktree: bool) -> None:
    """A name that is mistyped would fail nothing, and the forecast would look well."""
    if not failing:
        return
    source = session.source
    desired = source.load_worktree() if worktree else source.load(session.revision())
    for name in failing:
        if name not in desired.profiles:
            known = ", ".join(sorted(desired.profiles)) or "none"
            raise SettingsError(f"--failing {name}", "names no profile", f"there are: {known}")


def _has_worktree(session: Session) -> bool:
    return "://" not in session.location and session.source.has_worktree


def _show(made: Foreseen, output: str, basis: str) -> int:
    from reconciler.report.forecast import forecast_json, forecast_markdown, forecast_text
    from reconciler.report.status_text import head_error_lines

    for line in head_error_lines(made.error) if made.error is not None else ():
        say(line)
    for note in made.notes:
        say(note)
    if made.forecast is None:
        return int(Exit.ERROR)
    if output == "json":
        show_json(forecast_json(made.forecast, observed_at=made.observed_at, basis=basis))
    elif output == "markdown":
        click.echo(forecast_markdown(made.forecast, basis), nl=False)
    else:
        show(forecast_text(made.forecast, basis))
    return int(exit_code(made.forecast))


def exit_code(made: Forecast) -> Exit:
    """Of a forecast: whether merging this ends well."""
    from reconciler.loop.outcome import POLICY
    from reconciler.simulate.forecast import Outcome

    if made.outcome is Outcome.CONVERGED:
        return Exit.OK
    blocked = any(h.reason in POLICY for h in made.standing)
    return Exit.BLOCKED if blocked else Exit.PARTIAL
