"""Changes of state as events: two pass reports in, one JSON object per thing that changed out.

Nothing is emitted per poll: two equal reports give no event, however often they are compared. Each
event carries the revision triple and the chain of causes, so that it can be read without its
neighbours. Delivery is not this module's business (`reconciler/loop/sink.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from reconciler.report.passreport import (
    EndpointsStatus,
    HeadError,
    NodeStatus,
    PassReport,
    PlacementStatus,
    ReplicaStatus,
    Revisions,
    StepOutcome,
)
from reconciler.report.words import state_words


@dataclass(frozen=True)
class Event:
    """One change of state."""

    kind: str
    """`placement.health`, `replica`, `launch`, `node`, `hold`, `revision.head`, `step.start`, …"""
    subject: str
    before: str
    after: str
    revisions: Revisions
    causes: tuple[str, ...] = ()
    """From the nearest to the farthest: what it waits for, why, by which field, of which commit."""


GONE, OVER, CLEARED = "gone", "over", "cleared"
ENDED = frozenset({GONE, OVER, CLEARED})
"""What `after` says where there is nothing any more: an empty side reads like a mistake."""

_MEASURED = re.compile(r"\d+(\.\d+)? (GiB|MiB|KiB|B|s|min|%)(?!\w)")
"""Numbers that differ at each look: that they did is no change of state."""

T = TypeVar("T")


def changes_of_state(before: PassReport | None, after: PassReport) -> tuple[Event, ...]:
    """What changed between two passes, in a fixed order; `before` None: the first pass."""
    return tuple(_events(before, after))


def _events(before: PassReport | None, after: PassReport) -> Iterator[Event]:
    old = before or PassReport(owner="", observed_at="", revisions=Revisions())
    yield from _revision_events(old, after)
    yield from _lease_events(old, after)
    yield from _endpoints_events(old, after)
    for name, was, now in _pairs({n.node: n for n in old.nodes}, {n.node: n for n in after.nodes}):
        yield from _node_events(name, was, now, after)
    for name, p_was, p_now in _pairs(
        {p.placement: p for p in old.placements}, {p.placement: p for p in after.placements}
    ):
        yield from _placement_events(name, p_was, p_now, after)
    yield from _hold_events(old, after)
    known = {_step_key(step) for step in old.steps if step.result != "done"}
    for step in after.steps:
        if _step_key(step) in known:
            continue
        code = f" ({step.code})" if step.code else ""
        causes = tuple(c for c in (step.message,) if c)
        subject = f"{step.subject} on {step.node}"
        yield Event(
            f"step.{step.kind}", subject, "", f"{step.result}{code}", after.revisions, causes
        )


def _step_key(step: StepOutcome) -> tuple[str, ...]:
    """Refused for the same reason as before is one event, also where each try has another name."""
    subject = step.subject.rpartition("-")[0] if step.kind == "start" else step.subject
    return step.kind, subject, step.node, step.result, step.code, _MEASURED.sub("", step.message)


def _pairs(
    before: Mapping[str, T], after: Mapping[str, T]
) -> Iterator[tuple[str, T | None, T | None]]:
    for name in sorted(before.keys() | after.keys()):
        yield name, before.get(name), after.get(name)


def _revision_events(old: PassReport, new: PassReport) -> Iterator[Event]:
    for name in ("head", "in_force", "applied"):
        was, now = getattr(old.revisions, name), getattr(new.revisions, name)
        if was != now and now:
            yield Event(f"revision.{name}", new.revisions.ref or "HEAD", was, now, new.revisions)
    turned = new.turned
    if turned and turned != old.turned:
        ref = new.revisions.ref or "HEAD"
        told = (turned.message,)
        yield Event("revision.history", ref, turned.before, turned.after, new.revisions, told)
    if _error_text(old.head_error) != _error_text(new.head_error):
        error = new.head_error
        causes = (error.message, *(str(f) for f in error.findings)) if error else ()
        yield Event(
            "revision.error",
            (error.revision if error else "") or new.revisions.head or "HEAD",
            _error_text(old.head_error),
            _error_text(error) or CLEARED,
            new.revisions,
            causes,
        )


def _error_text(error: HeadError | None) -> str:
    return f"{error.reason} {error.revision}".strip() if error else ""


def _lease_events(old: PassReport, new: PassReport) -> Iterator[Event]:
    if old.lease_held_by != new.lease_held_by:
        now = new.lease_held_by or OVER
        yield Event("lease", new.owner, old.lease_held_by, now, new.revisions)


def _endpoints_events(old: PassReport, new: PassReport) -> Iterator[Event]:
    """That publishing fails, or works again; the text of a failure may differ each time."""
    if new.endpoints is None:
        return
    was = _publishing(old.endpoints) if old.endpoints else ""
    now = _publishing(new.endpoints)
    if was != now and (was or now != "published"):
        problems = new.endpoints.problems
        yield Event("endpoints", new.endpoints.folder, was, now, new.revisions, problems)


def _publishing(status: EndpointsStatus) -> str:
    if status.error:
        return "not written"
    return "hook failed" if status.hook_error else "published"


def _node_events(
    name: str, was: NodeStatus | None, now: NodeStatus | None, report: PassReport
) -> Iterator[Event]:
    states = [_node_state(was), _node_state(now)]
    if states[0] != states[1]:
        causes = (now.detail,) if now and now.detail else ()
        yield Event("node", name, states[0], states[1] or GONE, report.revisions, causes)


def _node_state(node: NodeStatus | None) -> str:
    if node is None:
        return ""
    what = f"launch {node.held_launch} " if node.held_launch else ""
    held = f", {what}held by {node.held_by}" if node.held_by else ""
    return f"{node.state}, {'seen' if node.seen else node.error or 'not seen'}{held}"


def _placement_events(
    name: str, was: PlacementStatus | None, now: PlacementStatus | None, report: PassReport
) -> Iterator[Event]:
    causes = _placement_causes(now) if now else ("taken out of the repo",)
    axes = (
        ("sync", was.sync.value if was else "", now.sync.value if now else ""),
        ("health", was.health.value if was else "", now.health.value if now else ""),
    )
    for axis, before, after in axes:
        if before != after:
            yield Event(f"placement.{axis}", name, before, after or GONE, report.revisions, causes)
    for replica, r_was, r_now in _pairs(
        {r.replica: r for r in was.replicas} if was else {},
        {r.replica: r for r in now.replicas} if now else {},
    ):
        states = [_replica_state(r_was), _replica_state(r_now)]
        if was and r_now and r_now.failed_launch and not _is_told(r_was, r_now):
            told = (r_now.failed_why,)
            yield Event("launch", r_now.failed_launch, "", "start failed", report.revisions, told)
        if states[0] != states[1]:
            after = states[1] or GONE
            causes = _replica_causes(r_now)
            yield Event("replica", replica, states[0], after, report.revisions, causes)


def _is_told(was: ReplicaStatus | None, now: ReplicaStatus) -> bool:
    return was is not None and was.failed_launch == now.failed_launch


def _placement_causes(placement: PlacementStatus) -> tuple[str, ...]:
    """One condition for each cause: what holds a placement is told by two or three of them."""
    found: dict[tuple[str, str], str] = {}
    for c in placement.conditions:
        if c.reason is not None:
            cause = c.reason.value, c.message
            found.setdefault(cause, f"{c.kind.value}: {c.reason.value}: {c.message}")
    return tuple(found.values())


def _replica_state(replica: ReplicaStatus | None) -> str:
    if replica is None:
        return ""
    return state_words(replica.verdict, ready=replica.ready)


def _replica_causes(replica: ReplicaStatus | None) -> tuple[str, ...]:
    if replica is None:
        return ()
    fields = tuple(f.path for f in replica.changes if f"{f.path} " not in replica.reason)
    return (replica.reason, *fields) if replica.reason else fields


def _hold_events(old: PassReport, new: PassReport) -> Iterator[Event]:
    """By subject and reason: a message that counts differently each pass is no change of state."""
    was = {f"{h.subject}\0{h.reason}": h for h in old.plan.holds} if old.plan else {}
    now = {f"{h.subject}\0{h.reason}": h for h in new.plan.holds} if new.plan else {}
    for _, before, after in _pairs(was, now):
        if (before is None) != (after is None):
            one = after or before
            assert one is not None
            yield Event(
                "hold",
                one.subject,
                before.reason.value if before else "",
                after.reason.value if after else OVER,
                new.revisions,
                (after.message,) if after else (),
            )
