"""No GPU and no port is given twice, and who gets none is told why."""

from __future__ import annotations

from collections import Counter

from tests.e2e.world import World


def taken(world: World) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, int]]]:
    gpus: Counter[tuple[str, str]] = Counter()
    ports: Counter[tuple[str, int]] = Counter()
    for entry in world.living().values():
        for node, shard in entry["shards"].items():
            place = shard["spec"]["places"][shard["spec"]["rank"]]
            gpus.update((node, gpu) for gpu in place["gpus"])
            ports.update((node, port) for port in place["ports"].values())
    return gpus, ports


def test_two_placements_that_want_more_than_there_is_end_in_a_hold_that_counts(
    world: World,
) -> None:
    world.profile("big", gpus_per_node=5)
    world.placement("first", profile="big", replicas=3)
    world.placement("second", profile="big", replicas=2)
    world.commit()
    ran = world.reconcile("--wait", "--timeout", "15")
    assert ran.code == 3, ran
    assert len(world.ready()) == 3
    holds = [h for h in world.plan()["holds"] if h["reason"] == "NoCapacity"]
    assert holds
    assert "3 free" in holds[0]["message"], holds[0]
    gpus, ports = taken(world)
    assert max(gpus.values()) == 1
    assert max(ports.values()) == 1


def test_nothing_is_given_twice_across_a_restart(world: World) -> None:
    world.profile("half", gpus_per_node=4)
    world.placement("first", profile="half", replicas=3)
    world.commit()
    world.converge()
    world.placement("second", profile="half", replicas=3)
    world.commit()
    world.converge()
    gpus, ports = taken(world)
    assert len(gpus) == 24
    assert max(gpus.values()) == 1
    assert max(ports.values()) == 1
    assert len(world.ready()) == 6
