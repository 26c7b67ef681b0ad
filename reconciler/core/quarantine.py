"""Nodes and GPUs that are to get nothing new: the fault lies with them, so replicas go elsewhere.

Three kinds of evidence, all of it in this pass's answers: starts fail here that succeed elsewhere,
a GPU is lost, a process is stuck. Each ends with the evidence: by a reboot, by `retry`, or when the
node shows the GPU again. What runs there already is not touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from reconciler.core.endings import Ending
from reconciler.core.model import Desired, Node
from reconciler.core.observed import NodeAnswer, Observed
from reconciler.core.verdict import JudgedReplica, Quarantine, Verdict
from reconciler.core.views import Sighting
from reconciler.core.wanted import Group
from reconciler.core.words import one_or, share

FAILED_STARTS = 2
"""Of one profile on one node: the first may be chance."""

Launch = tuple[Sighting, Ending | None]
_STOPPING = Verdict.STOPPING


@dataclass(frozen=True)
class _Finding:
    node: str
    gpus: tuple[str, ...]
    """Empty: the whole node."""
    reason: str


def quarantines(
    groups: Mapping[str, Group],
    replicas: Iterable[JudgedReplica],
    desired: Desired,
    observed: Observed,
    retries: Mapping[str, int],
) -> tuple[Quarantine, ...]:
    """At most two for each node, sorted: the node as a whole, and all its GPUs in question."""
    launches = [pair for group in groups.values() for pair in group.launches]
    findings = [
        *_failing_starts(launches, retries),
        *_lost_gpus(launches, desired, observed),
        *_stuck(replicas),
    ]
    merged: dict[tuple[str, bool], list[_Finding]] = {}
    for finding in sorted(findings, key=lambda f: (f.node, f.gpus, f.reason)):
        merged.setdefault((finding.node, bool(finding.gpus)), []).append(finding)
    return tuple(
        Quarantine(
            node,
            tuple(sorted({gpu for f in found for gpu in f.gpus})),
            "; ".join(dict.fromkeys(f.reason for f in found)),
        )
        for (node, _), found in sorted(merged.items())
    )


# --- Starts that fail here and succeed elsewhere ------------------------------------------------


def _failing_starts(launches: Sequence[Launch], retries: Mapping[str, int]) -> Iterator[_Finding]:
    failed: dict[tuple[str, str], list[Sighting]] = {}
    for sighting, end in launches:
        if end is None or not end.delays or end.clears or sighting.view.ever_ready:
            continue
        forgiven = sighting.view.seq <= retries.get(sighting.view.replica, 0)
        # Where several ranks failed at once, nobody can say which of the nodes is at fault.
        if len(end.nodes) == 1 and not forgiven:
            failed.setdefault((end.nodes[0], sighting.view.fingerprint), []).append(sighting)
    failed = {key: own for key, own in failed.items() if len(own) >= FAILED_STARTS}
    if not failed:
        return
    served: dict[str, set[str]] = {}
    for sighting, _ in launches:
        if sighting.view.ever_ready:
            places = served.setdefault(sighting.view.fingerprint, set())
            places.update(p.node for p in sighting.view.places)
    for (node, fingerprint), own in failed.items():
        good = served.get(fingerprint, set())
        if good and node not in good:
            gpus = _gpus(own, node)
            some = gpus and _serves_beside(launches, node, gpus)
            yield _Finding(
                node,
                gpus if some else (),
                f"{len(own)} starts failed on {node} that succeed on {', '.join(sorted(good)[:3])}",
            )


def _gpus(sightings: Iterable[Sighting], node: str) -> tuple[str, ...]:
    return tuple(
        sorted({g for s in sightings for p in s.view.places if p.node == node for g in p.gpus})
    )


def _serves_beside(launches: Iterable[Launch], node: str, gpus: Sequence[str]) -> bool:
    """Whether the node serves well on other GPUs: then only these are in question."""
    return any(
        s.view.ready and any(p.node == node and set(p.gpus).isdisjoint(gpus) for p in s.view.places)
        for s, _ in launches
    )


# --- GPUs that are gone -------------------------------------------------------------------------


def _lost_gpus(
    launches: Sequence[Launch], desired: Desired, observed: Observed
) -> Iterator[_Finding]:
    for name, look in observed.nodes.items():
        node, answer = desired.nodes.get(name), look.answer
        if node is None or answer is None or node.gpus.source == "declared" or answer.gpus.error:
            continue
        broken = [g for g in answer.gpus.items if g.error]
        nameless = sum(1 for g in broken if not g.uuid)
        missing = max(0, node.gpus.count - len(answer.gpus.items)) if answer.gpus.items else 0
        unseen = _unseen(launches, node, answer) if nameless or missing else []
        if broken:
            kinds = " and ".join(sorted({g.error for g in broken}))
            named = sorted(g.uuid for g in broken if g.uuid)
            gpus = (*named, *_as_many(unseen[:nameless], nameless))
            yield _Finding(name, gpus, f"{_of(answer, node.gpus.count)}: {kinds}")
        if missing:
            seen = f"{_of_all(len(answer.gpus.items), node.gpus.count)} seen"
            yield _Finding(name, _as_many(unseen[nameless:], missing), seen)


def _of(answer: NodeAnswer, count: int) -> str:
    good = sum(1 for g in answer.gpus.items if not g.error)
    return f"{good} of {count} GPUs work"


def _unseen(launches: Sequence[Launch], node: Node, answer: NodeAnswer) -> list[str]:
    """GPUs that the inventory or a record names and the node does not."""
    seen = {g.uuid for g in answer.gpus.items}
    listed = sorted(set(node.gpus.ids) - seen)
    recorded = set(_gpus((s for s, _ in launches), node.name)) - seen - set(listed)
    return [*listed, *sorted(recorded)]


def _as_many(names: Sequence[str], count: int) -> tuple[str, ...]:
    """Never empty, which would be the whole node. What nobody names gets nothing new in any case:
    it is not seen."""
    unnamed = count - len(names[:count])
    return (*names[:count], *((f"({unnamed} not seen)",) if unnamed else ()))


# --- Stuck processes ----------------------------------------------------------------------------


def _stuck(replicas: Iterable[JudgedReplica]) -> Iterator[_Finding]:
    for replica in replicas:
        for judged in replica.launches:
            if judged.verdict is not _STOPPING or not judged.stuck:
                continue
            for place in judged.view.places:
                shard = judged.view.shards.get(place.rank)
                if shard is not None and shard.alive and place.gpus:
                    gpus = tuple(sorted(place.gpus))
                    yield _Finding(place.node, gpus, f"{judged.view.launch} is stuck there")


def _of_all(count: int, total: int) -> str:
    return f"{share(count, total, 'GPU')} {one_or(total, 'is', 'are')}"
