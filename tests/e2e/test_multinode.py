"""A replica over two nodes is one unit."""

from __future__ import annotations

import os
import signal
from typing import Any

from tests.e2e.world import World, until


def two_nodes(world: World) -> None:
    world.profile("wide", nodes=2, gpus_per_node=4)
    world.placement("wide", profile="wide", replicas=1)
    world.commit()
    world.converge()


def shard_of_rank(entry: dict[str, Any], rank: int) -> dict[str, Any]:
    (shard,) = [s for s in entry["shards"].values() if s["spec"]["rank"] == rank]
    return shard


def test_a_dead_rank_restarts_the_whole_replica(world: World) -> None:
    two_nodes(world)
    ((launch, entry),) = world.living().items()
    assert len(entry["shards"]) == 2
    worker = shard_of_rank(entry, 1)
    for process in worker["status"]["processes"]:
        os.kill(process["pid"], signal.SIGKILL)
    world.converge(90)
    ((again, entry),) = world.living().items()
    assert again != launch
    assert len(entry["shards"]) == 2
    assert again in world.ready()


def test_a_dead_supervisor_costs_nothing_and_is_replaced(world: World) -> None:
    two_nodes(world)
    ((launch, entry),) = world.living().items()
    worker = shard_of_rank(entry, 1)
    engine = {p["pid"] for p in worker["status"]["processes"]}
    supervisor = worker["status"]["supervisor"]["pid"]
    os.kill(supervisor, signal.SIGKILL)
    world.reconcile()

    def adopted() -> bool:
        status = shard_of_rank(world.living()[launch], 1)["status"]
        return status["supervisor"]["pid"] != supervisor

    until("a new supervisor", adopted)
    assert set(world.living()) == {launch}
    assert all(os.path.exists(f"/proc/{pid}") for pid in engine)
    world.converge()
    assert set(world.ready()) == {launch}
    assert world.plan()["changes"] == []


def test_a_node_that_lacks_the_model_keeps_all_ranks_from_starting(world: World) -> None:
    path = world.folder / "weights"
    world.model(path=str(path))
    world.profile("wide", nodes=2, gpus_per_node=4)
    world.placement("wide", profile="wide", replicas=1)
    world.commit()
    ran = world.reconcile("--output", "json")
    assert ran.code == 3, ran
    (hold,) = ran.json()["plan"]["holds"]
    assert hold["reason"] == "PreflightFailed"
    assert f"not started; gpu-a: path {path}: No such file or directory" in hold["message"]
    assert "gpu-b: path" in hold["message"], "all findings at once"
    assert world.launches() == {}, "nothing was begun on any node"
    # Whoever looks later sees why nothing runs, and whoever reviews sees it before.
    (told,) = world.plan()["holds"]
    assert (told["reason"], told["message"]) == (hold["reason"], hold["message"])
    assert hold["message"] in world.reconcile("status").out
    path.write_bytes(b"weights")
    world.converge()
    assert len(world.ready()) == 1
