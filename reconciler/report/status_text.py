"""Status as text: one table of placements, then what needs explaining, then nodes with a fault.

A healthy fleet prints one line a placement; everything below the table is there because somebody
may have to do something.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from reconciler.core.changes import Change, Reason
from reconciler.core.verdicts import without_fields
from reconciler.core.words import one_or
from reconciler.report.clean import masked, printable, shortened
from reconciler.report.passreport import (
    WORKTREE,
    ConditionKind,
    HeadError,
    NodeStatus,
    PassReport,
    PlacementStatus,
    ReplicaStatus,
    Revisions,
)
from reconciler.report.status import BLOCKERS, NEEDS_A_PERSON, SAID_BY_PEOPLE
from reconciler.report.words import SHORT_COMMIT, duration, lead_words, plural, state_words

FINDINGS_SHOWN = 20
"""Findings of a bad head in one report; `validate` lists them all."""


def status_text(report: PassReport, *, replicas: bool = True) -> str:
    """The whole status, ending in a newline; `replicas`: with a line for each."""
    return "".join(f"{line}\n" for line in _lines(report, replicas))


def _lines(report: PassReport, replicas: bool) -> Iterator[str]:
    yield printable(f"Revision {revisions_words(report.revisions)}")
    if report.head_error:
        yield ""
        yield from head_error_lines(report.head_error)
    if report.lease_held_by:
        yield printable(f"LeaseHeld: {lead_words(report.lease_held_by)}")
    yield from (printable(note) for note in report.notes)
    if report.placements:
        yield ""
        yield from _placements(report.placements)
    for placement in report.placements:
        yield from _placement_details(placement, replicas)
    faults = [n for n in report.nodes if _is_notable(n)]
    if report.nodes:
        seen = sum(n.seen for n in report.nodes)
        yield ""
        yield f"Nodes: {seen} of {len(report.nodes)} answered"
        yield from (f"  {printable(line)}" for n in faults for line in [_node(n)])


def revisions_words(revisions: Revisions) -> str:
    """`main@8f2c1e0a4b: in force and applied`; `head …, in force …` where they differ.

    What was applied is known only where everything is as wanted, or was since this process began:
    else nothing is said of it.
    """
    ref = f"{revisions.ref}@" if revisions.ref else ""
    head = f"{ref}{revisions.head[:SHORT_COMMIT]}" if revisions.head else "unknown"
    if revisions.head and revisions.in_force == revisions.head:
        if revisions.applied == revisions.head:
            return f"{head}: in force and applied"
        if not revisions.applied:
            return f"{head}: in force"
    if revisions.head and revisions.applied == revisions.head:
        # Seen by a look that writes nothing down: the next pass that acts puts it in force.
        force = revisions.in_force[:SHORT_COMMIT]
        then = f"{force} is in force until the next pass" if force else "not in force yet"
        return f"{head}: applied, {then}"
    force = revisions.in_force[:SHORT_COMMIT]
    if not revisions.head and not force:
        return "unknown, and none is in force"
    said = f"head {head}, in force {force}" if force else f"{head}: not in force yet"
    return f"{said}, applied {revisions.applied[:SHORT_COMMIT]}" if revisions.applied else said


def result_text(report: PassReport, took_s: float, *, converged: bool = False) -> str:
    """The last line of a command that acts, after a line for each step that was not done."""
    lines = [
        f"  {step.kind} {step.subject} on {step.node}: {step.result}"
        + (f" ({step.code})" if step.code else "")
        + (f": {step.message}" if step.message else "")
        for step in report.steps
        if step.result != "done" and not (step.message and step.message in report.unsettled)
    ]
    outcome = _OUTCOMES.get(report.exit_code, "error")
    lines.append(f"{outcome}: {_result(report, took_s, converged)}")
    return "".join(f"{printable(line)}\n" for line in lines)


def _result(report: PassReport, took_s: float, converged: bool) -> str:
    done = sum(step.result == "done" for step in report.steps)
    total = len(report.steps)
    if converged:
        said = f" ({_steps(done, total)})" if total else ""
        return f"everything is ready after {took_s:.0f} s{said}"
    if report.unsettled:
        said = f"{_steps(done, total)} done" if total else "nothing was done"
        return f"{report.unsettled} ({said})"
    said = "" if done == total else " done"
    steps = f"{_steps(done, total)}{said} in {took_s:.1f} s" if total else "nothing was done"
    led = f"{lead_words(report.lease_held_by)}: " if report.lease_held_by else ""
    return led + "; ".join([steps, *_waiting(report.plan.changes if report.plan else ())])


def _waiting(changes: Iterable[Change]) -> Iterator[str]:
    """How many changes wait, by who ends it: what waits for a person no later pass will do."""
    waiting = [c.waits_for for c in changes if c.waits]
    person = [r for r in waiting if r in NEEDS_A_PERSON | SAID_BY_PEOPLE]
    outside = [r for r in waiting if r in BLOCKERS - SAID_BY_PEOPLE]
    later = len(waiting) - len(person) - len(outside)
    if later:
        yield f"{plural(later, 'change')} {one_or(later, 'waits', 'wait')} for a later pass"
    if person:
        waits = one_or(len(person), "waits", "wait")
        yield f"{plural(len(person), 'change')} {waits} for a person ({_named(person)})"
    if outside:
        are = one_or(len(outside), "is", "are")
        yield f"{plural(len(outside), 'change')} {are} held ({_named(outside)})"


def _named(reasons: Iterable[Reason | None]) -> str:
    return ", ".join(sorted({reason.value for reason in reasons if reason}))


def _steps(done: int, total: int) -> str:
    """Counted by node: a change of the plan has one or two for each of its nodes."""
    if done == total:
        return f"{plural(total, 'step')} on nodes"
    return f"{done} of {plural(total, 'step')} on nodes"


_OUTCOMES = {0: "done", 3: "partial", 4: "blocked", 5: "stale plan"}


def head_error_lines(error: HeadError) -> Iterator[str]:
    """Loudly: which commit, by whom, in which file and line."""
    of = f"head {error.revision}" if error.revision else "head"
    of = error.revision if error.revision == WORKTREE else of
    by = f" by {error.author}" if error.author else ""
    yield printable(f"{error.reason}: {of}{by}: {error.message}")
    for finding in error.findings[:FINDINGS_SHOWN]:
        yield f"  {printable(str(finding))}"
    if len(error.findings) > FINDINGS_SHOWN:
        yield f"  … and {len(error.findings) - FINDINGS_SHOWN} more; `reconcile validate` has all"


def _placements(placements: Sequence[PlacementStatus]) -> Iterator[str]:
    rows = [("placement", "sync", "health", "ready", "profile")]
    rows += [
        (
            printable(p.placement),
            p.sync.value,
            p.health.value,
            f"{p.ready}/{p.wanted}",
            printable(p.profile),
        )
        for p in placements
    ]
    yield from table(rows)


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as they need, two spaces apart, nothing after the last."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()


def _placement_details(placement: PlacementStatus, replicas: bool) -> Iterator[str]:
    said = [
        f"  {c.kind.value}: {c.reason.value if c.reason else ''}: {c.message}"
        for c in placement.conditions
        if c.status and c.kind in (ConditionKind.STALLED, ConditionKind.BLOCKED)
    ]
    shown = [r for r in placement.replicas if replicas or not r.ready or r.changes]
    if not said and not shown:
        return
    yield ""
    yield printable(placement.placement)
    yield from (printable(line) for line in dict.fromkeys(said))
    yield from (line for r in shown for line in _replica(r))


def _replica(replica: ReplicaStatus) -> Iterator[str]:
    state = state_words(replica.verdict, ready=replica.ready)
    place = f" on {' + '.join(replica.nodes)}" if replica.nodes else ""
    endpoint = f" at {replica.endpoint}" if replica.endpoint else ""
    why = without_fields(replica.reason, replica.changes)
    reason = f": {why}" if why else ""
    launch = f" ({replica.launch})" if replica.launch else ""
    said = f"  {replica.replica}: {state}{place}{endpoint}{launch}{reason}"
    yield printable(said)
    for field in replica.changes:
        before = shortened(masked(field.path, field.before)) or "(none)"
        after = shortened(masked(field.path, field.after)) or "(none)"
        yield printable(f"    {field.path}: {before} → {after}")


def _is_notable(node: NodeStatus) -> bool:
    return not node.seen or node.state != "active" or bool(node.held_by or node.detail)


def _node(node: NodeStatus) -> str:
    parts = [node.state] if node.state != "active" else []
    parts += [node.error] if node.error else []
    ends = f" (for another {duration(node.held_for_s)})" if node.held_for_s else ""
    what = f"launch {node.held_launch} is " if node.held_launch else ""
    parts += [f"{what}held by {node.held_by}{ends}"] if node.held_by else []
    parts += [node.detail] if node.detail else []
    return f"{node.node}: {': '.join(parts)}"
