"""A launch runs in a real container that podman makes on an sshd node, and nothing of it is left.

Run inside `podman-namespace`. The image is made here: a folder with Debian's Python.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.nodes.loopback import LoopbackFleet
from tests.e2e.world import FLEET_ID, World, chat, until
from tests.engines.cases import make

pytestmark = pytest.mark.engine

IMAGE = "localhost/sim:1"


@pytest.fixture(scope="module")
def image(installed: Path) -> str:
    """The image, in the namespace's own storage."""
    argv = ["tar", "-C", str(installed / "image"), "-c", "."]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as tar:
        subprocess.run(["podman", "import", "-", IMAGE], stdin=tar.stdout, check=True)
    assert tar.returncode == 0
    return IMAGE


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """One sshd node."""
    with LoopbackFleet(tmp_path / "nodes", names=("gpu-a",)) as nodes:
        yield World(tmp_path, nodes)


def containers(launch: str) -> list[dict[str, Any]]:
    """What podman itself shows of the launch, running or not."""
    argv = ["podman", "ps", "--all", "--filter", f"label=reconcile.launch={launch}"]
    done = subprocess.run([*argv, "--format", "json"], capture_output=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def inside(launch: str, expression: str) -> str:
    """A Python expression's value inside the container."""
    argv = ["podman", "exec", launch, "python3", "-c", f"print({expression})"]
    return subprocess.run(argv, capture_output=True, check=True, text=True).stdout


def test_podman_takes_the_limits_that_a_profile_needs(image: str) -> None:
    needs = {"nofile": 4321, "memlock": "64"}
    runtime = {"kind": "container", "tool": "podman", "image": image}
    profile = {"needs": needs, "runtime": runtime, "command": ["/bin/true"]}
    (spec,) = make({"profile": profile, "model": {"path": ""}}, engine="command").specs()
    tool, run, *rest = spec.spec["commands"][-1]["argv"]
    # Created and not run: this machine may not raise all the limits that podman sets beside ours.
    subprocess.run([tool, "create", *rest], check=True, capture_output=True)
    done = subprocess.run([tool, "inspect", spec.spec["launch"]], check=True, capture_output=True)
    limits = {u["Name"]: u["Soft"] for u in json.loads(done.stdout)[0]["HostConfig"]["Ulimits"]}
    assert run == "run"
    assert limits["RLIMIT_NOFILE"] == 4321
    assert limits["RLIMIT_MEMLOCK"] == 64 * 1024


def test_a_launch_in_a_container_serves_and_is_stopped_and_removed(
    world: World, image: str
) -> None:
    world.profile(
        "boxed",
        runtime={"kind": "container", "tool": "podman", "image": image},
        env={"X_HOSTILE": 'it\'s $HOME {"a": 1}'},
        stop_grace_s=10,
    )
    world.placement("boxed", profile="boxed", replicas=1)
    world.commit()
    world.converge(90)
    ((launch, url),) = world.ready().items()
    assert chat(url, "tiny")["choices"]
    [container] = containers(launch)
    assert container["Names"] == [launch]
    assert container["Labels"]["reconcile.launch"] == launch
    argv = ["podman", "exec", launch, "python3", "-c", "import os; print(os.environ['X_HOSTILE'])"]
    done = subprocess.run(argv, capture_output=True, check=True, text=True)
    assert done.stdout == 'it\'s $HOME {"a": 1}\n'

    mark = f"RECONCILE_MARK={FLEET_ID}/{launch}/0@"
    assert mark in inside(launch, "open('/proc/1/environ').read()"), (
        "its processes are no strangers"
    )

    world.remove("placements/boxed.yaml")
    world.commit("gone")
    world.reconcile("--wait", "--timeout", "30")
    world.reconcile("approve", "--yes")
    world.converge(60)
    until("the container is removed", lambda: not containers(launch))
    until("no process is left", lambda: not world.nodes.processes("gpu-a"))
