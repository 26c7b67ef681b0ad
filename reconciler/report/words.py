"""The words that every output shares, so that text, markdown and messages cannot disagree."""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.core.changes import Capacity, Change, Seat, Summary, Symbol
from reconciler.core.model import Revision
from reconciler.core.verdict import Verdict

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


def plural(count: int, word: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def short_revision(revision: Revision) -> str:
    """`main@sha1:8f2c1e0a4b` with what it lacks said."""
    name = f"{revision.ref or 'HEAD'}@sha1:{revision.commit[:SHORT_COMMIT] or 'none'}"
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
        f"{c.lowest} of {c.wanted} ready (now {c.ready})"
        for c in capacity
        if c.placement == change.placement
    ]
    if change.load_minutes:
        said.append(f"loads in about {change.load_minutes} min")
    return "; ".join(said)


def why_words(change: Change) -> str:
    """`stale: another profile than its placement's`; that all is well is no reason for a change."""
    verdict = "" if change.verdict == Verdict.MATCHING.value else change.verdict
    return ": ".join(word for word in (verdict, change.reason) if word)


def waits_words(change: Change) -> str:
    """Why this pass does not do (all of) it, with the reason's published name."""
    if not change.waits:
        return ""
    return f"{change.waits} ({change.waits_for})" if change.waits_for else change.waits
