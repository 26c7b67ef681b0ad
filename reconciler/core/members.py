"""The members file: what a router on a node is told of the placements it spreads requests over.

Where replicas run and on which ports changes with every move, so it can stand in no command line:
the router would restart at each. It stands in a file in the launch's folder that is replaced in
place (docs/adr). What the file said before is the memory, as the published list is for
`endpoints`, whose rules decide here too; nobody else's disk is needed.

Keeping it up to date is a repair: it takes nothing out of service, is in no digest and waits for
no budget. What this pass asks to stop leaves the file in the same pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from reconciler.core import tidy
from reconciler.core.changes import Change, RelabelStep, StartStep, Step, StopStep
from reconciler.core.endpoints import Endpoints, endpoints
from reconciler.core.memberfile import MEMBERS_FILE, read, render
from reconciler.core.model import Desired, Placement
from reconciler.core.observed import Labels, Observed
from reconciler.core.parts import Parts
from reconciler.core.verdict import Diff, JudgedLaunch, Verdict

_LEFT_ALONE = frozenset({Verdict.UNREACHABLE, Verdict.UNKNOWN, Verdict.STOPPING})


def keep_up_to_date(parts: Parts, observed: Observed, judged: Diff) -> None:
    """Put the members into every step of a router's launch, and add the steps that are due."""
    routers = {p.name: p for p in parts.desired.placements.values() if p.members}
    if not routers:
        return
    draft = parts.draft
    stops = {s.launch for c in draft.changes for s in c.steps if isinstance(s, StopStep)}
    book = _Book(parts.desired, observed, judged, routers, frozenset(stops))
    draft.changes[:] = [book.fill(change) for change in draft.changes]
    told = {s.launch for c in draft.changes for s in c.steps if isinstance(s, RelabelStep)}
    draft.repairs += book.due(parts, told)


@dataclass(frozen=True)
class _Book:
    desired: Desired
    observed: Observed
    judged: Diff
    routers: Mapping[str, Placement]
    stops: frozenset[str]

    def fill(self, change: Change) -> Change:
        """The change with the members in what it writes on nodes."""
        if change.placement not in self.routers or not change.steps:
            return change
        steps = tuple(self._filled(change.placement, step) for step in change.steps)
        return replace(change, steps=steps)

    def _filled(self, router: str, step: Step) -> Step:
        if isinstance(step, RelabelStep):
            return replace(step, labels=self._with(router, step.labels))
        if isinstance(step, StartStep):
            shards = [replace(s, labels=self._with(router, s.labels)) for s in step.shards]
            return replace(step, shards=tuple(shards))
        return step

    def _with(self, router: str, labels: Labels) -> Labels:
        return replace(labels, files={MEMBERS_FILE: self.text(router)})

    def due(self, parts: Parts, told: Collection[str]) -> Iterator[RelabelStep]:
        """A step for each living launch of a router whose file says something else."""
        for router, launch in self._launches():
            view = launch.view
            if launch.verdict in _LEFT_ALONE or not view.alive:
                continue
            if view.launch in told or view.launch in self.stops:
                continue
            files = {MEMBERS_FILE: self.text(router)}
            nodes = tidy.nodes_of(view)
            known = [s.labels for s in view.shards.values() if s.labels is not None]
            if not known or len(known) < len(view.shards):
                continue
            if all(labels.files == files for labels in known):
                continue
            if parts.access.why_not(nodes, view.launch) is None:
                labels = replace(known[0], files=files)
                yield RelabelStep(view.replica, view.launch, nodes, labels)

    def text(self, router: str) -> str:
        """The file's content today."""
        members = self.routers[router].members
        found = [e for e in self._published.entries if e.placement in members]
        return render(members, found, self._ports)

    @cached_property
    def _published(self) -> Endpoints:
        before = [e for text in self._texts() for e in read(text)]
        memory = {(e.launch, e.rank): e for e in before}
        known = Endpoints(self.desired.fleet.id, tuple(memory.values())) if before else None
        return endpoints(
            self.desired, self.observed, self.judged, known, leaving=self.stops, now=""
        )

    def _texts(self) -> Iterator[str]:
        for _, launch in self._launches():
            for shard in launch.view.shards.values():
                if shard.labels is not None and MEMBERS_FILE in shard.labels.files:
                    yield shard.labels.files[MEMBERS_FILE]

    @cached_property
    def _ports(self) -> Mapping[tuple[str, int], Mapping[str, int]]:
        return {
            (launch.view.launch, place.rank): place.ports
            for replica in self.judged.replicas
            for launch in replica.launches
            for place in launch.view.places
        }

    def _launches(self) -> Iterator[tuple[str, JudgedLaunch]]:
        for replica in self.judged.replicas:
            if replica.placement in self.routers:
                for launch in replica.launches:
                    yield replica.placement, launch
