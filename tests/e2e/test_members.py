"""Roles of one service on real nodes: each its own profile, and a router that is told of the rest.

The router is a plain web server over the folder of its launch, so a client reads the members file
as the router does.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any

from tests.e2e.world import World, until

ROUTER = "router"


def service(world: World) -> None:
    """Two prefill replicas, one decode with a profile of its own, and the router."""
    world.profile("prefill", args=("--context", "2048"), ports=["side-channel"])
    world.profile("decode", gpus_per_node=2)
    world.model("router")
    serve = ["-m", "http.server", "$(port.http)", "--bind", "$(node.address)"]
    world.profile(
        ROUTER,
        model="router",
        engine="command",
        command=[sys.executable, *serve, "--directory", "$(launch.dir)/files"],
        gpus_per_node=0,
        health={"path": "/members.json"},
    )
    world.placement("prefill", profile="prefill", replicas=2)
    world.placement("decode", profile="decode", replicas=1)
    world.placement(ROUTER, profile=ROUTER, replicas=1, members=["prefill", "decode"])


def router(world: World) -> str:
    (launch,) = (n for n, entry in world.living().items() if entry["replica"] == "router-0")
    return launch


def told(world: World) -> dict[str, list[dict[str, Any]]]:
    """What the router reads now."""
    with urllib.request.urlopen(world.urls()[router(world)] + "/members.json", timeout=5) as answer:
        members: dict[str, list[dict[str, Any]]] = json.load(answer)["members"]
    return members


def served(world: World) -> set[str]:
    """URLs of all that is ready but the router."""
    ready = world.ready()
    return {url for launch, url in ready.items() if not launch.startswith("router")}


def urls(world: World) -> set[str]:
    return {e["url"] for entries in told(world).values() for e in entries}


def test_a_router_is_told_of_every_move_and_never_restarts(world: World) -> None:
    service(world)
    world.commit()
    world.converge()
    first = router(world)
    assert {name: len(found) for name, found in told(world).items()} == {"prefill": 2, "decode": 1}
    assert urls(world) == served(world)
    for entry in told(world)["prefill"]:
        assert set(entry["ports"]) >= {"http", "side-channel"}

    world.placement("prefill", profile="prefill", replicas=3)
    world.placement("decode", profile="decode", replicas=1, restart="a ticket")
    world.commit()
    before = urls(world)
    world.converge()
    assert urls(world) == served(world)
    assert len(told(world)["prefill"]) == 3
    assert urls(world) != before
    assert router(world) == first, "the router lives on through every move of its members"
    assert world.plan()["changes"] == []


def test_what_is_stopped_has_left_the_file_when_its_stop_is_asked(world: World) -> None:
    service(world)
    world.commit()
    world.converge()
    world.placement("prefill", profile="prefill", replicas=1)
    world.commit()
    world.reconcile("--yes")
    assert len(told(world)["prefill"]) == 1
    until("the surplus one is gone", lambda: len(served(world)) == 2)
    assert urls(world) == served(world)


def test_a_silent_node_costs_no_member(world: World) -> None:
    service(world)
    world.fleet(observe_timeout_s=4)
    world.commit()
    world.converge()
    before = urls(world)
    home = next(iter(world.living()[router(world)]["shards"]))
    gone = next(name for name in sorted(world.nodes.nodes) if name != home)
    world.nodes.stop(gone)
    world.forget()
    world.reconcile("--yes")
    assert urls(world) == before
    states = {e["node"]: e["state"] for entries in told(world).values() for e in entries}
    if gone in states:
        assert states[gone] == "unreachable"
