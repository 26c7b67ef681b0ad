"""Metrics for Prometheus, read off the last report when they are asked for, not sprinkled around.

Gauges are the last report. What a single report cannot hold (counts, histograms) is added up by
`record`, once a pass. The clock is passed in: ages grow between passes, that is their point.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from reconciler.report.families import Histogram, counter, floats, gauge, histogram
from reconciler.report.passreport import PassReport

PASS_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
START_BUCKETS_S = (5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0)
"""Large models load for minutes; the start timeout is 1,800 s by default."""


class Metrics:
    """A prometheus_client collector: register it, and `record` each pass's report.

    `now_s` is a monotonic clock. Safe to scrape from another thread than the loop's.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._report: PassReport | None = None
        self._recorded_s = 0.0
        self._running_since_s: float | None = None
        self._behind_since_s: float | None = None
        self._seen_s: dict[str, float] = {}
        self._ready: frozenset[str] = frozenset()
        self._passes: Counter[tuple[str, ...]] = Counter()
        self._steps: Counter[tuple[str, ...]] = Counter()
        self._git_errors: Counter[tuple[str, ...]] = Counter()
        self._look_errors: Counter[tuple[str, ...]] = Counter()
        self._unpublished: Counter[tuple[str, ...]] = Counter()
        self._pass_s = Histogram(PASS_BUCKETS_S)
        self._stage_s: dict[tuple[str, ...], float] = {}
        self._start_s: dict[str, Histogram] = {}

    def begin(self) -> None:
        """A pass starts: from here on it counts as running."""
        with self._lock:
            self._running_since_s = self._now_s()

    def record(self, report: PassReport) -> None:
        """A pass has ended with this report."""
        now = self._now_s()
        with self._lock:
            first = self._report is None
            self._report, self._recorded_s, self._running_since_s = report, now, None
            self._passes[(str(report.exit_code),)] += 1
            self._pass_s.add(report.durations_s.get("total", 0.0))
            for stage, took in report.durations_s.items():
                self._stage_s[(stage,)] = self._stage_s.get((stage,), 0.0) + took
            for step in report.steps:
                self._steps[(step.kind, step.result)] += 1
                if step.kind == "start":
                    self._start("request", step.took_s)
            if report.head_error and not report.head_error.findings:
                self._git_errors[(report.head_error.reason,)] += 1
            if report.endpoints is not None:
                self._unpublished[("write",)] += bool(report.endpoints.error)
                self._unpublished[("hook",)] += bool(report.endpoints.hook_error)
            self._record_nodes(report, now)
            self._record_starts(report, first)
            behind = report.revisions.head != report.revisions.applied
            self._behind_since_s = (self._behind_since_s or now) if behind else None

    def _record_nodes(self, report: PassReport, now: float) -> None:
        names = {n.node for n in report.nodes}
        self._seen_s = {n: t for n, t in self._seen_s.items() if n in names}
        for node in report.nodes:
            if node.seen:
                self._seen_s[node.node] = now
            elif node.error:
                self._look_errors[(node.error,)] += 1

    def _record_starts(self, report: PassReport, first: bool) -> None:
        """Launches that are ready for the first time; those of the first look were so before."""
        ready = {
            r.launch: r.started_age_s - r.ready_for_s
            for p in report.placements
            for r in p.replicas
            if r.ready and r.launch
        }
        if not first:
            for launch in ready.keys() - self._ready:
                self._start("load", max(0.0, ready[launch]))
        self._ready = frozenset(ready)

    def _start(self, phase: str, took_s: float) -> None:
        self._start_s.setdefault(phase, Histogram(START_BUCKETS_S)).add(took_s)

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client asks for at each scrape."""
        with self._lock:
            now, report = self._now_s(), self._report
            families = [*self._totals(now), *self._gauges(now)]
            if report is not None:
                families += [*_placements(report), *_counts(report)]
        yield from families

    def _totals(self, now: float) -> Iterator[Metric]:
        yield counter("reconcile_passes", "Passes by exit code", ("exit_code",), self._passes)
        yield counter(
            "reconcile_steps", "Steps by kind and result", ("kind", "result"), self._steps
        )
        yield counter("reconcile_git_errors", "Failed reads of git", ("reason",), self._git_errors)
        yield counter(
            "reconcile_look_errors", "Looks without an answer", ("reason",), self._look_errors
        )
        yield counter(
            "reconcile_stage_seconds", "Seconds spent by stage", ("stage",), self._stage_s
        )
        yield histogram(
            "reconcile_pass_duration_seconds", "Duration of passes", (), {(): self._pass_s}
        )
        yield histogram(
            "reconcile_start_duration_seconds",
            "Duration of starts by phase",
            ("phase",),
            {(phase,): one for phase, one in self._start_s.items()},
        )
        yield counter(
            "reconcile_endpoints_failures",
            "Passes that could not publish endpoints, or whose hook failed",
            ("stage",),
            self._unpublished,
        )
        running = now - self._running_since_s if self._running_since_s is not None else 0.0
        yield gauge(
            "reconcile_pass_running_seconds", "Age of the pass that runs now", (), [((), running)]
        )

    def _gauges(self, now: float) -> Iterator[Metric]:
        if self._report is None:
            return
        behind = now - self._behind_since_s if self._behind_since_s is not None else 0.0
        yield gauge(
            "reconcile_revision_behind_seconds",
            "How long the applied revision has not been head",
            (),
            [((), behind)],
        )
        yield gauge(
            "reconcile_last_pass_age_seconds",
            "Age of the last report",
            (),
            [((), now - self._recorded_s)],
        )
        ages = [((node,), now - seen) for node, seen in sorted(self._seen_s.items())]
        yield gauge(
            "reconcile_node_last_look_age_seconds", "Age of the last good look", ("node",), ages
        )


def _placements(report: PassReport) -> Iterator[Metric]:
    info: list[tuple[tuple[str, ...], float]] = []
    wanted: list[tuple[tuple[str, ...], float]] = []
    ready: list[tuple[tuple[str, ...], float]] = []
    for p in report.placements:
        info.append(((p.placement, p.model, p.profile, p.sync.value, p.health.value), 1.0))
        wanted.append(((p.placement, p.model), float(p.wanted)))
        ready.append(((p.placement, p.model), float(p.ready)))
    labels = ("placement", "model", "profile", "sync", "health")
    yield gauge("reconcile_placement_info", "Sync and health of a placement", labels, info)
    names = ("placement", "model")
    yield gauge("reconcile_placement_replicas_wanted", "Replicas wanted", names, wanted)
    yield gauge("reconcile_placement_replicas_ready", "Replicas ready", names, ready)


def _counts(report: PassReport) -> Iterator[Metric]:
    revisions = report.revisions
    triple = (revisions.head, revisions.in_force, revisions.applied)
    yield gauge(
        "reconcile_revision_info",
        "Commits: head, in force, applied",
        ("head", "in_force", "applied"),
        [(triple, 1.0)],
    )
    error = report.head_error
    reasons = [((error.reason or "unknown",), 1.0)] if error else []
    yield gauge(
        "reconcile_head_error",
        "1 where head is not followed, or could not be fetched, by reason",
        ("reason",),
        reasons,
    )
    verdicts = Counter((r.verdict,) for p in report.placements for r in p.replicas)
    yield gauge("reconcile_replicas", "Replicas by verdict", ("verdict",), floats(verdicts))
    shards: Counter[tuple[str]] = Counter()
    for placement in report.placements:
        for replica in placement.replicas:
            shards[(replica.verdict,)] += len(replica.nodes)
    yield gauge("reconcile_shards", "Shards by verdict", ("verdict",), floats(shards))
    holds = Counter((h.reason.value,) for h in report.plan.holds) if report.plan else Counter()
    yield gauge("reconcile_holds", "Holds by reason", ("reason",), floats(holds))
    if report.endpoints is not None:
        published = [((c.name, c.state), float(c.count)) for c in report.endpoints.counts]
        names = ("served_name", "state")
        yield gauge("reconcile_endpoints", "Published endpoints by state", names, published)
    seen = [((n.node, n.state), float(n.seen)) for n in report.nodes]
    yield gauge("reconcile_node_seen", "1 where the node answered", ("node", "state"), seen)
