"""`reconcile hold`: the node itself refuses to act, because a person works on it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from reconciler.cli.leasing import actor
from reconciler.cli.logs import replica_of
from reconciler.cli.options import at_least_a_second, repo_options
from reconciler.cli.session import Session
from reconciler.errors import Exit, SettingsError
from reconciler.report.words import duration

if TYPE_CHECKING:
    from reconciler.core.observed import NodeAnswer, NodeHold

A_DAY_S = 86_400.0


@click.command()
@click.argument("node")
@click.option(
    "--for",
    "for_s",
    callback=at_least_a_second,
    metavar="DURATION",
    help="Until it ends by itself: 2h, 1d.",
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
        only = replace(desired, nodes={node: desired.nodes[node]})
        answer = session.look(only).answer(node)
        if clear:
            what = cleared(node, answer.hold if answer else None, launch)
            session.pool.request(desired, node, "hold", clear=True)
            click.echo(f"{what} is no longer held.")
            return int(Exit.OK)
        if answer is not None:  # else the request below says why it does not answer
            launch = _meant(node, answer, launch)
        wish: dict[str, object] = {"who": actor(session), "reason": reason, "launch": launch}
        if for_s is not None:
            wish["for_s"] = for_s
        session.pool.request(desired, node, "hold", set=wish)
    what = f"{launch} on {node}" if launch else node
    if for_s is None:
        only_launch = f" --launch {launch}" if launch else ""
        click.echo(f"{what} is held; `reconcile hold {node}{only_launch} --clear` ends it.")
        return int(Exit.OK)
    end = datetime.now(UTC) + timedelta(seconds=for_s)
    day = "%H:%M" if for_s < A_DAY_S else "%Y-%m-%d %H:%M"
    click.echo(f"{what} is held until {end:{day}} UTC ({duration(for_s)}).")
    return int(Exit.OK)


def cleared(node: str, hold: NodeHold | None, launch: str) -> str:
    """What a clear frees, in words. SettingsError where it would free something else than named.

    A node has one hold: to lift another's by a slip would let a reconciler act under their hands.
    """
    if launch and hold is not None and hold.launch != launch:
        held = f"launch {hold.launch}" if hold.launch else f"the whole of {node}"
        only = f" --launch {hold.launch}" if hold.launch else ""
        raise SettingsError(
            f"launch {launch}",
            f"is not what is held: {held} is, by {hold.who or '?'} ({hold.reason})",
            f"`reconcile hold {node}{only} --clear` ends that",
        )
    held_launch = hold.launch if hold else launch
    return f"{held_launch} on {node}" if held_launch else node


def _meant(node: str, answer: NodeAnswer, name: str) -> str:
    """The launch to hold; says so where a replica was named."""
    launch = launch_to_hold(node, answer, name)
    if launch != name:
        click.echo(f"{name} is a replica; its launch on {node} is {launch}.")
    return launch


def launch_to_hold(node: str, answer: NodeAnswer, name: str) -> str:
    """The launch on the node that `name` means: itself, or the only living one of a replica.

    A name that is no launch there would be kept by the node and hold nothing at all. SettingsError
    then, and where the node's one hold is another launch's, which this one would take the place of.
    """
    if not name:
        return ""
    living = {s.launch: replica_of(s) for s in answer.shards if s.alive}
    of_replica = sorted(launch for launch, replica in living.items() if replica == name)
    if name in living:
        launch = name
    elif len(of_replica) == 1:
        launch = of_replica[0]
    else:
        raise _no_such(node, name, living, of_replica)
    hold = answer.hold
    if hold is not None and hold.launch != launch:
        what = f"launch {hold.launch}" if hold.launch else "the whole node"
        only = f" --launch {hold.launch}" if hold.launch else ""
        raise SettingsError(
            f"node {node}",
            f"{what} is held there by {hold.who or '?'} ({hold.reason}), and a node has one hold",
            f"hold the whole node, or end that one: `reconcile hold {node}{only} --clear`",
        )
    return launch


def _no_such(node: str, name: str, living: dict[str, str], of_replica: list[str]) -> SettingsError:
    from reconciler.fleet.findings import listed, nearest

    if of_replica:
        reason, hint = "is a replica with several launches", f"name one: {', '.join(of_replica)}"
    elif not living:
        reason, hint = f"nothing lives on {node}", "`reconcile status` lists launches"
    else:
        reason = f"no launch of that name lives on {node}"
        hint = nearest(name, living) or f"there are: {listed(living)}"
    return SettingsError(f"--launch {name}", reason, hint)
