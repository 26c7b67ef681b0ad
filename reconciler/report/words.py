"""The words that every output shares, so that text, markdown and messages cannot disagree."""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.core.changes import Capacity, Change, Hold, Plan, Reason, Seat, Summary, Symbol
from reconciler.core.model import Revision
from reconciler.core.verdict import Verdict
from reconciler.core.words import plural as plural

SHORT_COMMIT = 10

ACTIONS: dict[Symbol, tuple[str, ...]] = {
    Symbol.START: ("start",),
    Symbol.STOP: ("stop",),
    Symbol.STOP_FIRST: ("stop", "start"),
    Symbol.START_FIRST: ("start", "stop"),
    Symbol.RELABEL: ("relabel",),
    Symbol.UNKNOWN: (),
    Symbol.BLOCKED: (),
}
"""What a symbol does, in order; published in the plan's JSON."""

VERBS: dict[Symbol, str] = {
    Symbol.START: "start",
    Symbol.STOP: "stop",
    Symbol.STOP_FIRST: "stop, then start",
    Symbol.START_FIRST: "start, then stop",
    Symbol.RELABEL: "relabel",
    Symbol.UNKNOWN: "unknown, left alone",
    Symbol.BLOCKED: "blocked",
}


_NEVER_READY = frozenset(
    {Verdict.MISSING, Verdict.STARTING, Verdict.EXITED, Verdict.TIMED_OUT, Verdict.SUSPENDED}
)
"""What these say of a launch includes that it serves nothing."""


def state_words(verdict: str, *, ready: bool) -> str:
    """`matching, ready`, `missing`; `starting, the old one serves` where another launch does."""
    if verdict not in _NEVER_READY:
        return f"{verdict}, {'ready' if ready else 'not ready'}"
    return f"{verdict}, the old one serves" if ready else verdict


def lead_words(other: str) -> str:
    """Of whoever holds the leases: a name, or a whole sentence where it is not that simple."""
    return other if " " in other else f"{other} leads this fleet"


def duration(seconds: float) -> str:
    """`2h`, `1h 30m`, `45 s`: as coarse as a person asks."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return " ".join(p for p in (f"{hours}h" * bool(hours), f"{minutes}m" * bool(minutes)) if p)


def short_revision(revision: Revision) -> str:
    """`main@sha1:8f2c1e0a4b` with what it lacks said."""
    if not revision.commit:
        return "the working tree (nothing is committed yet)"
    ref = f"{revision.ref}@" if revision.ref else ""
    name = f"{ref}sha1:{revision.commit[:SHORT_COMMIT]}"
    return f"{name} with uncommitted changes" if revision.dirty else name


def summary_words(summary: Summary) -> str:
    """`2 to start, 1 to replace, 1 held; 9 unchanged`: what is zero is not said."""
    parts = [
        (summary.start, "to start"),
        (summary.stop, "to stop"),
        (summary.replace, "to replace"),
        (summary.relabel, "to relabel"),
        (summary.unknown, "unknown"),
        (summary.held, "held"),
    ]
    said = ", ".join(f"{count} {words}" for count, words in parts if count)
    unchanged = f"; {summary.unchanged} unchanged" if summary.unchanged else ""
    return (said or "nothing to do") + unchanged


def plan_words(plan: Plan) -> str:
    """The summary, and how much of it a guard holds."""
    held = {c.address for c in plan.changes if c.waits_for is Reason.BLAST_RADIUS}
    guarded = f"; a guard holds {len(held)} of them" if held else ""
    return summary_words(plan.summary) + guarded


def shown_holds(plan: Plan) -> list[Hold]:
    """Without those that say what a guard's own line says."""
    return [h for h in plan.holds if not h.subject.startswith("guard ")]


def where(change: Change) -> str:
    """On which nodes, and from where to where if it moves."""
    before, after = seats_words(change.before_seats), seats_words(change.after_seats)
    if change.before_seats and change.after_seats and before != after:
        return f"{before} → {after}"
    return after or before


def seats_words(seats: Sequence[Seat]) -> str:
    """`gpu-a (8 GPUs) + gpu-b (8 GPUs)`, in rank order."""
    return " + ".join(f"{s.node} ({plural(len(s.gpus), 'GPU')})" for s in seats)


def cost_words(change: Change, capacity: Sequence[Capacity]) -> str:
    """What a replacement costs meanwhile, and how long the model loads where that is known."""
    if change.symbol not in (Symbol.STOP_FIRST, Symbol.START_FIRST):
        return ""
    said = [
        f"{share_words(c.lowest, c.wanted)} (now {c.ready})"
        for c in capacity
        if c.placement == change.placement
    ]
    if change.load_minutes:
        said.append(f"loads in about {change.load_minutes} min")
    return "; ".join(said)


def share_words(ready: int, wanted: int) -> str:
    """`3 of 4 ready`; `3 ready, 0 wanted` where it is more than are wanted."""
    return f"{ready} of {wanted} ready" if ready <= wanted else f"{ready} ready, {wanted} wanted"


def why_words(change: Change) -> str:
    """`stale: the profile was edited`; that all is well is no reason for a change."""
    verdict = "" if change.verdict == Verdict.MATCHING.value else change.verdict
    between = ", " if change.reason.startswith("goes first") else ": "
    return between.join(word for word in (verdict, change.reason) if word)


def waits_words(change: Change) -> str:
    """Why this pass does not do (all of) it, with the reason's published name."""
    if not change.waits:
        return ""
    if change.waits_for is Reason.BLAST_RADIUS:
        # The guard's own line has the sentence; repeated for each replica it hides the plan.
        return f"held by the guard ({change.waits_for})"
    return f"{change.waits} ({change.waits_for})" if change.waits_for else change.waits
