"""From an empty fleet to servers that answer, and back to nothing to do."""

from __future__ import annotations

import json
import os
import urllib.request

from tests.e2e.world import World, chat, until


def test_a_fleet_converges_from_empty_and_the_second_pass_plans_nothing(world: World) -> None:
    world.placement(replicas=4)
    world.commit()

    plan = world.plan()
    assert [c["symbol"] for c in plan["changes"]] == ["+"] * 4
    assert not world.launches(), "a dry run touched the nodes"

    world.converge()
    ready = world.ready()
    assert len(ready) == 4
    url = next(iter(ready.values()))
    answer = chat(url, "tiny")
    assert answer["choices"][0]["message"]["content"]

    before = world.launches().keys()
    second = world.reconcile(code=0)
    assert "nothing to do" in second.out
    assert world.launches().keys() == before
    assert world.reconcile("--dry-run", "--detailed-exitcode").code == 0


def test_a_dry_run_says_with_exit_code_2_that_there_is_something_to_do(world: World) -> None:
    world.placement()
    world.commit()
    assert world.reconcile("--dry-run", "--detailed-exitcode").code == 2
    assert world.reconcile("--dry-run").code == 0


def test_offline_dry_run_needs_no_node(world: World) -> None:
    world.placement(replicas=2)
    world.commit()
    for name in world.nodes.nodes:
        world.nodes.stop(name)
    plan = world.plan("--offline")
    assert len([c for c in plan["changes"] if c["symbol"] == "+"]) == 2


def test_an_observation_can_be_saved_and_planned_from(world: World) -> None:
    world.placement(replicas=2)
    world.commit()
    world.converge()
    saved = world.folder / "observed.json"
    saved.write_text(world.reconcile("observe", code=0).out)
    for name in world.nodes.nodes:
        world.nodes.stop(name)
    plan = world.plan("--observed", str(saved))
    assert plan["changes"] == []
    assert plan["summary"]["unchanged"] == 2


def test_acting_takes_a_commit_and_says_what_it_leaves_out(world: World) -> None:
    world.placement()
    world.commit()
    world.placement(replicas=2)
    ran = world.reconcile(code=0)
    assert "not committed" in ran.err + ran.out
    assert {e["replica"] for e in world.launches().values()} == {"chat-0"}
    world.reconcile("--allow-dirty", code=0)
    until("two launches", lambda: len(world.launches()) == 2)
    (labels,) = {
        json.loads((s["folder"] / "labels.json").read_text())["revision"]
        for e in world.launches().values()
        if e["replica"] == "chat-1"
        for s in e["shards"].values()
    }
    assert "uncommitted" in labels or "dirty" in labels, labels


def test_a_plan_that_was_reviewed_is_refused_when_the_world_has_moved(world: World) -> None:
    world.placement()
    world.commit()
    digest = world.plan()["plan_digest"]
    world.placement(replicas=2)
    world.commit()
    assert world.reconcile("--expect", digest).code == 5
    assert not world.launches()
    world.reconcile("--expect", world.plan()["plan_digest"], code=0)


def test_status_names_placements_endpoints_and_revision(world: World) -> None:
    world.placement(replicas=2)
    commit = world.commit()
    world.converge()
    text = world.reconcile("status", code=0).out
    assert "chat" in text
    assert "Healthy" in text
    assert commit[:10] in text
    status = world.reconcile("status", "--output", "json", code=0).json()
    assert json.dumps(status).count("127.") >= 2


def test_logs_of_a_replica_come_over_ssh(world: World) -> None:
    world.placement()
    world.commit()
    world.converge()
    (url,) = world.ready().values()
    with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
        assert b"tiny" in answer.read()
    log = world.reconcile("logs", "chat-0", code=0).out
    assert log.strip(), "the log is empty"


def test_the_repository_can_be_a_url_and_any_ref(world: World) -> None:
    world.placement(replicas=1)
    first = world.commit("one")
    world.placement(replicas=3)
    world.commit("three")
    url = f"file://{world.repo}"
    plan = world.plan("--repo", url, "--ref", first)
    assert len(plan["changes"]) == 1
    plan = world.plan("--repo", url, "--ref", "main")
    assert len(plan["changes"]) == 3


def test_nothing_of_the_operators_secrets_reaches_the_engine(world: World) -> None:
    world.env["RECONCILE_TEST_CANARY"] = "canary-0f3a"
    world.placement()
    world.commit()
    world.converge()
    for name in world.nodes.nodes:
        for pid in world.nodes.processes(name):
            environment = os.path.join("/proc", str(pid), "environ")
            with open(environment, "rb") as file:
                assert b"canary-0f3a" not in file.read()
