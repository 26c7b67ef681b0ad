"""Progress of `--wait`: a live table on a terminal, one line per change of state otherwise."""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from reconciler.report.clean import printable
from reconciler.report.events import Event, changes_of_state
from reconciler.report.words import state_words

if TYPE_CHECKING:
    from reconciler.report.passreport import PassReport

_TOLD = ("replica", "launch", "hold", "node", "revision.in_force", "revision.error", "lease")
"""Kinds of events that are told as lines; the rest follows from these."""


class Progress:
    """Shows each report of a wait. `quiet`: nothing (the output is for a machine)."""

    def __init__(self, *, live: bool, quiet: bool) -> None:
        self._quiet = quiet
        self._last: PassReport | None = None
        self._live: Any = None
        if live and not quiet:
            from rich.live import Live

            self._live = Live(refresh_per_second=4, transient=True)

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, report: PassReport) -> None:
        """One more pass."""
        # The plan that was just shown has told of the first pass; only what failed of it is news.
        before, self._last = self._last or replace(report, steps=()), report
        if self._quiet:
            return
        if self._live is not None:
            self._live.update(_table(report))
            return
        events = changes_of_state(before, report)
        refused = {cause for event in events if _is_undone(event) for cause in event.causes}
        for event in events:
            told = " ".join(event.causes)
            # Its own line says more: on which node.
            if event.kind == "hold" and any(why in told for why in refused):
                continue
            if event.kind in _TOLD or _is_undone(event):
                click.echo(printable(_line(event)))


def _is_undone(event: Event) -> bool:
    return event.kind.startswith("step.") and not event.after.startswith("done")


def _line(event: Event) -> str:
    change = f"{event.before} → {event.after}" if event.before else event.after
    why = f": {event.causes[0]}" if event.causes and event.causes[0] else ""
    what = f"{event.kind[5:]} " if event.kind.startswith("step.") else ""
    return f"{what}{event.subject}: {change}{why}"


def _table(report: PassReport) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table("placement", "ready", "health", "replicas")
    for p in report.placements:
        lines = [f"{r.replica}: {state_words(r.verdict, ready=r.ready)}" for r in p.replicas]
        cells = (p.placement, f"{p.ready}/{p.wanted}", p.health.value, "\n".join(lines))
        table.add_row(*(Text("\n".join(map(printable, c.split("\n")))) for c in cells))
    return table
