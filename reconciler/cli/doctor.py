"""`reconcile doctor`: each node in one line, and what is not as it should be, with what to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reconciler.cli import fit
from reconciler.cli.options import output_option, repo_options, secrets_option
from reconciler.cli.output import show_json
from reconciler.cli.session import Session
from reconciler.errors import Exit

if TYPE_CHECKING:
    from reconciler.core.model import Fleet, Node
    from reconciler.core.observed import NodeAnswer, NodeLook


@click.command()
@repo_options
@secrets_option
@output_option("text", "json")
@click.pass_context
def doctor(
    ctx: click.Context, repo: str | None, ref: str | None, secrets: Path | None, output: str
) -> int:
    """Check every node: reachable, agent, Python, GPUs, mode, and findings.

    Every start that is due now is asked about as well: the second table says which node would
    refuse it, and why. Reads the working tree, as `validate` does, or --ref. Exit code 3: some
    node has a finding, or would refuse.
    """
    from reconciler.report.clean import printable
    from reconciler.report.status_text import table

    with Session.of(ctx, repo, ref) as session:
        desired = session.inventory(worktree=True)
        observed = session.look(desired)
        now_s = time.time()
        checks = fit.ask(session.pool, desired, observed, session.secret_store(secrets))
    found = {
        name: list(findings(desired.fleet, node, observed.nodes.get(name)))
        for name, node in sorted(desired.nodes.items())
    }
    if output == "json":
        show_json(
            {
                name: {
                    **_facts(desired.fleet, desired.nodes[name], look),
                    **_more(look, now_s),
                    "findings": found[name],
                    "starts": [check.to_json() for check in checks if check.node == name],
                }
                for name, look in ((n, observed.nodes.get(n)) for n in found)
            }
        )
    else:
        rows = [["node", "reachable", "agent", "python", "GPUs", "mode", "findings"]]
        for name, said in found.items():
            facts = _facts(desired.fleet, desired.nodes[name], observed.nodes.get(name))
            cells = [printable(str(facts[key])) for key in _COLUMNS]
            rows.append([name, *cells, str(len(said) or "none")])
        click.echo("\n".join(table(rows)))
        for name, said in found.items():
            for text in said:
                click.echo(printable(f"  {name}: {text}"))
        if checks:
            heads = ["placement", "replica", "node", "could start"]
            lines = [[c.placement, c.replica, c.node, c.said] for c in checks]
            click.echo("\n" + "\n".join(table([heads, *map(_printable, lines)])))
            for check in checks:
                for text in [*check.findings, *check.notes]:
                    click.echo(printable(f"  {check.replica} on {check.node}: {text}"))
    bad = any(found.values()) or any(check.findings for check in checks)
    return int(Exit.PARTIAL if bad else Exit.OK)


def _printable(cells: list[str]) -> list[str]:
    from reconciler.report.clean import printable

    return [printable(cell) for cell in cells]


def _more(look: NodeLook | None, now_s: float) -> dict[str, object]:
    """For people and JSON only. The clock's offset is off by as long as the look took."""
    answer = look.answer if look else None
    if answer is None:
        return {}
    offset = round(answer.clock_s - now_s, 1) if answer.clock_s else None
    return {
        "driver": answer.gpus.driver,
        "cuda": answer.gpus.cuda,
        "clock_offset_s": offset,
    }


_COLUMNS = ("reachable", "agent", "python", "gpus", "mode")


def _facts(fleet: Fleet, node: Node, look: NodeLook | None) -> dict[str, object]:
    answer = look.answer if look else None
    if answer is None:
        why = look.error.value if look and look.error else node.state.value
        return {"reachable": why, "agent": "-", "python": "-", "gpus": "-", "mode": "-"}
    return {
        "reachable": f"{look.look_ms:.0f} ms" if look else "",
        "agent": answer.agent_version or "?",
        "python": answer.python or "?",
        "gpus": f"{_gpus(node, answer)} of {node.gpus.count}",
        "mode": node.mode or fleet.mode,
    }


def _gpus(node: Node, answer: NodeAnswer) -> int:
    """GPUs that can be used: those that were seen without a fault, or that the document lists."""
    if node.gpus.source == "declared":
        return len(node.gpus.ids) or node.gpus.count
    return sum(not gpu.error for gpu in answer.gpus.items)


def findings(fleet: Fleet, node: Node, look: NodeLook | None) -> Iterator[str]:
    """What is wrong with one node, each with what to do. Pure."""
    if look is None:
        return
    answer = look.answer
    if answer is None:
        yield f"{look.detail}; {look.hint}" if look.hint else look.detail or "no answer"
        return
    yield from _gpu_findings(node, answer)
    parts = (
        ("its launches", answer.shards_error),
        ("network", answer.network.error),
        ("resources", answer.resources.error),
        ("lease", answer.lease_error),
    )
    for part, error in parts:
        if error:
            yield f"{part}: {error}"
    first, last = answer.network.ephemeral
    if first <= fleet.ports.last and fleet.ports.first <= last:
        yield (
            f"the kernel hands out ports {first} to {last}, which meets the fleet's"
            f" {fleet.ports.first} to {fleet.ports.last}; set net.ipv4.ip_local_port_range or"
            " `ports` in fleet.yaml"
        )
    yield from _network_findings(node, answer)
    if answer.hold is not None:
        yield f"held by {answer.hold.who}: {answer.hold.reason}"
    for shard in answer.shards:
        if shard.record_error:
            yield (
                f"launch {shard.launch}: its record is {shard.record_error};"
                f" `reconcile stop {shard.launch}` ends it"
            )
        if shard.alive and not shard.supervised:
            yield f"launch {shard.launch}: lives without a supervisor; the next pass adopts it"


def _gpu_findings(node: Node, answer: NodeAnswer) -> Iterator[str]:
    if node.gpus.source == "declared":
        return
    if answer.gpus.error:
        yield f"GPUs: {answer.gpus.error}"
        return
    if len(answer.gpus.items) != node.gpus.count:
        yield (
            f"has {len(answer.gpus.items)} GPUs where its document says {node.gpus.count};"
            " look at `nvidia-smi` there or correct the document"
        )
    absent = sorted(set(node.gpus.ids) - {gpu.uuid for gpu in answer.gpus.items})
    if absent:
        yield f"GPUs of its document are not there: {', '.join(absent)}"
    for gpu in answer.gpus.items:
        for warning in gpu.warnings:
            yield f"GPU {gpu.index} ({gpu.uuid}): {warning}"
        if gpu.error:
            yield f"GPU {gpu.index} ({gpu.uuid}): {gpu.error}"
        strangers = [p for p in gpu.processes if not p.launch]
        if strangers:
            pids = ", ".join(f"{p.pid} {p.name}".strip() for p in strangers)
            yield f"GPU {gpu.index} is used by processes that are not ours: {pids}"


def _network_findings(node: Node, answer: NodeAnswer) -> Iterator[str]:
    if answer.network.error:
        return
    names = {i.name: i for i in answer.network.interfaces}
    wanted = [node.management.interface, *(f.interface for f in node.fabrics.values())]
    for name in filter(None, wanted):
        if name not in names:
            yield f"has no interface {name}; it has {', '.join(sorted(names)) or 'none'}"
        elif not names[name].up:
            yield f"interface {name} is down"
    seen = {(a.name, a.port): a for a in answer.network.adapters}
    for fabric_name, fabric in sorted(node.fabrics.items()):
        for adapter in fabric.adapters:
            found = seen.get((adapter.name, adapter.port))
            if found is None:
                yield f"fabric {fabric_name}: has no adapter {adapter.name}:{adapter.port}"
            elif found.state and "ACTIVE" not in found.state.upper():
                yield f"fabric {fabric_name}: {adapter.name}:{adapter.port} is {found.state}"
