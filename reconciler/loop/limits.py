"""What a plan may do when the pass has fewer rights than usual: pure restrictions of a plan.

A step that is taken out leaves its change with a reason, so that the report says why it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from reconciler.core.changes import (
    AdoptStep,
    Change,
    Plan,
    Reason,
    RelabelStep,
    StartStep,
    Step,
    StopStep,
    Symbol,
)
from reconciler.core.verdict import Verdict

REPAIRED = frozenset(
    v.value for v in (Verdict.MISSING, Verdict.EXITED, Verdict.TIMED_OUT, Verdict.UNHEALTHY)
)
"""Verdicts whose replacement restores what was there; every other change is somebody's wish."""


def only_repairs(plan: Plan, why: str, reason: Reason) -> Plan:
    """`plan` without voluntary changes; those that are left out wait for `why` and nothing else."""
    changes = []
    for change in plan.changes:
        if change.verdict in REPAIRED or change.symbol is Symbol.UNKNOWN:
            changes.append(change)
            continue
        kept = tuple(step for step in change.steps if not _is_voluntary(step))
        if kept and len(kept) == len(change.steps):
            changes.append(change)
        else:
            changes.append(replace(change, steps=kept, waits=why, waits_for=reason))
    return replace(plan, changes=tuple(changes))


def only_on(plan: Plan, nodes: Collection[str], why: str, reason: Reason) -> Plan:
    """`plan` without the steps that need a node outside `nodes`.

    A step is all or nothing: half a replica is worse than none.
    """

    def foreign(step: Step) -> bool:
        return not set(step_nodes(step)) <= set(nodes)

    return replace(
        plan,
        changes=tuple(_without(change, foreign, why, reason) for change in plan.changes),
        repairs=tuple(step for step in plan.repairs if not foreign(step)),
    )


def step_nodes(step: Step) -> Iterable[str]:
    """The nodes that a step is sent to."""
    match step:
        case StartStep():
            return [shard.node for shard in step.shards]
        case StopStep() | RelabelStep() | AdoptStep():
            return step.nodes


def _is_voluntary(step: Step) -> bool:
    """Starts too: beside a replica that lives, a start is the first half of a replacement."""
    return not (isinstance(step, StopStep) and not step.voluntary)


def _without(change: Change, taken: Callable[[Step], bool], why: str, reason: Reason) -> Change:
    kept = tuple(step for step in change.steps if not taken(step))
    if len(kept) == len(change.steps):
        return change
    return replace(change, steps=kept, waits=why, waits_for=reason)
