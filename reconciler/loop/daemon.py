"""The line in a loop: passes at an interval, at once on a new commit, until told to stop.

It keeps no state that matters: what it remembers (the last report) only makes events and metrics.
A pass that fails for a reason that nobody foresaw is logged with its traceback and the loop goes
on; that is the one place where every exception is caught, because a daemon that died of one odd
answer repairs nothing.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from reconciler.errors import GitError, ReconcileError
from reconciler.loop.leases import Book
from reconciler.loop.outcome import is_moving
from reconciler.loop.passes import Request, run_pass
from reconciler.loop.seams import Edges
from reconciler.loop.trigger import Trigger
from reconciler.report.events import Event, changes_of_state
from reconciler.report.passreport import HeadError, PassReport, Revisions

BUSY_S = 2.0
"""Pause between passes while something starts or stops: a rollout goes on at this rate."""

DEFAULT_INTERVAL_S = 30.0
"""Until a fleet.yaml was read that says otherwise."""

JITTER = 0.1
"""Share of the interval: many daemons that start together must not look together."""


class Listener(Protocol):
    """Whoever wants to know: metrics, events, the log, the status page."""

    def begin(self) -> None:
        """A pass begins."""

    def end(self, report: PassReport, events: tuple[Event, ...]) -> None:
        """A pass has ended."""

    def failed(self, traceback_text: str) -> None:
        """A pass ended by a bug of ours."""


@dataclass(frozen=True)
class Schedule:
    """How often."""

    interval_s: float = 0.0
    """0: as fleet.yaml says."""
    busy_s: float = BUSY_S
    deadline_s: float = 300.0
    """No new step is begun in a pass that is older; the next pass goes on from there."""


class Daemon:
    """Runs passes until its trigger is stopped."""

    def __init__(
        self,
        edges: Edges,
        request: Request,
        schedule: Schedule,
        trigger: Trigger,
        listener: Listener,
        jitter: Callable[[], float],
    ) -> None:
        """`jitter` gives numbers from -1 to 1."""
        self._edges = edges
        self._book = Book()
        self._request = replace(request, keep=self._book)
        self._schedule = schedule
        self._trigger = trigger
        self._listener = listener
        self._jitter = jitter
        self._last: PassReport | None = None
        self._interval_s = schedule.interval_s or DEFAULT_INTERVAL_S

    def run(self) -> None:
        """Until stopped; then the leases are given back."""
        try:
            while not self._trigger.stopping:
                self._trigger.clear()
                head = self._head()
                moving = self._one_pass()
                self._trigger.wait(self.pause_s(moving=moving), partial(self._is_past, head))
        finally:
            self._book.release(self._edges.pool)

    def pause_s(self, *, moving: bool) -> float:
        """Until the next pass, if nothing happens before."""
        base = min(self._schedule.busy_s, self._interval_s) if moving else self._interval_s
        return base * (1 + JITTER * self._jitter())

    def _one_pass(self) -> bool:
        """Whether something is on the way after it."""
        self._listener.begin()
        began_s = self._edges.clock_s()

        def cancelled() -> bool:
            late = self._edges.clock_s() - began_s > self._schedule.deadline_s
            return late or self._trigger.stopping

        applied = self._last.revisions.applied if self._last else ""
        request = replace(self._request, applied=applied, cancelled=cancelled)
        try:
            report = run_pass(self._edges, request)
        except ReconcileError as error:
            report = self._failed(HeadError("", str(error)))
        except Exception:  # noqa: BLE001  the daemon's one place; see above
            self._listener.failed(traceback.format_exc())
            return False
        known = self._known(report)
        self._listener.end(known, changes_of_state(self._last, known))
        self._last = known
        self._interval_s = self._schedule.interval_s or report.interval_s or self._interval_s
        return is_moving(report)

    def _known(self, report: PassReport) -> PassReport:
        """What a pass without a plan did not judge is as it was last seen, and not gone."""
        last = self._last
        if report.plan is not None or last is None:
            return report
        return replace(
            report,
            observed_at=report.observed_at if report.nodes else last.observed_at,
            nodes=report.nodes or last.nodes,
            placements=last.placements,
            plan=last.plan,
        )

    def _failed(self, error: HeadError) -> PassReport:
        """The last report, with the error: what was known before is still the best knowledge."""
        if self._last is not None:
            return replace(self._last, head_error=error, exit_code=1, steps=())
        return PassReport(self._edges.owner, self._edges.now(), Revisions(), 1, head_error=error)

    def _is_past(self, head: str) -> bool:
        return self._head() != head

    def _head(self) -> str:
        """The commit that is followed, without a fetch; empty where it cannot be told."""
        try:
            return self._edges.source.resolve(self._request.ref).commit
        except GitError:
            return ""
