"""A fleet in memory and one reconciler, in a few words: for stories that are told step by step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from reconciler.core.model import Desired
from reconciler.simulate.engine import of_sim_engine
from reconciler.simulate.fleet import Point, SimFleet
from reconciler.simulate.reconciler import Pass, SimReconciler
from tests.core.build_world import World
from tests.sim import oracle

LIMIT = 400


class Play:
    """`world` says what is wanted; nothing of it runs yet. Every plan is held to the oracle."""

    def __init__(self, world: World) -> None:
        self.numbers = itertools.count()
        self.world = world
        self.fleet = SimFleet.of(world.desired, of_sim_engine)
        self.reconciler = self.anew("one")
        self.watch: Callable[[], None] = lambda: None

    @property
    def desired(self) -> Desired:
        return self.world.desired

    def anew(self, owner: str = "one") -> SimReconciler:
        """A reconciler that remembers nothing."""
        return SimReconciler(self.fleet, owner, lambda: f"s{next(self.numbers)}")

    def one_pass(self, *, acts: int = LIMIT, by: SimReconciler | None = None) -> Pass:
        """One pass; it is killed before its acting request number `acts`."""
        running = (by or self.reconciler).run(self.desired)
        made: Pass | None = None
        asked: set[int] = set()
        try:
            while True:
                point = next(running)
                if isinstance(point, Pass):
                    made = point
                    found = oracle.faults(made.desired, made.observed, made.diff, made.plan)
                    assert found == []
                elif _begins(point):
                    asked.add(len(asked))
                    if len(asked) > acts:
                        running.close()
                        break
                self.watch()
        except StopIteration as stop:
            made = stop.value
        assert made is not None
        return made

    def rest(self, *, tick_s: float = 5.0, forget: bool = False) -> Pass:
        """Passes until three in a row have nothing to do and everything wanted is ready."""
        calm = 0
        for _ in range(LIMIT):
            if forget:
                self.reconciler = self.anew()
            made = self.one_pass()
            quiet = not made.plan.changes and all(r.ready for r in made.diff.replicas if r.wanted)
            calm = calm + 1 if quiet else 0
            if calm == 3:
                return made
            self.pass_time(tick_s)
        raise AssertionError(f"no rest after {LIMIT} passes: {made.plan.changes} {made.plan.holds}")

    def pass_time(self, seconds: float) -> None:
        """Second by second, so that `watch` misses nothing."""
        for _ in range(int(seconds)):
            self.fleet.advance(1.0)
            self.watch()

    def edit(self, **over: Any) -> None:
        """Change the profile `llama`."""
        self.world = self.world.edit("llama", **over)

    def ready(self, placement: str = "chat") -> int:
        """Replicas of a placement that answer their health path now, in truth."""
        return len(
            {
                shard.labels.replica
                for node in self.fleet.nodes.values()
                for shard in node.launches.values()
                if shard.labels.placement == placement
                and shard.ready_since is not None
                and self.fleet.whole(shard.spec["launch"])
            }
        )

    def running(self) -> set[str]:
        """Launches of which something lives."""
        return {
            n for node in self.fleet.nodes.values() for n, s in node.launches.items() if s.alive
        }


def _begins(point: Point) -> bool:
    """The first step of an acting request."""
    return point.step == "locked" and point.op != "lease"


@dataclass
class Lowest:
    """Watches the lowest number of ready replicas."""

    play: Play
    value: int = 99

    def __call__(self) -> None:
        self.value = min(self.value, self.play.ready())


def quick(world: World, **over: Any) -> World:
    """Loads in 20 s, gives up after 120 s."""
    args = ("--load-time", "20")
    changed = {"args": args, "start_timeout_s": 120, "stop_grace_s": 5, **over}
    return replace(world).edit("llama", **changed)
