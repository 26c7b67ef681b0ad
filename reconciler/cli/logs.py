"""`reconcile logs`: the output of a replica's processes, from the node where they run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from reconciler.cli.options import repo_options
from reconciler.cli.output import say
from reconciler.cli.session import Session
from reconciler.errors import Exit, SettingsError

if TYPE_CHECKING:
    from reconciler.core.observed import Observed, Shard

POLL_S = 0.5
"""How often --follow asks: one small request over a connection that is open anyway."""


@dataclass(frozen=True)
class Spot:
    """One shard's log."""

    node: str
    launch: str
    rank: int
    seq: int


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
    """Show the log of a replica's newest launch (or of a launch), rank 0 unless said otherwise."""
    from reconciler.report.clean import printable

    with Session.of(ctx, repo, ref) as session:
        desired = session.inventory()
        observed = session.look(desired)
        spots = sorted(_spots(observed, replica), key=lambda s: -s.seq)
        if not spots:
            raise _no_such(observed, replica)
        spot = next((s for s in spots if s.rank == rank), None)
        if spot is None:
            ranks = ", ".join(sorted({str(s.rank) for s in spots}))
            raise SettingsError(f"replica {replica}", f"has no rank {rank}", f"it has: {ranks}")
        say(f"{spot.launch}, rank {spot.rank} on {spot.node}:")
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
                return int(Exit.OK)
            time.sleep(POLL_S)
            offset = said.get("offset", 0)
            said = session.pool.request(desired, spot.node, "logs", offset=offset, **fields)


def _spots(observed: Observed, name: str) -> Iterator[Spot]:
    for node, look in observed.nodes.items():
        for shard in look.answer.shards if look.answer else ():
            if name in (replica_of(shard), shard.launch):
                yield Spot(node, shard.launch, shard.rank, shard.record.seq if shard.record else 0)


def replica_of(shard: Shard) -> str:
    """By the label, which follows a rename; else by the record."""
    labels, record = shard.labels, shard.record
    return (labels.replica if labels else "") or (record.replica if record else "")


def _no_such(observed: Observed, name: str) -> SettingsError:
    """Of a placement, with its replicas."""
    replicas = {
        replica_of(shard)
        for look in observed.nodes.values()
        for shard in (look.answer.shards if look.answer else ())
    }
    mine = sorted(r for r in replicas if r.rpartition("-")[0] == name)
    if mine:
        return SettingsError(name, "is a placement", f"name one replica: {', '.join(mine)}")
    return SettingsError(
        f"replica {name}",
        "no node that answers has a launch of it",
        "`reconcile status` lists replicas",
    )
