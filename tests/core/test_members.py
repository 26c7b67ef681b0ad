"""A router's members file: right in the same pass, kept on evidence, and no change of the plan."""

from __future__ import annotations

import json
from typing import Any

from reconciler.core.changes import Plan, RelabelStep, StartStep
from reconciler.core.describe import describe
from reconciler.core.memberfile import MEMBERS_FILE, read, render
from tests.core.ask_plan import planned, stopped
from tests.core.build_world import World


def service(*, router: str = "ready") -> World:
    """Two prefill replicas, one decode, and a router on a node of its own."""
    world = (
        World()
        .with_nodes("gpu-a", "gpu-b", "gpu-c", gpus=2)
        .profile("llama", gpus_per_node=1)
        .profile("router", engine="command", command=("/opt/router",), gpus_per_node=0)
        .placement("prefill", "llama", replicas=2)
        .placement("decode", "llama", replicas=1)
        .placement("router", "router", replicas=1, members=("prefill", "decode"))
        .launch("prefill-0", on="gpu-a")
        .launch("prefill-1", on="gpu-b")
        .launch("decode-0", on="gpu-b")
    )
    return world.launch("router-0", on="gpu-c", state=router) if router else world


def relabels(made: Plan) -> list[RelabelStep]:
    return [s for s in made.steps if isinstance(s, RelabelStep)]


def told(made: Plan) -> dict[str, list[str]]:
    """Placement → launches, as the one step of the plan writes it."""
    (step,) = relabels(made)
    assert step.launch == "router-0-s1"
    return listed(step.labels.files[MEMBERS_FILE])


def listed(text: str) -> dict[str, list[str]]:
    members: dict[str, list[dict[str, Any]]] = json.loads(text)["members"]
    return {name: [e["launch"] for e in entries] for name, entries in members.items()}


def after(world: World) -> World:
    """The world once the plan's relabel was carried out."""
    (step,) = relabels(planned(world))
    return world.change_launch("router-0-s1", labels=step.labels)


ALL = {"decode": ["decode-0-s1"], "prefill": ["prefill-0-s1", "prefill-1-s1"]}


def test_a_router_is_told_of_all_members_that_are_ready() -> None:
    assert told(planned(service())) == ALL


def test_keeping_the_file_is_a_repair_and_no_change() -> None:
    world = service()
    made = planned(world)
    assert made.changes == ()
    assert made.repairs == tuple(relabels(made))
    assert made.plan_digest == planned(after(world)).plan_digest


def test_what_is_told_already_is_not_told_again() -> None:
    assert planned(after(service())).steps == ()


def test_a_member_that_this_pass_stops_leaves_the_file_in_this_pass() -> None:
    world = after(service()).edit_placement("prefill", replicas=1)
    made = planned(world)
    assert stopped(made) == ["prefill-1-s1"]
    assert told(made)["prefill"] == ["prefill-0-s1"]


def test_a_member_that_is_not_ready_is_no_member_yet() -> None:
    world = after(service()).forget_launch("decode-0-s1")
    world = world.launch("decode-0", on="gpu-a", state="starting", seq=2)
    assert told(planned(world))["decode"] == []


def test_a_member_out_of_sight_stays_by_what_the_file_itself_remembers() -> None:
    made = planned(after(service()).silent("gpu-b"))
    assert told(made) == ALL
    (step,) = relabels(made)
    entries = json.loads(step.labels.files[MEMBERS_FILE])["members"]
    assert [e["state"] for e in entries["prefill"]] == ["ready", "unreachable"]


def test_a_router_that_starts_gets_the_members_with_its_start() -> None:
    made = planned(service(router=""))
    (start,) = (s for s in made.steps if isinstance(s, StartStep))
    (shard,) = start.shards
    assert listed(shard.labels.files[MEMBERS_FILE]) == ALL
    (file,) = shard.spec["files"]
    assert listed(file["content"]) == {"decode": [], "prefill": []}, "the same start, the same spec"


def test_a_router_that_is_relabelled_keeps_its_members() -> None:
    world = after(service()).edit_placement("router", labels={"team": "search"})
    (step,) = relabels(planned(world))
    assert step.labels.labels == {"team": "search"}
    assert listed(step.labels.files[MEMBERS_FILE]) == ALL


def test_an_edit_of_members_restarts_nothing() -> None:
    world = after(service()).edit_placement("router", members=("decode",))
    made = planned(world)
    assert made.changes == ()
    assert told(made) == {"decode": ["decode-0-s1"]}


def test_a_fleet_without_routers_has_no_such_steps() -> None:
    world = service()
    world = world.edit_placement("router", members=())
    assert planned(world).steps == ()


def test_the_command_shows_the_file() -> None:
    (rank,) = describe(service().desired, "router").ranks
    assert [file.path for file in rank.files] == [MEMBERS_FILE]


def test_a_file_reads_back_as_what_it_said_and_a_damaged_one_as_nothing() -> None:
    made = planned(service())
    (step,) = relabels(made)
    text = step.labels.files[MEMBERS_FILE]
    found = list(read(text))
    ports = {
        (e["launch"], e["rank"]): e["ports"]
        for entries in json.loads(text)["members"].values()
        for e in entries
    }
    assert render(("prefill", "decode"), found, ports) == text
    for damaged in ("", "[]", "{}", '{"members": {"a": [{}]}}', text[:-9]):
        assert list(read(damaged)) == []
