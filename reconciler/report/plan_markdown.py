"""A plan as markdown for a pull request: what would change, why, and down to the command line.

Text from YAML and nodes is escaped for tables and fenced for code, so a crafted name can neither
break the table nor forge a heading. The whole is bounded: a forge refuses longer comments.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reconciler.core.changes import Change, Hold, Plan, StartStep, Symbol
from reconciler.report.clean import masked, masked_argv, masked_env, printable, shortened
from reconciler.report.words import (
    VERBS,
    cost_words,
    plan_words,
    short_revision,
    shown_holds,
    waits_words,
    where,
    why_words,
)

LONGEST = 60_000
"""Characters; GitHub refuses comments above 65,536."""


def plan_markdown(plan: Plan, basis: str = "") -> str:
    """The whole plan; cut at a line, and said so, where it would be too long for a comment.

    `basis`: what it was made against, where that is not the nodes.
    """
    kept: list[str] = []
    size = 0
    for block in _blocks(plan, basis):
        size += len(block) + 1
        if size > LONGEST:
            kept.append("\n_The rest is left out: this plan is too long for a comment._")
            break
        kept.append(block)
    return "\n".join(kept) + "\n"


def _blocks(plan: Plan, basis: str) -> Iterator[str]:
    yield f"### Plan: {plan_words(plan)}"
    yield ""
    yield f"Revision `{_code(short_revision(plan.revision))}`"
    if basis:
        yield ""
        yield f"_{escaped(basis)}_"
    for guard in plan.guards:
        if not guard.passed:
            verdict = "approved" if guard.approved else "**held by a guard**"
            said = guard.message or f"{guard.scope}: {guard.value}, limit {guard.limit}"
            yield ""
            yield f"> {verdict}: {guard.name}: {escaped(said)}"
    if plan.changes:
        yield ""
        yield "| | replica | what | why | where | meanwhile |"
        yield "|---|---|---|---|---|---|"
        yield from (_row(change, plan) for change in plan.changes)
    for change in plan.changes:
        yield from _details(change)
    holds = shown_holds(plan)
    if holds:
        yield ""
        yield "**Held**"
        yield ""
        yield from (_hold(hold) for hold in holds)
    if plan.warnings:
        yield ""
        yield "**Warnings**"
        yield ""
        yield from (f"- {escaped(w)}" for w in plan.warnings)
    yield ""
    yield f"Digest `{_code(plan.plan_digest or 'none')}`"


def _row(change: Change, plan: Plan) -> str:
    meanwhile = "; ".join(w for w in (cost_words(change, plan.capacity), waits_words(change)) if w)
    cells = [
        f"`{change.symbol.value}`",
        escaped(change.address),
        VERBS[change.symbol],
        escaped(why_words(change)),
        escaped(where(change)),
        escaped(meanwhile),
    ]
    return f"| {' | '.join(cells)} |"


def _details(change: Change) -> Iterator[str]:
    commands = [
        line
        for step in change.steps
        if isinstance(step, StartStep)
        for shard in step.shards
        for line in _commands(shard.node, shard.spec)
    ]
    if not change.changes and not commands:
        return
    yield ""
    yield f"<details><summary>{escaped(change.address)}</summary>"
    if change.changes:
        yield ""
        yield "```diff"
        for field in change.changes:
            yield f"  {_fenced(field.path)}"
            yield f"- {_fenced(masked(field.path, field.before)) or '(none)'}"
            yield f"+ {_fenced(masked(field.path, field.after)) or '(none)'}"
        yield "```"
    if commands:
        yield ""
        yield "```sh"
        yield from commands
        yield "```"
    yield ""
    yield "</details>"


def _commands(node: str, spec: Mapping[str, Any]) -> Iterator[str]:
    for command in spec.get("commands", ()):
        yield f"# {_fenced(node)}: {_fenced(str(command.get('name', '')))}"
        yield command_line(command.get("argv", ()), command.get("env", {}))


def command_line(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """One command as a shell would take it, secrets masked; for reading and for trying by hand."""
    words = [f"{name}={shlex.quote(value)}" for name, value in masked_env(env).items()]
    words += [shlex.quote(word) for word in masked_argv(argv)]
    return _fenced(" ".join(words))


def _hold(hold: Hold) -> str:
    said = f"- `{Symbol.BLOCKED.value}` {escaped(hold.subject)}: **{hold.reason.value}**"
    return f"{said}: {escaped(hold.message)}"


def escaped(text: str) -> str:
    """One line that neither ends a table's cell nor starts a tag, a link or emphasis."""
    safe = shortened(printable(text), 400).replace("&", "&amp;").replace("<", "&lt;")
    for char in "\\|`*_[]@#":
        safe = safe.replace(char, f"\\{char}")
    return safe


def _code(text: str) -> str:
    return printable(text).replace("`", "'")


def _fenced(text: str) -> str:
    return printable(text).replace("```", "'''")
