"""The real `ray start` accepts our command lines, and a head and a worker form one cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from reconciler.core.changes import ShardSpec
from tests.engines import cases
from tests.engines.real.running import Running
from tests.engines.test_golden import FOLDERS, engine_commands

pytestmark = pytest.mark.engine

PARSE = """
import json, sys
from ray.scripts.scripts import start
for argv in json.load(sys.stdin):
    start.make_context("start", argv)
print("parsed")
"""

LOOK = """
import json, ray, sys
ray.init(address=sys.argv[1], _node_ip_address=sys.argv[2], log_to_driver=False)
print(json.dumps(ray.nodes()))
"""

NAMESPACES = ("recray0", "recray1")
NET = "10.77.3."


@pytest.fixture(scope="module")
def ray(installed: Path) -> Path:
    """The folder of Ray's virtual environment."""
    return installed / "ray"


@pytest.fixture
def namespaces() -> Iterator[None]:
    """Two network namespaces joined by a cable; nothing outside can be reached from them."""
    first, second = NAMESPACES
    for name in NAMESPACES:
        ip("netns", "add", name)
    try:
        ip("link", "add", "recveth0", "type", "veth", "peer", "name", "recveth1")
        for number, name in enumerate((first, second)):
            link = f"recveth{number}"
            ip("link", "set", link, "netns", name)
            ip("-n", name, "addr", "add", f"{NET}{number + 1}/24", "dev", link)
            for device in ("lo", link):
                ip("-n", name, "link", "set", device, "up")
        yield
    finally:
        for name in NAMESPACES:
            for pid in pids(name):
                os.kill(pid, signal.SIGKILL)
            ip("netns", "delete", name)


def test_every_golden_is_accepted_by_the_real_parser(ray: Path) -> None:
    found = [
        argv
        for folder in FOLDERS
        for table, argv in engine_commands(folder)
        if "ray start" in table.source
    ]
    assert len(found) >= 8
    said = python(ray, PARSE, stdin=json.dumps(found))
    assert said == "parsed\n"


def test_a_head_and_a_worker_form_one_cluster_of_pinned_gpus_and_ports(
    ray: Path, namespaces: None, tmp_path: Path
) -> None:
    case = cases.make(
        {
            "profile": {"gpus_per_node": 2, "nodes": 2, "parallel": {"pp": 4}, "executor": "ray"},
            "fleet": {"engines": {"vllm": {"path": str(ray)}}},
            "nodes": [{"address": f"{NET}{n + 1}"} for n in range(2)],
        },
        engine="vllm",
    )
    specs = [only_ray(shard) for shard in case.specs()]
    leader = f"{NET}1:{case.ports['ray']}"

    def inside(shard: ShardSpec, argv: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", NAMESPACES[shard.spec["rank"]], *argv]

    with Running(specs, tmp_path, inside) as running:
        nodes = wait_for_nodes(ray, leader, running)
        assert {node["NodeManagerAddress"] for node in nodes} == {f"{NET}1", f"{NET}2"}
        assert [node["Resources"]["GPU"] for node in nodes] == [2.0, 2.0]
        assert {node["NodeManagerPort"] for node in nodes} == {case.ports["ray-node-manager"]}
        block = set(case.ports.values())
        for name in NAMESPACES:
            extra = listening(name) - block
            assert extra == set(), f"{name} listens at {extra} outside the block"
    assert gone_within(30), "something of Ray outlives its `ray start` by half a minute"


def only_ray(shard: ShardSpec) -> ShardSpec:
    """Without the server: this is about Ray alone. GPUs are set as the node would."""
    commands = [c for c in shard.spec["commands"] if c["argv"][1:2] == ["start"]]
    for command in commands:
        command["env"] |= dict.fromkeys(command["gpu_env"], "0,1")
    return ShardSpec(shard.node, {**shard.spec, "commands": commands}, shard.labels)


def wait_for_nodes(ray: Path, leader: str, running: Running) -> list[dict[str, Any]]:
    """Both nodes, as the head shows them."""
    end = time.monotonic() + 120
    nodes: list[dict[str, Any]] = []
    while time.monotonic() < end:
        argv = [str(ray / "bin/python"), "-c", LOOK, leader, f"{NET}1"]
        done = subprocess.run(
            ["ip", "netns", "exec", NAMESPACES[0], *argv], capture_output=True, check=False
        )
        if done.returncode == 0:
            nodes = [n for n in json.loads(done.stdout.splitlines()[-1]) if n["Alive"]]
            if len(nodes) == 2:
                return nodes
        assert running.ended() == [], running.log()
        time.sleep(1)
    raise AssertionError(f"{len(nodes)} nodes joined:\n{running.log()}")


def pids(namespace: str) -> list[int]:
    """Processes in the namespace: all of them were started by this test."""
    argv = ["ip", "netns", "pids", namespace]
    done = subprocess.run(argv, capture_output=True, check=True, text=True)
    return [int(word) for word in done.stdout.split()]


def gone_within(seconds: float) -> bool:
    """Whether both namespaces are empty by then."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(pids(name) for name in NAMESPACES):
            return True
        time.sleep(0.5)
    return False


def listening(namespace: str) -> set[int]:
    """TCP ports that something listens at, other than on 127.0.0.1."""
    done = subprocess.run(
        ["ip", "netns", "exec", namespace, "cat", "/proc/net/tcp", "/proc/net/tcp6"],
        capture_output=True,
        check=True,
        text=True,
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    return {
        int(row[1].split(":")[1], 16)
        for row in rows
        if len(row) > 3 and row[3] == "0A" and not row[1].startswith("0100007F")
    }


def python(ray: Path, code: str, stdin: str) -> str:
    """What the code prints under Ray's Python."""
    argv = [str(ray / "bin/python"), "-c", code]
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def ip(*words: str) -> None:
    """One ip command."""
    subprocess.run(["ip", *words], check=True)
