"""A random fleet, random edits and random faults from one seed, played in virtual time.

Everything comes from `random.Random(seed)`: the same seed plays the same story to the letter. The
story has a troubled part, in which people edit and things break, and a quiet part, in which the
fleet has to come to rest.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from reconciler.core.changes import Reason
from reconciler.core.diff import diff
from reconciler.core.endpoints import State
from reconciler.core.model import Desired
from reconciler.core.verdict import Verdict
from reconciler.simulate.fleet import Fate, SimFleet
from reconciler.simulate.reconciler import (
    Differ,
    Folder,
    Pass,
    Planner,
    Publisher,
    SimReconciler,
)
from tests.sim import oracle, watching
from tests.sim.edits import BAD, Repo
from tests.sim.first import behave, first_revision, links, skews
from tests.sim.troubles import trouble

TICK_S = 10.0
TROUBLED_PASSES = 25
QUIET_PASSES = 420
"""At 10 s each: longer than the longest back-off and start timeout of a scenario together."""
CALM = 3
"""Passes in a row without a step that count as rest."""

FINAL = frozenset(
    {
        Reason.NO_CAPACITY,
        Reason.INFEASIBLE,
        Reason.REJECTED,
        Reason.BLAST_RADIUS,
        Reason.NODE_NOT_EMPTY,
        Reason.UNKNOWN_FINGERPRINT,
        Reason.SICK_TOGETHER,
        Reason.CRASH_LOOP,
        Reason.BACKOFF,
    }
)
"""Holds that a fleet may rest on: each says what is missing."""


HELD_UP = frozenset({Reason.MAX_UNAVAILABLE, Reason.MAX_PARALLEL, Reason.MAX_SURGE, Reason.CANARY})
"""What may wait for ever, but only beside a final hold that keeps something from being ready."""


class Broken(AssertionError):
    """A rule does not hold; the message says which, and how to play it again."""


@dataclass
class Story:
    """One seed. `differ`, `planner` and `bugs` are the seams through which mistakes are planted."""

    seed: int
    bugs: frozenset[str] = frozenset()
    planner: Planner | None = None
    differ: Differ | None = None
    publisher: Publisher | None = None
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        numbers = itertools.count()
        self.ids: Callable[[], str] = lambda: f"s{next(numbers)}"
        first = first_revision(self.rng)
        self.fleet = SimFleet.of(
            first, behave, self.bugs, skews(self.rng, first), links(self.rng, first)
        )
        self.repo = Repo(
            self.rng,
            first,
            lambda name: self.fleet.nodes[name].silent,
            lambda name: self.fleet.nodes[name].reboot(),
            self.log.append,
        )
        self.folders = {"one": Folder(), "two": Folder()}
        self.one = self._reconciler("one")
        self.two: SimReconciler | None = None

    @property
    def desired(self) -> Desired:
        """The head of the branch."""
        return self.repo.desired

    def play(self) -> Story:
        """The whole story. Raises Broken."""
        for _ in range(TROUBLED_PASSES):
            if self.rng.random() < 0.35:
                self.repo.edit()
            if self.rng.random() < 0.35:
                self._trouble()
            self._passes(troubled=True)
            self.fleet.advance(TICK_S)
            self._hold(watching.requests_are_awaited(self.fleet))
        self._quiet()
        return self

    # --- passes --------------------------------------------------------------------------------

    def _reconciler(self, owner: str) -> SimReconciler:
        made = SimReconciler(self.fleet, owner, self.ids, folder=self.folders[owner])
        if self.planner:
            made.planner = self.planner
        if self.differ:
            made.differ = self.differ
        if self.publisher:
            made.publisher = self.publisher
        return made

    def _passes(self, *, troubled: bool) -> Pass | None:
        """One pass, or two that interleave at every step inside the nodes."""
        running = {"one": self.one.run(self.desired)}
        if troubled and self.rng.random() < 0.15:
            self.two = self.two or self._reconciler("two")
            running["two"] = self.two.run(self.desired)
        fate: dict[str, Fate | None] = dict.fromkeys(running)
        last: Pass | None = None
        decided: dict[str, Pass] = {}
        while running:
            who = self.rng.choice(sorted(running))
            try:
                point = running[who].send(fate[who])
            except StopIteration as stop:
                del running[who]
                if who == "one":
                    last = stop.value
                    self.repo.forget_empty(stop.value.observed)
                continue
            fate[who] = None
            if isinstance(point, Pass):
                decided[who] = point
                self._judge(point)
                continue
            self._hold(watching.faults(self.fleet, who, point, self.folders[who], decided.get(who)))
            if troubled:
                fate[who] = self._fate()
                if self.rng.random() < 0.004:
                    self.log.append(f"{who} dies at {point}")
                    running.pop(who).close()
                    self._forget(who)
        return last

    def _fate(self) -> Fate | None:
        dice = self.rng.random()
        if dice < 0.006:
            return Fate.LOSE_REPLY
        if dice < 0.012:
            return Fate.KILL_AGENT
        if dice < 0.014:
            return Fate.REBOOT
        if dice < 0.015:
            return Fate.POWER_CUT
        if dice < 0.017:
            self.fleet.advance(self.rng.choice([1.0, 70.0]))
        return None

    def _forget(self, who: str) -> None:
        """A reconciler died: the next one knows nothing."""
        if who == "one":
            self.one = self._reconciler("one")
        else:
            self.two = None

    # --- what must hold ------------------------------------------------------------------------

    def _judge(self, made: Pass) -> None:
        # Verdicts anew, so that a mistake planted there is not believed.
        true = diff(made.desired, made.observed) if self.differ else made.diff
        found = oracle.faults(made.desired, made.observed, true, made.plan)
        for step in made.plan.steps:
            self.log.append(f"{self.fleet.clock.now:.0f}s {step.kind} {step.launch}")
        self._hold(found)

    def _hold(self, found: Iterable[str]) -> None:
        """Rules hold where nothing is found."""
        said = "; ".join(found)
        if said:
            self._broken(said)

    def _quiet(self) -> None:
        """Faults stop; the fleet has to come to rest on today's profile, or on a hold."""
        self.two = None
        self.fleet.publish("two", ())
        for node in self.fleet.nodes.values():
            node.silent, node.hold = False, None
            node.strangers.clear()
            node.lost_gpus.clear()
            node.lacks.clear()
            for shardlet in node.launches.values():
                shardlet.sick = False
                shardlet.behaviour = replace(shardlet.behaviour, unkillable=False)
        self.repo.calm()
        calm = 0
        last: Pass | None = None
        for _ in range(QUIET_PASSES):
            last = self._passes(troubled=False)
            assert last is not None
            calm = calm + 1 if self._at_rest(last) else 0
            if calm >= CALM:
                self._converged(last)
                return
            self.fleet.advance(TICK_S)
            self._hold(watching.requests_are_awaited(self.fleet))
        assert last is not None
        self._broken(f"no rest after {QUIET_PASSES} quiet passes: {describe(last)}")

    def _at_rest(self, made: Pass) -> bool:
        held = {h.reason for h in made.plan.holds}
        final = FINAL | (HELD_UP if held & FINAL else frozenset())
        waits = any(
            c.waits and c.waits_for not in final and c.waits_for is not None
            for c in made.plan.changes
        )
        busy = any(
            r.verdict in (Verdict.STARTING, Verdict.STOPPING)
            or any(j.verdict is Verdict.STOPPING for j in r.launches)
            for r in made.diff.replicas
        )
        under_way = any(r.current and r.kept and r.current != r.kept for r in made.diff.replicas)
        pausing = {Reason.CRASH_LOOP, Reason.BACKOFF} & held and self._is_good(made)
        led = Reason.LEASE_HELD in held  # What a dead reconciler held expires by itself.
        return not (made.plan.steps or waits or busy or under_way or pausing or led)

    def _is_good(self, made: Pass) -> bool:
        """Nothing that is to run, today's or the last ready where that has no place, is bad by
        intent."""
        running = [r.effective.profile for r in made.diff.replicas if r.effective]
        return self.repo.is_good and not any(BAD & set(p.profile.args) for p in running if p)

    def _all_ready_are_listed(self, made: Pass) -> None:
        published = self.folders["one"].published
        listed = {(e.launch, e.state) for e in published.entries} if published else set()
        for replica in made.diff.replicas:
            for judged in replica.launches:
                view = judged.view
                serves = judged.verdict is Verdict.MATCHING and view.ready
                if serves and (view.launch, State.READY) not in listed:
                    self._broken(f"{view.launch} is ready, and no client is sent to it")

    def _converged(self, made: Pass) -> None:
        self._all_ready_are_listed(made)
        for node in self.fleet.nodes.values():
            for name, shardlet in node.launches.items():
                if shardlet.alive and not shardlet.supervised:
                    self._broken(f"{name} on {node.name} has no supervisor at rest")
        held = {h.subject for h in made.plan.holds if h.reason in FINAL}
        may_wait = HELD_UP | ({Reason.BACKOFF} if not self._is_good(made) else set())
        held |= {f"replica {c.address}" for c in made.plan.changes if c.waits_for in may_wait}
        whole = {h.reason for h in made.plan.holds}
        for replica in made.diff.replicas:
            placement = self.desired.placements.get(replica.placement)
            subject = f"replica {replica.replica}"
            if not replica.wanted:
                # Of a model that has to keep what serves while others of it have no place.
                if Reason.BLAST_RADIUS not in whole and subject not in held:
                    self._broken(f"{replica.replica} is left over: {describe(made)}")
                continue
            if placement is not None and placement.suspend:
                continue
            if subject in held or f"placement {replica.placement}" in held:
                continue
            if replica.verdict is not Verdict.MATCHING or not replica.ready:
                self._broken(f"{replica.replica} is {replica.verdict}: {describe(made)}")

    def _trouble(self) -> None:
        if self.rng.random() < 0.05:
            self._forget("one")
            said = "one is replaced by another that knows nothing"
        else:
            said = trouble(self.rng, self.fleet)
        if said:
            self.log.append(f"{self.fleet.clock.now:.0f}s {said}")

    def _broken(self, what: str) -> None:
        bugs = f" --bugs {','.join(sorted(self.bugs))}" if self.bugs else ""
        raise Broken(
            f"seed {self.seed}: {what}\nplay it again: python -m tests.sim.replay {self.seed}{bugs}"
        )


def describe(made: Pass) -> str:
    """A plan in a few lines, for messages."""
    lines = [
        f"{c.symbol} {c.address} {c.verdict}: {c.reason}; waits: {c.waits}"
        for c in made.plan.changes
    ]
    lines += [f"hold {h.subject} {h.reason}: {h.message}" for h in made.plan.holds]
    lines += [f"step {s.kind} {s.launch}" for s in made.plan.steps]
    lines += [f"{r.replica}: {r.verdict} ({r.reason})" for r in made.diff.replicas]
    return "\n  ".join(["", *lines])
