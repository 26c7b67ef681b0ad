"""`reconcile` itself: one pass over the fleet repo, shown, confirmed on a terminal, applied."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reconciler.cli.endpoints import endpoints_options, publisher
from reconciler.cli.group import LateGroup
from reconciler.cli.options import not_empty, output_option, root_options, seconds, secrets_option
from reconciler.cli.output import agreed, can_ask, is_terminal, say, show, show_json
from reconciler.cli.session import Session
from reconciler.cli.standin import check_stand_in, chosen
from reconciler.cli.stopping import Stop, exit_code, handled
from reconciler.errors import Exit, SettingsError
from reconciler.settings import VARIABLES

if TYPE_CHECKING:
    from reconciler.core.changes import Plan
    from reconciler.loop.offline import OnlyLooks
    from reconciler.loop.passes import Request
    from reconciler.loop.seams import Edges
    from reconciler.nodes.apply import StepResult
    from reconciler.report.passreport import PassReport

SHORTEST_DIGEST = 15
"""`d1:` and 48 bits: enough that no other plan of this fleet is met by chance."""

GOES_ON = "What was started goes on; run `reconcile` again to go on from here."

EPILOG = (
    "Exit codes: 0 done or nothing to do; 1 error; 2 changes present (a dry run with"
    " --detailed-exitcode); 3 partial; 4 blocked by a guard, a policy or a lease; 5 the plan is"
    " stale; 128 and the signal's number when interrupted.\n\n\b\nEnvironment:\n"
) + "\n".join(f"  {name}\n      {text}" for name, text in VARIABLES.items())


@click.group(
    cls=LateGroup,
    invoke_without_command=True,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--version", is_flag=True, help="Show the version.")
@root_options
@click.option("--dry-run", is_flag=True, help="Show the plan of the working tree; touch nothing.")
@click.option("--offline", is_flag=True, help="Ask no node: plan as if every node were empty.")
@click.option(
    "--base",
    metavar="REF",
    callback=not_empty,
    help="Ask no node: plan as if all of REF ran, from where this branch left it.",
)
@click.option(
    "--observed",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Plan against a saved `reconcile observe` instead of the nodes.",
)
@output_option("text", "json", "markdown")
@click.option("--detailed-exitcode", is_flag=True, help="A dry run ends with 2 if it has changes.")
@click.option(
    "--expect",
    metavar="DIGEST",
    help="Apply only the plan of this digest (or its first 15 characters).",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask before applying.")
@click.option("--allow-dirty", is_flag=True, help="Act on uncommitted changes too.")
@click.option("--wait", is_flag=True, help="Go on until everything is ready.")
@click.option(
    "--timeout",
    callback=seconds,
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="How long --wait goes on.",
)
@endpoints_options
@secrets_option
@click.pass_context
def root(
    ctx: click.Context,
    version: bool,
    repo: str | None,
    ref: str | None,
    dry_run: bool,
    offline: bool,
    base: str | None,
    observed: Path | None,
    output: str,
    detailed_exitcode: bool,
    expect: str | None,
    yes: bool,
    allow_dirty: bool,
    wait: bool,
    timeout: float,
    endpoints: Path | None,
    endpoints_hook: str | None,
    endpoints_hook_timeout: float,
    secrets: Path | None,
) -> int:
    """Make GPU machines run exactly what a git repo of YAML says, or say why not.

    Without a subcommand: one pass over the fleet repo in the working directory.
    """
    ctx.obj = {"repo": repo, "ref": ref, "secrets": secrets}
    if ctx.invoked_subcommand is not None:
        return 0
    if version:
        from reconciler import __version__

        click.echo(f"reconcile {__version__}")
        return 0
    if (offline or base or observed) and not dry_run:
        raise SettingsError("--offline, --base, --observed", "only plan", "add --dry-run")
    check_stand_in(offline, base, observed)
    if expect is not None and len(expect) < SHORTEST_DIGEST:
        raise SettingsError(
            "--expect", f"{expect!r} is too short", f"give {SHORTEST_DIGEST} characters or all"
        )
    with Session.of(ctx, repo, ref) as session:
        if session.ref is not None and "://" not in session.location:
            session.revision()  # A slip in --ref is told as such, not as a head that is broken.
        if dry_run:
            stand_in = chosen(session, offline, base, observed)
            return _dry_run(session, stand_in, output, detailed_exitcode, allow_dirty)
        publishes = publisher(session.settings, endpoints, endpoints_hook, endpoints_hook_timeout)
        edges = session.edges(publisher=publishes, secrets_dir=secrets)
        wait_s = timeout if wait else 0.0
        stop = Stop()
        with handled(stop.handle):
            return _act(session, edges, stop, output, expect or "", yes, allow_dirty, wait_s)


def _dry_run(
    session: Session,
    stand_in: OnlyLooks | None,
    output: str,
    detailed: bool,
    allow_dirty: bool,
) -> int:
    from reconciler.loop.outcome import dry_exit_code
    from reconciler.loop.passes import Request, run_pass

    worktree = session.ref is None and (allow_dirty or _has_worktree(session))
    edges = session.edges(stand_in)
    report = run_pass(edges, Request(ref=session.ref, worktree=worktree, act=False))
    if report.head_error is not None or report.plan is None:
        _show_problem(report)
        return int(Exit.ERROR)
    _show_plan(report, report.plan, output, stand_in.basis if stand_in else "")
    _say_warnings(session)
    return int(dry_exit_code(report.plan, detailed=detailed))


def _has_worktree(session: Session) -> bool:
    return "://" not in session.location and session.source.has_worktree


def _show_problem(report: PassReport) -> None:
    from reconciler.report.status_text import head_error_lines

    if report.head_error is not None:
        for line in head_error_lines(report.head_error):
            say(line)
    for note in report.notes:
        say(note)


def _show_plan(report: PassReport, plan: Plan, output: str, basis: str = "") -> None:
    from reconciler.report.plan_json import plan_json
    from reconciler.report.plan_markdown import plan_markdown
    from reconciler.report.plan_text import plan_text

    if output == "json":
        show_json(plan_json(plan, observed_at=report.observed_at, basis=basis))
    elif output == "markdown":
        click.echo(plan_markdown(plan, basis), nl=False)
    else:
        show(plan_text(plan, basis))


def _say_warnings(session: Session) -> None:
    from reconciler.fleet.findings import as_text

    warnings = [f for f in session.source.findings if f.warning]
    if warnings:
        say(as_text(warnings).rstrip())


# --- Acting -----------------------------------------------------------------------------------


def _act(
    session: Session,
    edges: Edges,
    stop: Stop,
    output: str,
    expect: str,
    yes: bool,
    allow_dirty: bool,
    wait_s: float,
) -> int:
    import time

    from reconciler.loop.passes import Request, run_pass
    from reconciler.report.plan_text import plan_text

    began_s = time.monotonic()
    worktree = allow_dirty and session.ref is None and _has_worktree(session)
    if not worktree and session.ref is None:
        _say_if_dirty(session)
    text = output == "text"
    reviewed = bool(expect)
    if not yes and not expect and text and can_ask():
        with stop.abrupt():
            before = run_pass(edges, Request(ref=session.ref, worktree=worktree, act=False))
        _show_problem(before)
        if before.plan is not None:
            show(plan_text(before.plan))
            reviewed = True
            if before.plan.steps:
                with stop.abrupt():
                    yes = agreed("Apply this plan?")
                if not yes:
                    say("Nothing was applied.")
                    return int(Exit.ERROR)
                expect = before.plan.plan_digest
    begun: list[StepResult] = []
    request = Request(
        ref=session.ref,
        worktree=worktree,
        expect=expect,
        reviewed=reviewed,
        on_step=begun.append,
        on_plan=None if reviewed or not text else lambda plan: show(plan_text(plan)),
        cancelled=stop.cancelled,
        abrupt=stop.abrupt,
    )
    try:
        report = _wait(edges, request, wait_s, text) if wait_s else run_pass(edges, request)
    except KeyboardInterrupt as error:
        if _has_started(begun):
            error.add_note(GOES_ON)
        raise
    _show_report(report, output, time.monotonic() - began_s, waited=bool(wait_s))
    if stop.number:
        say(f"Interrupted. {GOES_ON}" if _has_started(begun) else "Interrupted.")
        return exit_code(stop.number)
    return report.exit_code


def _has_started(results: Sequence[StepResult]) -> bool:
    """What was sent and never answered counts: it may have been done."""
    return any(r.kind == "start" and r.result.value in ("done", "lost") for r in results)


def _say_if_dirty(session: Session) -> None:
    from reconciler.errors import GitError

    if not _has_worktree(session):
        return
    try:
        dirty = session.source.is_dirty()
    except GitError:
        return
    if dirty:
        say("The working tree differs from HEAD: what is not committed is not applied.")


def _wait(edges: Edges, request: Request, timeout_s: float, text: bool) -> PassReport:
    import time

    from reconciler.cli.progress import Progress
    from reconciler.loop.waiting import run_until_settled

    with Progress(live=text and is_terminal(), quiet=not text) as progress:
        return run_until_settled(
            edges, request, timeout_s=timeout_s, pause=time.sleep, on_report=progress.show
        )


def _show_report(report: PassReport, output: str, took_s: float, *, waited: bool) -> None:
    from dataclasses import replace

    from reconciler.loop.outcome import is_converged
    from reconciler.report.report_json import report_json
    from reconciler.report.status_text import result_text, status_text

    if output == "json":
        show_json(report_json(report))
        return
    if output == "markdown":
        _show_plan_or_problem(report)
        return
    _show_problem(report)
    if waited:
        told = replace(report, head_error=None, notes=())  # Stderr has it.
        click.echo()
        click.echo(status_text(told, replicas=False), nl=False)
        click.echo()
    converged = waited and is_converged(report)
    click.echo(result_text(report, took_s, converged=converged), nl=False)


def _show_plan_or_problem(report: PassReport) -> None:
    if report.plan is None:
        _show_problem(report)
    else:
        _show_plan(report, report.plan, "markdown")
