"""The reconciler dies, the world changes, it comes back: it must know by what the nodes say."""

from __future__ import annotations

import json
import os
import signal

from tests.e2e.world import World, until


def all_ready(world: World, count: int) -> bool:
    return len(world.ready()) == count


def test_replicas_read_stale_with_the_field_after_a_restart_across_an_edit(world: World) -> None:
    world.placement(replicas=2)
    world.commit()
    with world.daemon() as daemon:
        until("2 ready", lambda: all_ready(world, 2))
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(5)
    started = set(world.living())

    world.profile(args=("--context", "512"))
    world.commit("a longer context")
    plan = world.plan()
    assert {c["verdict"] for c in plan["changes"]} == {"stale"}
    assert all(
        any(path.startswith("profile.args") for path in c["changed_paths"]) for c in plan["changes"]
    )
    assert set(world.living()) == started

    with world.daemon():
        until(
            "both replaced",
            lambda: all_ready(world, 2) and not started & set(world.ready()),
            timeout_s=60,
        )


def test_a_record_without_fingerprint_is_left_alone_also_when_it_is_unhealthy(world: World) -> None:
    world.profile(args=("--unhealthy-after", "4"))
    world.placement(replicas=1)
    world.commit()
    world.converge()
    ((launch, entry),) = world.living().items()
    (shard,) = entry["shards"].values()
    spec = json.loads((shard["folder"] / "spec.json").read_text())
    spec["fingerprint"] = ""
    (shard["folder"] / "spec.json").write_text(json.dumps(spec))
    url = world.urls()[launch]

    plan = world.plan()
    (change,) = [c for c in plan["changes"] if c["address"] == "chat-0"]
    assert change["symbol"] == "?"
    assert change["verdict"] == "unknown"

    until("it is unhealthy", lambda: not world.ready(), timeout_s=15)
    pids = {p["pid"] for p in shard["status"]["processes"]}
    for _ in range(3):
        world.reconcile()
    assert set(world.living()) == {launch}
    assert all(os.path.exists(f"/proc/{pid}") for pid in pids), f"{url} was stopped"


def test_a_restart_over_a_bad_head_names_it_and_repairs_by_the_revision_in_force(
    world: World,
) -> None:
    world.placement(replicas=2)
    world.commit("good")
    with world.daemon() as daemon:
        until("2 ready", lambda: all_ready(world, 2))
        until("in force", lambda: world.commit_in_force() is not None)
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(5)

    world.write(
        "placements/chat.yaml",
        "kind: Placement\nname: chat\nprofile: tiny\npool: sim\nreplicas: two\n",
    )
    bad = world.commit("bad")
    victim, entry = next(iter(world.living().items()))
    (shard,) = entry["shards"].values()
    for process in shard["status"]["processes"]:
        os.kill(process["pid"], signal.SIGKILL)

    with world.daemon():
        until(
            "the killed engine is repaired",
            lambda: all_ready(world, 2) and victim not in world.ready(),
            timeout_s=60,
        )
        log = until("the finding", lambda: world.daemon_log if bad[:10] in world.daemon_log else "")
        assert "placements/chat.yaml" in log
        assert "5" in log


def test_replicas_outlive_the_ssh_session_and_the_reconciler(world: World) -> None:
    world.placement(replicas=3)
    world.commit()
    with world.daemon() as daemon:
        until("3 ready", lambda: all_ready(world, 3))
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(5)
    before = set(world.ready())
    for name in world.nodes.nodes:
        world.nodes.restart(name)
    assert set(world.ready()) == before
    assert world.plan()["changes"] == []


def test_the_daemon_follows_new_commits_and_ends_on_sigterm(world: World) -> None:
    world.placement(replicas=1)
    world.commit()
    with world.daemon() as daemon:
        until("1 ready", lambda: all_ready(world, 1))
        world.placement(replicas=3)
        world.commit("more")
        until("3 ready", lambda: all_ready(world, 3))
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(10) == 0
    assert all_ready(world, 3), "ending the daemon ended replicas"
