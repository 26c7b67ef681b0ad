"""`reconcile doctor`: each node in one line, and what is not as it should be, with what to do.

Beside it every placement on every node that it means: before a first rollout, and on a fleet that
runs, where nothing is due.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from reconciler.cli import fit, nodefacts, signing
from reconciler.cli.options import output_option, secrets_option, worktree_options
from reconciler.cli.output import show_json
from reconciler.cli.session import Session
from reconciler.errors import Exit

NAMED = 8
"""Nodes that a note for many of them names."""


@click.command()
@worktree_options
@secrets_option
@output_option("text", "json")
@click.pass_context
def doctor(
    ctx: click.Context, repo: str | None, ref: str | None, secrets: Path | None, output: str
) -> int:
    """Check every node, and every placement on each node that it means.

    The first table has a line for each node: how it is reached, system, mode, GPUs, limits, what is
    free. The second says whether the node could start a replica of the placement now, by asking it
    what a start would say: model, engine, ports, GPUs, memory, limits, adapters, the way to the
    leader. What the placement itself runs there is no obstacle. The last line says whether commits
    need a signature here, and whether head has a good one. Nothing is started or locked.

    Reads the working tree, as `validate` does, or --ref. Exit code 0: no findings; 3: some node has
    a finding, would refuse for good, a placement fits nowhere, or head lacks the signature that is
    asked for. What waits for room alone ("not now") is no finding.
    """
    with Session.of(ctx, repo, ref) as session:
        desired = session.inventory(worktree=True)
        pool = session.pool
        asked_s = time.time()
        observed = session.look(desired)
        signed = signing.look(session, wanted=desired.fleet.history == "signed")
        fits = fit.ask(pool, desired, observed, session.secret_store(secrets))
    nodes: dict[str, dict[str, object]] = {}
    found: dict[str, Sequence[str]] = {}
    notes: dict[str, Sequence[str]] = {}
    for name, node in sorted(desired.nodes.items()):
        look = observed.nodes.get(name)
        nodes[name] = nodefacts.facts(desired.fleet, node, look, asked_s)
        found[name] = tuple(nodefacts.findings(desired.fleet, node, look, asked_s))
        notes[name] = tuple(nodefacts.notes(desired.fleet, node, look))
    if output == "json":
        show_json(
            {
                "nodes": {
                    name: {**told, "findings": list(found[name]), "notes": list(notes[name])}
                    for name, told in nodes.items()
                },
                "placements": {one.placement: one.to_json() for one in fits},
                "signatures": signed.to_json(),
            }
        )
    else:
        _show_nodes(nodes, found, notes)
        _show_fits(fits)
        _show_signing(signed)
    bad = any(found.values()) or any(one.bad for one in fits) or signed.findings
    return int(Exit.PARTIAL if bad else Exit.OK)


def _show_nodes(
    nodes: Mapping[str, dict[str, object]],
    found: Mapping[str, Sequence[str]],
    notes: Mapping[str, Sequence[str]],
) -> None:
    lines = [
        [*nodefacts.row(name, told), str(len(found[name]) or "none")]
        for name, told in nodes.items()
    ]
    _show([[*nodefacts.HEADS, "findings"], *lines])
    for name, said in found.items():
        _details(f"{name}: {text}" for text in said)
    by_note: dict[str, list[str]] = {}
    for name, said in notes.items():
        for text in said:
            by_note.setdefault(text, []).append(name)
    _details(f"note: {_some(names)}: {text}" for text, names in by_note.items())


def _some(names: Sequence[str]) -> str:
    """A thousand nodes that are alike are one line."""
    more = len(names) - NAMED
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:NAMED])} and {more} more"


def _show_fits(fits: Sequence[fit.PlacementFits]) -> None:
    lines = [
        [one.placement, found.node, ", ".join(found.runs) or "-", found.said]
        for one in fits
        for found in one.fits
    ]
    if lines:
        click.echo()
        _show([["placement", "node", "runs", "could start"], *lines])
    for one in fits:
        _details(f"{one.placement}: {text}" for text in one.findings)
        for found in one.fits:
            _details(f"{one.placement} on {found.node}: {text}" for text in found.findings)
        _details(f"note: {one.placement}: {text}" for text in one.notes)
        for found in one.fits:
            _details(f"note: {one.placement} on {found.node}: {text}" for text in found.notes)


def _show_signing(signed: signing.Signing) -> None:
    from reconciler.report.clean import printable

    click.echo()
    click.echo(printable(signed.line))
    _details(f"signatures: {text}" for text in signed.findings)


def _show(rows: Sequence[Sequence[str]]) -> None:
    from reconciler.report.clean import printable
    from reconciler.report.status_text import table

    click.echo("\n".join(table([[printable(cell) for cell in cells] for cells in rows])))


def _details(texts: Iterable[str]) -> None:
    from reconciler.report.clean import printable

    for text in texts:
        click.echo(printable(f"  {text}"))
