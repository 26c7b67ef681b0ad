"""Replacing what is ready costs no more than the limits allow, watched from outside."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e.world import World, healthy, until


class Watch:
    """Counts, every 50 ms, how many of the placement's endpoints answer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.counts: list[int] = []
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.05):
            replicas = {
                self.world.launches().get(launch, {}).get("replica")
                for launch, url in self.world.urls().items()
                if healthy(url)
            }
            self.counts.append(len(replicas - {None}))


@contextmanager
def watched(world: World) -> Iterator[Watch]:
    watch = Watch(world)
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        yield watch
    finally:
        watch.done.set()
        thread.join(10)


def fingerprints(world: World) -> set[str]:
    return {
        shard["spec"]["fingerprint"]
        for launch, entry in world.living().items()
        if launch in world.ready()
        for shard in entry["shards"].values()
    }


def test_a_rolling_replacement_of_four_never_has_fewer_than_three_ready(world: World) -> None:
    world.placement(replicas=4)
    world.commit()
    world.converge()
    old = set(world.living())
    with watched(world) as watch:
        world.profile(args=("--context", "512"))
        world.commit("a longer context")
        world.converge(120)
    assert len(world.ready()) == 4
    assert not old & set(world.living())
    assert len(fingerprints(world)) == 1
    assert len(watch.counts) > 10, "nothing was watched"
    assert min(watch.counts) >= 3, watch.counts


def test_without_free_gpus_it_stops_first_and_still_keeps_three(world: World) -> None:
    world.profile(gpus_per_node=6)
    world.placement(replicas=3)
    world.commit()
    world.converge()
    world.profile(gpus_per_node=6, args=("--context", "512"))
    world.commit()
    plan = world.plan()
    assert {c["symbol"] for c in plan["changes"]} == {"-/+"}
    with watched(world) as watch:
        world.converge(120)
    assert min(watch.counts) >= 2, watch.counts
    assert len(world.ready()) == 3


def test_a_wrong_profile_costs_one_replica_and_its_fix_is_applied_at_once(world: World) -> None:
    world.placement(replicas=4)
    world.commit()
    world.converge()
    with watched(world) as watch, world.daemon():
        world.profile(args=("--never-ready",), start_timeout_s=3600)
        world.commit("wrong")
        wrong = until(
            "the canary", lambda: len(world.living()) == 5 and world.living(), timeout_s=30
        )
        until("5 s later", waited(5.0), timeout_s=10)
        assert len(world.living()) == 5, "more than one replica got the wrong profile"
        world.profile(args=("--context", "512"))
        world.commit("fixed")
        started = time.monotonic()
        until(
            "all four fixed",
            lambda: (
                len(world.ready()) == 4
                and len(world.living()) == 4
                and not set(wrong) & set(world.living())
            ),
            timeout_s=90,
        )
        assert time.monotonic() - started < 90
    assert min(watch.counts) >= 3, watch.counts
    specs = [s["spec"] for e in world.living().values() for s in e["shards"].values()]
    assert all("512" in json.dumps(spec["commands"]) for spec in specs)


def waited(seconds: float):  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def test_a_profile_that_fails_by_its_own_command_is_rejected_and_the_old_one_lives(
    world: World,
) -> None:
    world.placement(replicas=2)
    world.commit()
    world.converge()
    world.profile(args=("--no-such-flag",))
    world.commit("wrong flag")
    world.reconcile("--wait", "--timeout", "20", timeout_s=60)
    until("two ready", lambda: len(world.ready()) == 2)
    plan = world.plan()
    assert any(hold["reason"] == "ProfileRejected" for hold in plan["holds"]), plan["holds"]
    failed = [e for launch, e in world.launches().items() if launch not in world.living()]
    assert 1 <= len(failed) <= 3
