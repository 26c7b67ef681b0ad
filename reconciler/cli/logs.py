"""`reconcile logs`: the output of a replica's processes, from the node where they run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from reconciler.cli.options import repo_options
from reconciler.cli.output import say
from reconciler.cli.session import Session
from reconciler.errors import Exit, SettingsError

if TYPE_CHECKING:
    from reconciler.core.observed import NodeAnswer, Observed, Shard

POLL_S = 0.5
"""How often --follow asks: one small request over a connection that is open anyway."""


@dataclass(frozen=True)
class Spot:
    """One shard's log."""

    node: str
    launch: str
    rank: int
    seq: int
    alive: bool = True


@click.command()
@click.argument("replica", metavar="REPLICA|LAUNCH")
@click.option("--rank", default=0, show_default=True, help="Which rank of the replica.")
@click.option("--command", "name", default="", metavar="NAME", help="Which process; default: main.")
@click.option("--lines", "-n", default=100, show_default=True, help="How many lines.")
@click.option("--follow", "-f", is_flag=True, help="Go on until interrupted.")
@repo_options
@click.pass_context
def logs(
    ctx: click.Context,
    replica: str,
    rank: int,
    name: str,
    lines: int,
    follow: bool,
    repo: str | None,
    ref: str | None,
) -> int:
    """Show the log of a replica's newest launch (or of a launch), rank 0 unless said otherwise.

    Exit code 3: a node does not answer that holds a newer launch, or may; what is shown is older.
    """
    from reconciler.report.clean import printable

    with Session.of(ctx, repo, ref) as session:
        desired = session.inventory()
        observed = session.look(desired)
        spot = spot_of(observed, replica, rank)
        doubt = doubt_of(observed, replica, spot)
        if doubt:
            say(f"Careful: {doubt}. What follows is of an OLDER launch that has ended:")
        ended = "" if spot.alive else " (ended)"
        say(f"{spot.launch}, rank {spot.rank} on {spot.node}{ended}:")
        fields = {"launch": spot.launch} | ({"command": name} if name else {})
        said = session.pool.request(desired, spot.node, "logs", lines=lines, **fields)
        known = said.get("commands", [])
        if name and name not in known:
            there = f"there are: {', '.join(known)}" if known else "nothing of it has a log yet"
            raise SettingsError(f"--command {name}", "is no process of it", there)
        while True:
            for line in said.get("lines", []):
                click.echo(printable(line))
            if not follow:
                return int(Exit.PARTIAL if doubt else Exit.OK)
            time.sleep(POLL_S)
            offset = said.get("offset", 0)
            said = session.pool.request(desired, spot.node, "logs", offset=offset, **fields)


def spot_of(observed: Observed, name: str, rank: int) -> Spot:
    """Where the newest log of `name`'s rank is, of what can be seen. SettingsError: nowhere."""
    answers = {node: look.answer for node, look in observed.nodes.items() if look.answer}
    spots = sorted(_spots(answers, name), key=lambda s: -s.seq)
    if not spots:
        raise _no_such(observed, name)
    spot = next((s for s in spots if s.rank == rank), None)
    if spot is not None:
        return spot
    ranks = sorted({s.rank for s in spots})
    homes = {
        place.node
        for answer in answers.values()
        for shard in answer.shards
        if shard.record and shard.launch == spots[0].launch
        for place in shard.record.places
        if place.rank == rank
    }
    away = sorted(homes - answers.keys())
    if away:
        reason = f"rank {rank} runs on {', '.join(away)}, which did not answer"
        seen = f"ranks that can be seen: {', '.join(map(str, ranks))}"
        raise SettingsError(f"replica {name}", reason, seen)
    hint = f"it has: {', '.join(map(str, ranks))}"
    raise SettingsError(f"replica {name}", f"has no rank {rank}", hint)


def doubt_of(observed: Observed, name: str, spot: Spot) -> str:
    """Why the log at `spot` may not be the one that was asked for; empty: it is.

    Who asks for a replica wants what runs now. An ended launch shown in its place, because the
    node of the current one is silent, would be read as its output.
    """
    if spot.alive or name == spot.launch:
        return ""
    silent = {node: look for node, look in observed.nodes.items() if look.answer is None}
    lasts = {node: look.last for node, look in silent.items() if look.last}
    for newer in _spots(lasts, name):
        if newer.seq > spot.seq:
            return f"the current launch {newer.launch} is on {newer.node}, which does not answer"
    blind = sorted(silent.keys() - lasts.keys())
    if not blind:
        return ""
    does = "do" if len(blind) > 1 else "does"
    return f"{name} perhaps runs on {', '.join(blind)}, which {does} not answer"


def _spots(answers: Mapping[str, NodeAnswer], name: str) -> Iterator[Spot]:
    for node, answer in answers.items():
        for shard in answer.shards:
            if name in (replica_of(shard), shard.launch):
                seq = shard.record.seq if shard.record else 0
                yield Spot(node, shard.launch, shard.rank, seq, shard.alive)


def replica_of(shard: Shard) -> str:
    """By the label, which follows a rename; else by the record."""
    labels, record = shard.labels, shard.record
    return (labels.replica if labels else "") or (record.replica if record else "")


def _no_such(observed: Observed, name: str) -> SettingsError:
    """Of a placement, with its replicas."""
    from reconciler.fleet.findings import listed

    replicas = {
        replica_of(shard)
        for look in observed.nodes.values()
        for shard in (look.answer.shards if look.answer else ())
    }
    mine = sorted(r for r in replicas if r.rpartition("-")[0] == name)
    if mine:
        return SettingsError(name, "is a placement", f"name one replica: {', '.join(mine)}")
    silent = sorted(node for node, look in observed.nodes.items() if look.answer is None)
    away = f" ({listed(silent)} did not answer)" if silent else ""
    return SettingsError(
        f"replica {name}",
        f"no node that answers has a launch of it{away}",
        "`reconcile status` lists replicas",
    )
