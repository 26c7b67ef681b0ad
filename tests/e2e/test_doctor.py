"""`doctor` before the first rollout and on a fleet that runs."""

from __future__ import annotations

from typing import Any

from tests.e2e.world import World


def doctor(world: World, code: int) -> Any:
    return world.reconcile("doctor", "--output", "json", code=code).json()


def fits(told: Any, placement: str) -> dict[str, tuple[bool, str]]:
    """Node → whether it could start it, and why not."""
    return {
        fit["node"]: (fit["could_start"], "; ".join(fit["findings"]) or fit["why"])
        for fit in told["placements"][placement]["nodes"]
    }


YES = (True, "")


def test_before_the_first_rollout_every_node_is_asked_for_every_placement(world: World) -> None:
    world.profile("wide", nodes=2, gpus_per_node=4)
    world.placement("wide", profile="wide", replicas=1)
    world.placement("chat", replicas=1)
    world.commit()
    told = doctor(world, 0)
    assert fits(told, "chat") == {"gpu-a": YES, "gpu-b": YES, "gpu-c": YES}
    assert fits(told, "wide") == {"gpu-a": YES, "gpu-b": YES, "gpu-c": YES}
    node = told["nodes"]["gpu-a"]
    assert node["python"].count(".") == 2
    assert all(node[name] for name in ("os", "user", "memlock", "nofile", "disk_free_mib"))
    assert abs(node["clock_offset_s"]) < 30
    assert world.launches() == {}, "nothing is started"


def test_on_a_running_fleet_what_runs_is_no_obstacle_to_itself(world: World) -> None:
    world.profile(gpus_per_node=8)
    world.placement("chat", replicas="per-node")
    world.profile("wide", nodes=2, gpus_per_node=4)
    world.commit()
    world.converge()
    world.placement("wide", profile="wide", replicas=1)
    world.commit()
    told = doctor(world, 3)
    assert fits(told, "chat") == {"gpu-a": YES, "gpu-b": YES, "gpu-c": YES}
    runs = {f["node"]: f["runs"] for f in told["placements"]["chat"]["nodes"]}
    assert sorted(name for names in runs.values() for name in names) == sorted(world.living())
    # All GPUs are the other placement's: no node refuses for good, but there is no place for it.
    assert {why for _, why in fits(told, "wide").values()} == {"has 0 free GPUs of 8"}
    (homeless,) = told["placements"]["wide"]["findings"]
    assert homeless.startswith("0 of 3 nodes fit: 3 have 0 free GPUs of 8")


def test_it_asks_beside_a_daemon_and_on_a_held_node(world: World) -> None:
    world.placement("chat", replicas=1)
    world.commit()
    world.converge()
    world.reconcile("hold", "gpu-a", "--reason", "a fan", code=0)
    with world.daemon():
        told = doctor(world, 3)
    answers = fits(told, "chat")
    assert (answers["gpu-b"], answers["gpu-c"]) == (YES, YES)
    assert "a fan" in answers["gpu-a"][1]
    assert told["nodes"]["gpu-a"]["findings"], "a hold is told with the node"


def test_the_table_names_what_to_mend_on_which_node(world: World) -> None:
    path = world.folder / "weights"
    world.model(path=str(path))
    world.placement("chat", replicas=1)
    world.commit()
    world.nodes.stop("gpu-c")
    ran = world.reconcile("doctor", code=3)
    assert f"chat on gpu-a: path {path}: No such file or directory" in ran.out
    lines = [line.split() for line in ran.out.splitlines()]
    assert ["chat", "gpu-c", "-", "not", "now:", "unreachable"] in lines
    assert ["gpu-c", "NodeUnreachable", *["-"] * 8, "1"] in lines
