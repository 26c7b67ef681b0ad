"""A plan as text, the way Terraform's users read one: symbol, address, reason, fields.

What is unchanged is hidden; the summary stands first and last, because a long plan scrolls. The
result has no colour: the terminal's edge adds it by the symbol a line starts with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from reconciler.core.changes import Change, GuardVerdict, Hold, Plan, Symbol
from reconciler.core.observed import ApprovedChange
from reconciler.report.clean import masked, printable, shortened
from reconciler.report.words import (
    VERBS,
    cost_words,
    plan_words,
    plural,
    share_words,
    short_revision,
    shown_holds,
    waits_words,
    where,
    why_words,
)

_INDENT = " " * 8
FINGERPRINT = 15
"""Letters of a fingerprint that are shown: enough to find it in a record."""
NODES_SHOWN = 12
"""Nodes listed under a hold; the message has the count of all."""


def plan_text(plan: Plan, basis: str = "") -> str:
    """The whole plan, ending in a newline. `basis`: what it was made against, if not the nodes."""
    return "".join(f"{line}\n" for line in _lines(plan, basis))


def approval_text(plan: Plan, wanted: Iterable[ApprovedChange]) -> str:
    """What a person is asked to let through: with why, the fields and the nodes, as in the plan.

    Of a move or a restart the two fingerprints are equal and tell nothing.
    """
    known = {(c.address, c.before, c.after): c for c in plan.changes}
    lines = []
    for one in wanted:
        head = f"  {printable(one.replica)}: {printable(_approved(one))}"
        change = known.get((one.replica, one.before, one.after))
        why = printable(why_words(change)) if change else ""
        lines.append(f"{head}; {why}" if why else head)
        lines += _details(change) if change else ()
    return "".join(f"{line}\n" for line in lines)


def _approved(change: ApprovedChange) -> str:
    if not change.after:
        return "removed"
    if change.before == change.after:
        return f"replaced, with the profile that it has ({change.before[:FINGERPRINT]})"
    return f"{change.before[:FINGERPRINT]} → {change.after[:FINGERPRINT]}"


def _lines(plan: Plan, basis: str) -> Iterator[str]:
    summary = f"{short_revision(plan.revision)}: {plan_words(plan)}"
    yield printable(summary)
    if basis:
        yield printable(f"({basis})")
    body = [line for change in plan.changes for line in _change(change, plan)]
    body += [line for hold in shown_holds(plan) for line in _hold(hold)]
    if body:
        yield ""
        yield from body
    yield from _section("Guards", [_guard(g) for g in plan.guards if not g.passed])
    yield from _section("Capacity on the way", _capacity(plan))
    yield from _section("Warnings", [printable(w) for w in plan.warnings])
    if body:
        yield ""
        yield f"Plan: {plan_words(plan)}. Digest {plan.plan_digest or 'none'}"


def _section(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (f"  {line}" for line in lines)


def _change(change: Change, plan: Plan) -> Iterator[str]:
    head = f"  {change.symbol.value:<3} {printable(change.address)}: {VERBS[change.symbol]}"
    why = printable(why_words(change))
    yield f"{head}; {why}" if why else head
    yield from _details(change)
    if cost := cost_words(change, plan.capacity):
        yield f"{_INDENT}meanwhile: {printable(cost)}"
    if waits := waits_words(change):
        yield f"{_INDENT}not yet: {printable(waits)}"


def _details(change: Change) -> Iterator[str]:
    """The fields and the nodes."""
    for field in change.changes:
        before = _value(field.path, field.before)
        yield f"{_INDENT}{printable(field.path)}: {before} → {_value(field.path, field.after)}"
    if place := where(change):
        yield f"{_INDENT}on {printable(place)}"


def _value(path: str, value: str) -> str:
    return shortened(printable(masked(path, value))) or "(none)"


def _hold(hold: Hold) -> Iterator[str]:
    yield (
        f"  {Symbol.BLOCKED.value:<3} {printable(hold.subject)}: {hold.reason.value}: "
        f"{printable(hold.message)}"
    )
    # What the message tells in full already is not told again.
    nodes = sorted((n, why) for n, why in hold.nodes.items() if f"{n}: {why}" not in hold.message)
    for node, why in nodes[:NODES_SHOWN]:
        yield f"{_INDENT}{printable(node)}: {printable(why)}"
    if len(nodes) > NODES_SHOWN:
        yield f"{_INDENT}… and {plural(len(nodes) - NODES_SHOWN, 'more node')}"


def _guard(guard: GuardVerdict) -> str:
    said = guard.message or f"{guard.scope}: {guard.value}, limit {guard.limit}"
    return printable(f"{'approved' if guard.approved else 'HELD'}: {guard.name}: {said}")


def _capacity(plan: Plan) -> list[str]:
    return [
        printable(f"{c.placement} ({c.model}): {share_words(c.ready, c.wanted)}, lowest {c.lowest}")
        for c in plan.capacity
        if c.lowest < c.ready or c.ready < c.wanted
    ]
