"""Counts to Prometheus families: the few shapes that metrics.py reports in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

Samples = Sequence[tuple[tuple[str, ...], float]]


Counts = Mapping[tuple[str, ...], float]


@dataclass
class Histogram:
    """Values by bucket, added up over the life of the process."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts = self.counts or [0] * (len(self.bounds) + 1)
        place = next((i for i, b in enumerate(self.bounds) if value <= b), len(self.bounds))
        self.counts[place] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as Prometheus wants them."""
        sums: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=False):
            running += count
            sums.append(("+Inf" if bound == float("inf") else str(bound), float(running)))
        return sums or [("+Inf", 0.0)]


def floats(counts: Mapping[tuple[str], int]) -> Samples:
    """Counts as samples, in order."""
    return [(labels, float(count)) for labels, count in sorted(counts.items())]


def gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    """A gauge with all its samples."""
    family = GaugeMetricFamily(name, text, labels=list(labels))
    for values, number in samples:
        family.add_metric(list(values), number)
    return family


def counter(name: str, text: str, labels: Sequence[str], counts: Counts) -> Metric:
    """A counter with all its samples."""
    family = CounterMetricFamily(name, text, labels=list(labels))
    for values, number in sorted(counts.items()):
        family.add_metric(list(values), number)
    return family


def histogram(
    name: str, text: str, labels: Sequence[str], samples: Mapping[tuple[str, ...], Histogram]
) -> Metric:
    """A histogram by labels."""
    family = HistogramMetricFamily(name, text, labels=list(labels))
    for values, one in sorted(samples.items(), key=lambda pair: pair[0]):
        family.add_metric(list(values), one.buckets(), one.total)
    return family
