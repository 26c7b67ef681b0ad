"""A reconciler over nodes in memory: the same line of stages, and nothing that outlives its death.

A pass is a generator of the points where it may be cut, paused or killed. What a real one keeps in
memory (what silent nodes held at the last look, under its own lease) is kept here too and is lost
with the object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from reconciler.core import remarks
from reconciler.core.changes import (
    AdoptStep,
    Plan,
    RelabelStep,
    ShardSpec,
    StartStep,
    Step,
    StopStep,
)
from reconciler.core.diff import diff
from reconciler.core.endpoints import Endpoints, endpoints
from reconciler.core.ids import IdSource
from reconciler.core.model import Desired
from reconciler.core.observed import Lease, NodeAnswer, NodeLook, Observed
from reconciler.core.plan import plan
from reconciler.core.verdict import Diff
from reconciler.simulate.fleet import Fate, NoAnswer, NotReached, Point, SimFleet
from reconciler.simulate.leases import Refused

Planner = Callable[[Desired, Observed, Diff, IdSource], Plan]
Differ = Callable[[Desired, Observed], Diff]


@dataclass(frozen=True)
class Pass:
    """What one pass saw, decided and did."""

    desired: Desired
    observed: Observed
    diff: Diff
    plan: Plan
    done: tuple[tuple[Step, str], ...] = ()
    """Steps that every node of theirs accepted (`done`) or not (the node's code)."""


class Publisher(Protocol):
    """`endpoints` (core/endpoints.py), or a mistake in its place."""

    def __call__(
        self,
        desired: Desired,
        observed: Observed,
        judged: Diff,
        before: Endpoints | None,
        *,
        leaving: Collection[str] = (),
        now: str,
    ) -> Endpoints: ...


@dataclass
class Folder:
    """What a reconciler has published. It outlives the reconciler, as a folder on a disk does."""

    published: Endpoints | None = None
    before: Endpoints | None = None
    leaving: frozenset[str] = frozenset()
    """Launches that were left out because their stop comes next."""


@dataclass
class Asked:
    """What became of the requests of one pass."""

    sent: set[str] = field(default_factory=set)
    """Launches of which any node may have a request."""
    unfit: dict[str, dict[str, str]] = field(default_factory=dict)
    """Launch → node → what it, or its successor, lacks there."""


PREFLIGHT = "preflight"
PUBLISHED = "published"
"""The step between the decision and its first request."""

Passing = Generator[Point | Pass, Fate | None, Pass]


@dataclass
class SimReconciler:
    """One reconciler process. Killing it is dropping it."""

    fleet: SimFleet
    owner: str
    ids: IdSource
    differ: Differ = diff
    planner: Planner = plan
    memory: dict[str, NodeAnswer] = field(default_factory=dict)
    folder: Folder | None = None
    """None: it publishes nothing."""
    publisher: Publisher = endpoints
    lacks: Collection[str] = ()
    """Secrets that are not in its folder; all others are."""

    def run(self, desired: Desired, *, approvals: Any = None) -> Passing:
        """One pass. Yields each point inside each node; and the decision, before its first step."""
        names = self.fleet.to_look_at(desired)
        epochs: dict[str, int] = {}
        for name in names:
            lease = yield from self._acquire(desired, name, approvals)
            if lease:
                epochs[name] = lease.epoch
        observed = yield from self._look(desired)
        difference = self.differ(desired, observed)
        decision = self.planner(desired, observed, difference, self.ids)
        made = Pass(desired, observed, difference, decision)
        yield made
        leaving = frozenset(s.launch for s in decision.steps if isinstance(s, StopStep))
        yield from self._publish(made, leaving)
        done: list[tuple[Step, str]] = []
        asked = Asked()
        for step in decision.steps:
            result = yield from self._do(desired, step, epochs, asked)
            done.append((step, result))
        if leaving - asked.sent:
            yield from self._publish(made, leaving & asked.sent)
        decision = remarks.unfit(decision, asked.unfit)
        return Pass(desired, observed, difference, decision, tuple(done))

    def _acquire(
        self, desired: Desired, name: str, approvals: Any
    ) -> Generator[Point, Fate | None, Lease | None]:
        fields = {"fleet": desired.fleet.id, "owner": self.owner, "ttl_s": desired.fleet.lease_s}
        if approvals is not None:
            fields["approvals"] = approvals
        try:
            lease: Lease = yield from self.fleet.request(name, "lease", action="acquire", **fields)
        except (NoAnswer, Refused):
            return None
        return lease

    def _look(self, desired: Desired) -> Generator[Point, Fate | None, Observed]:
        looks: dict[str, NodeLook] = {}
        for name in self.fleet.to_look_at(desired):
            look = yield from self.fleet.look(name, desired.fleet.id)
            if look.answer:
                self._remember(name, look.answer)
            elif look.last is None:
                look = replace(look, last=self.memory.get(name))
            looks[name] = look
        return Observed(self.owner, looks)

    def _remember(self, name: str, answer: NodeAnswer) -> None:
        """What a silent node holds is relied on only under our own unbroken lease."""
        lease = answer.lease
        if lease and lease.owner == self.owner and lease.remaining_s > 0:
            self.memory[name] = answer
        else:
            self.memory.pop(name, None)

    def _publish(self, made: Pass, leaving: frozenset[str]) -> Generator[Point, Fate | None, None]:
        """What is about to stop leaves first; whose stop then reached no node comes back."""
        folder = self.folder
        if folder is None:
            return
        folder.before, folder.leaving = folder.published, leaving
        folder.published = self.publisher(
            made.desired,
            made.observed,
            made.diff,
            folder.before,
            leaving=leaving,
            now=f"{self.fleet.clock.now:.0f}",
        )
        self.fleet.publish(self.owner, (e.launch for e in folder.published.entries))
        yield Point("", "publish", PUBLISHED)

    def _do(
        self, desired: Desired, step: Step, epochs: dict[str, int], asked: Asked
    ) -> Generator[Point, Fate | None, str]:
        """A step on all its nodes; a refusal of one leaves the rest for the next pass."""
        could = yield from self._check(desired, step, epochs, asked)
        if could:
            return could
        for node, op, fields in _requests(step):
            if node not in epochs:
                return "no lease"
            if self._missing(step.launch, node, fields.get("secrets", ()), asked):
                return PREFLIGHT
            if isinstance(step, StartStep):
                # Should the node fall silent now, it may hold this.
                self.memory.pop(node, None)
            fence = {"fleet": desired.fleet.id, "owner": self.owner, "epoch": epochs[node]}
            try:
                yield from self.fleet.request(node, op, fence=fence, **fields)
                asked.sent.add(step.launch)
            except NotReached:
                return "no answer"
            except NoAnswer:
                asked.sent.add(step.launch)
                return "no answer"
            except Refused as refusal:
                if refusal.code == PREFLIGHT:
                    asked.unfit.setdefault(step.launch, {})[node] = refusal.message
                return refusal.code
        return "done"

    def _check(
        self, desired: Desired, step: Step, epochs: dict[str, int], asked: Asked
    ) -> Generator[Point, Fate | None, str]:
        """Asks all nodes before a stop whose successor needs its place, and before a start on
        several; empty: nothing stands in the way."""
        for node, spec, replaces in _questions(step):
            if node not in epochs:
                return "no lease"
            if self._missing(step.launch, node, spec.get("secrets", ()), asked):
                continue
            try:
                said = yield from self.fleet.request(node, "check", spec=spec, replaces=replaces)
            except NoAnswer:
                return "no answer"
            if said["findings"]:
                asked.unfit.setdefault(step.launch, {})[node] = "; ".join(said["findings"])
        return PREFLIGHT if step.launch in asked.unfit else ""

    def _missing(self, launch: str, node: str, secrets: Collection[str], asked: Asked) -> bool:
        """What lacks a secret is not asked of the node, and must not end what runs."""
        missing = sorted(set(secrets) & set(self.lacks))
        if missing:
            asked.unfit.setdefault(launch, {})[node] = f"no secret {', '.join(missing)}"
        return bool(missing)


def _questions(step: Step) -> list[tuple[str, Mapping[str, Any], str]]:
    """Node, spec, and the launch that will have ended by then."""
    if isinstance(step, StopStep):
        return [(s.node, s.spec, step.launch) for s in step.check]
    if isinstance(step, StartStep) and len(step.shards) > 1:
        return [(s.node, s.spec, "") for s in step.shards]
    return []


def _start(shard: ShardSpec) -> dict[str, Any]:
    """Its secrets go beside the spec; what they are decides nothing."""
    told = dict.fromkeys(shard.spec.get("secrets", ()), "a value")
    return {"spec": shard.spec, "labels": shard.labels, **({"secrets": told} if told else {})}


def _requests(step: Step) -> list[tuple[str, str, dict[str, Any]]]:
    """Node, op and fields of every request that a step is."""
    match step:
        case StartStep():
            return [(s.node, "start", _start(s)) for s in step.shards]
        case StopStep():
            return [(n, "stop", {"launch": step.launch}) for n in step.nodes]
        case RelabelStep():
            return [
                (n, "relabel", {"launch": step.launch, "labels": step.labels}) for n in step.nodes
            ]
        case AdoptStep():
            return [(n, "adopt", {"launch": step.launch}) for n in step.nodes]
