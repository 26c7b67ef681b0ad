"""Published endpoints over real nodes: what leaves, what stays, and in which order."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_nginx import Clients
from tests.e2e.world import World, until


class Published:
    """The folder as a balancer reads it."""

    def __init__(self, world: World) -> None:
        self.folder = world.folder / "published"
        self.options = ("--endpoints", str(self.folder))

    def entries(self, name: str = "tiny") -> dict[str, dict[str, Any]]:
        """By launch."""
        path = self.folder / "endpoints.json"
        data = json.loads(path.read_text()) if path.exists() else {"models": {}}
        return {e["launch"]: e for e in data["models"].get(name, [])}

    def states(self) -> list[str]:
        return sorted(e["state"] for e in self.entries().values())


def one_per_node(world: World, **profile: Any) -> Published:
    """Three replicas, published."""
    published = Published(world)
    world.fleet(observe_timeout_s=4)
    world.profile(**profile)
    world.placement(replicas="per-node", weight=70)
    world.commit()
    world.reconcile("--wait", "--timeout", "60", *published.options, timeout_s=90, code=0)
    assert published.states() == ["ready"] * 3
    return published


def engine_pid(world: World, launch: str) -> int:
    ((_, shard),) = world.launches()[launch]["shards"].items()
    return int(next(p["pid"] for p in shard["status"]["processes"] if p["name"] == "serve"))


def test_what_is_published_answers_at_its_url_under_its_name(world: World) -> None:
    published = one_per_node(world)
    urls = set(world.ready().values())
    assert {e["url"] for e in published.entries().values()} == urls
    assert {e["weight"] for e in published.entries().values()} == {70}
    for entry in published.entries().values():
        assert Clients(f"{entry['url']}/v1/chat/completions").one() == ""
    targets = json.loads((published.folder / "prometheus-sd.json").read_text())
    assert {f"http://{t}" for g in targets for t in g["targets"]} == urls


def test_with_every_sshd_down_nothing_leaves_and_nothing_is_forgotten(world: World) -> None:
    published = one_per_node(world)
    before = published.entries()
    for node in world.nodes.nodes:
        world.nodes.stop(node)
    ran = world.reconcile(*published.options)
    assert ran.code == 3, ran
    assert published.states() == ["unreachable"] * 3
    assert published.entries().keys() == before.keys()
    assert {e["why"] for e in published.entries().values()} == {"NodeUnreachable"}
    text = (published.folder / "endpoints.json").read_text()
    world.forget()
    world.reconcile(*published.options)
    assert (published.folder / "endpoints.json").read_text() == text, "the memory is the file"
    for node in world.nodes.nodes:
        world.nodes.start(node)
    world.reconcile(*published.options)
    assert published.entries() == before


def test_a_lost_folder_is_made_again_from_what_is_seen(world: World) -> None:
    published = one_per_node(world)
    before = published.entries()
    for file in published.folder.iterdir():
        file.unlink()
    world.reconcile(*published.options)
    assert published.entries() == before


def test_an_engine_that_is_killed_leaves_and_its_successor_enters(world: World) -> None:
    published = one_per_node(world)
    victim = sorted(published.entries())[0]
    with world.daemon(*published.options):
        os.kill(engine_pid(world, victim), signal.SIGKILL)
        until("it has left", lambda: victim not in published.entries())
        until("three again", lambda: published.states() == ["ready"] * 3, timeout_s=60)
    assert victim not in published.entries()


def test_an_engine_that_refuses_its_health_leaves_while_it_lives(world: World) -> None:
    published = Published(world)
    world.fleet(unhealthy="report")
    world.profile(args=("--unhealthy-after", "8"))
    world.placement()
    world.commit()
    with world.daemon(*published.options):
        until("published", lambda: published.states() == ["ready"])
        until("it has left", lambda: published.entries() == {})
    assert len(world.living()) == 1


class Streaming(threading.Thread):
    """One long streamed answer."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.clients = Clients(f"{url}/v1/chat/completions")
        self.failure = "not ended"

    def run(self) -> None:
        self.failure = self.clients.one()


def in_flight(world: World, url: str) -> bool:
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    running = [line for line in lines if line.startswith("vllm:num_requests_running")]
    return any(line.endswith(" 1.0") for line in running)


def test_a_streamed_request_in_flight_at_a_voluntary_stop_is_finished(world: World) -> None:
    published = one_per_node(world, args=("--token-time", "0.5"), drain_s=30, stop_grace_s=1)
    victim, entry = sorted(published.entries().items())[0]
    stream = Streaming(entry["url"])
    stream.start()
    until("it streams", lambda: in_flight(world, entry["url"]))
    world.fleet(guard={"max_removed": "100%"})
    world.placement(replicas="per-node", suspend=True)
    world.commit("not for now")
    ran = world.reconcile(*published.options)
    assert published.entries() == {}, ran
    assert stream.is_alive(), "the entry has left only after its requests"
    stream.join(30)
    assert stream.failure == ""
    until("it has stopped", lambda: victim not in world.living())


def test_the_environment_says_where_and_what_to_run(world: World, tmp_path: Path) -> None:
    log = tmp_path / "hook-ran"
    world.env["RECONCILE_ENDPOINTS_DIR"] = str(tmp_path / "from-env")
    world.env["RECONCILE_ENDPOINTS_HOOK"] = f"cp endpoints.json '{log}'"
    world.placement()
    world.commit()
    world.converge()
    assert json.loads(log.read_text())["models"]["tiny"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--endpoints-hook", "true"), "give --endpoints DIR"),
        (("--endpoints", "x", "--endpoints-hook", "/no/such/hook"), "no program"),
        (("--endpoints", "x", "--endpoints-hook", "'open"), "close the quote"),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_is_done(
    world: World, options: tuple[str, ...], says: str
) -> None:
    world.placement()
    world.commit()
    ran = world.reconcile(*options)
    assert ran.code == 1
    assert says in ran.err
    assert world.launches() == {}


def test_a_daemon_that_ends_during_a_rollout_leaves_no_ready_replica_without_requests(
    world: World,
) -> None:
    published = one_per_node(world)
    world.profile(args=("--context", "512"))
    world.commit("a longer context")
    with world.daemon(*published.options):
        until("the rollout is under way", lambda: len(world.living()) > 3 or _stopping(world))
    time.sleep(0.2)
    living = {
        launch
        for launch in world.ready()
        for s in world.living()[launch]["shards"].values()
        if not (s["folder"] / "intent.json").exists() and s["status"]["ever_ready"]
    }
    old = {launch for launch in living if launch in published.entries()}
    missing = living - old
    specs = world.launches()
    assert not [
        launch
        for launch in missing
        if "512" not in json.dumps(next(iter(specs[launch]["shards"].values()))["spec"])
    ], "an old replica that nobody stopped has left the endpoints"


def _stopping(world: World) -> bool:
    return any(
        (shard["folder"] / "intent.json").exists()
        for entry in world.launches().values()
        for shard in entry["shards"].values()
    )
