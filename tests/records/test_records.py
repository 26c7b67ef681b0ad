"""Records of each released format, as they were written then, read by today's code.

`1.0/` holds launches in plain and system mode, in a container, and over two nodes, with the fleet
repo that they were started from. A release that writes another format adds a folder; these stay.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from reconciler.agent.node import boottime
from reconciler.core.codec import from_json
from reconciler.core.diff import diff
from reconciler.core.model import Desired
from reconciler.core.observed import NodeAnswer, NodeLook, Observed
from reconciler.core.plan import plan
from reconciler.core.verdict import Verdict
from reconciler.fleet.source import Source
from tests.agent.harness import FLEET, OWNER, Json, Node, gone, poll

HERE = Path(__file__).parent
FORMATS = ("1.0",)
EDITS = (
    ("4096", "8192"),
    (":v0.17.0", ":v0.18.0"),
    ("{tp: 4, pp: 2}", "{tp: 4, pp: 2}\nenv: {A: b}"),
)
KEPT_FLEET = "5f3c2c6e-0d5b-4c39-9d5e-0f4f7a3f2b11"

Change = Callable[[Json], None]


class Kept:
    """Nodes that hold the kept launches, alive: each with a process, most with a supervisor."""

    def __init__(self, version: str, folder: Path, change: Change) -> None:
        self._stack = ExitStack()
        self.folder = folder
        self.nodes: dict[str, Node] = {}
        self.processes: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        self.locks: dict[tuple[str, str], int] = {}
        samples = sorted((HERE / version).glob("*/*/spec.json"))
        machines = {s.parent.name: uuid.uuid4().hex for s in samples}
        known = {f"{i + 1:032x}": machines[name] for i, name in enumerate(sorted(machines))}
        for name, machine_id in machines.items():
            self.nodes[name] = self._node(name, machine_id)
        for sample in samples:
            self._place(sample.parent, known, change)

    def _node(self, name: str, machine_id: str) -> Node:
        node = Node(self.folder / name)
        self._stack.callback(node.close)
        node.machine_id = machine_id
        (node.identity / "machine-id").write_text(machine_id + "\n")
        (node.identity / "boot_id").write_text(f"boot-{name}\n")
        tools = self.folder / "bin"
        tools.mkdir(exist_ok=True)
        (tools / "podman").write_text("#!/bin/sh\nexit 0\n")
        (tools / "podman").chmod(0o755)
        node.env["PATH"] = f"{tools}:{node.env['PATH']}"
        return node

    def _place(self, sample: Path, known: dict[str, str], change: Change) -> None:
        node = self.nodes[sample.name]
        text = (sample / "spec.json").read_text()
        for old, new in known.items():
            text = text.replace(old, new)
        spec = json.loads(text)
        mark = f"{spec['fleet']}/{spec['launch']}/{spec['rank']}@{node.machine_id}"
        launch = str(spec["launch"])
        change(spec)
        folder = node.root / "launches" / launch
        folder.mkdir(parents=True)
        (folder / "spec.json").write_text(json.dumps(spec))
        (folder / "labels.json").write_bytes((sample / "labels.json").read_bytes())
        status = json.loads((sample / "status.json").read_text())
        status["started_boottime"] = boottime() - 60
        if status["health"]["ok"]:
            status["health"].update(last_boottime=boottime(), ready_since=boottime() - 50)
        (folder / "status.json").write_text(json.dumps(status))
        key = (sample.name, launch)
        env = {"RECONCILE_MARK": mark}
        self.processes[key] = subprocess.Popen(["/bin/sleep", "600"], env=env)
        self._stack.callback(self._end, self.processes[key])
        self.locks[key] = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.locks[key], fcntl.LOCK_EX)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    def observed(self) -> Observed:
        looks = {}
        for name, node in self.nodes.items():
            answer = from_json(NodeAnswer, node.ask("observe"))
            looks[name] = NodeLook(name, answer)
        return Observed(OWNER, looks)

    def desired(self, version: str, *edits: tuple[str, str]) -> Desired:
        """The fleet repo that the launches were started from, edited."""
        repo = self.folder / f"repo{len(edits)}"
        repo.mkdir()
        text = (HERE / version / "fleet/fleet.yaml").read_text()
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        (repo / "fleet.yaml").write_text(text)
        for args in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "kept"]):
            who = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
            subprocess.run(["git", "-C", str(repo), *who, *args], check=True)
        return Source.open(str(repo), cache_dir=self.folder / "cache", timeout_s=10).load_worktree()

    def stop(self, name: str, launch: str) -> str:
        node = self.nodes[name]
        lease = node.lease(fleet=KEPT_FLEET)
        fence = {"fleet": KEPT_FLEET, "owner": OWNER, "epoch": lease["epoch"]}
        return str(node.ask("stop", **fence, launch=launch, grace_s=1)["state"])

    def close(self) -> None:
        for fd in self.locks.values():
            os.close(fd)
        self.locks.clear()
        self._stack.close()


MakeKept = Callable[..., Kept]


@pytest.fixture(params=FORMATS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kept(version: str, tmp_path: Path) -> Iterator[MakeKept]:
    made: list[Kept] = []

    def make(change: Change = lambda spec: None) -> Kept:
        made.append(Kept(version, tmp_path, change))
        return made[-1]

    yield make
    for one in made:
        one.close()


def verdicts(desired: Desired, observed: Observed) -> dict[str, Verdict]:
    """Placement → verdict of its only replica."""
    return {r.placement: r.verdict for r in diff(desired, observed).replicas if r.verdict}


def actions(desired: Desired, observed: Observed) -> list[str]:
    made = plan(desired, observed, diff(desired, observed), lambda: "x")
    return [f"{step.kind} {step.launch}" for step in made.steps]


def test_unedited_everything_matches_and_nothing_is_planned(kept: MakeKept, version: str) -> None:
    held = kept()
    desired, observed = held.desired(version), held.observed()
    assert set(verdicts(desired, observed).values()) == {Verdict.MATCHING}
    assert set(verdicts(desired, observed)) == {"plain", "system", "boxed", "multi"}
    assert actions(desired, observed) == []


def test_edited_everything_is_stale(kept: MakeKept, version: str) -> None:
    held = kept()
    found = verdicts(held.desired(version, *EDITS), held.observed())
    assert found == dict.fromkeys(("plain", "system", "boxed", "multi"), Verdict.STALE)


def newer_minor(spec: Json) -> None:
    spec["format"] = "1.77"
    spec["wind"] = {"from": "west"}
    spec["places"] = [{**place, "rack": 3} for place in spec["places"]]


def newer_major(spec: Json) -> None:
    """All but what is frozen over all majors has another shape."""
    for name in ("commands", "health", "labels", "profile", "needs", "fingerprint"):
        spec[name] = "another shape"
    spec["format"] = "2.0"


def test_a_newer_minor_format_is_read_like_ours(kept: MakeKept, version: str) -> None:
    held = kept(newer_minor)
    desired, observed = held.desired(version), held.observed()
    assert set(verdicts(desired, observed).values()) == {Verdict.MATCHING}
    assert actions(desired, observed) == []


def test_a_newer_major_format_is_unknown_and_left_alone(kept: MakeKept, version: str) -> None:
    held = kept(newer_major)
    desired, observed = held.desired(version, *EDITS), held.observed()
    for look in observed.nodes.values():
        assert look.answer is not None
        assert {"format 2.0" in shard.record_error for shard in look.answer.shards} == {True}
    judged = [j for r in diff(desired, observed).replicas for j in r.launches]
    judged += diff(desired, observed).strays
    assert {j.verdict for j in judged} == {Verdict.UNKNOWN}
    assert actions(desired, observed) == []


@pytest.mark.parametrize("change", [lambda spec: None, newer_minor, newer_major])
def test_every_kept_launch_can_be_stopped(kept: MakeKept, change: Change) -> None:
    """Its supervisor is told by the intent; without one, a new one ends it."""
    held = kept(change)
    for (name, launch), process in held.processes.items():
        assert held.stop(name, launch) == "stopping"
        folder = held.nodes[name].root / "launches" / launch
        assert json.loads((folder / "intent.json").read_text())["intent"] == "stop"
        mode = json.loads((folder / "spec.json").read_text())["mode"]
        if mode == "system":
            # A new supervisor would need systemd; tests/lab has that.
            continue
        os.close(held.locks.pop((name, launch)))
        assert held.stop(name, launch) == "stopping"
        poll(lambda pid=process.pid: gone(pid), bool)
        process.wait()
        assert held.nodes[name].ended(launch)["exit"]["kind"] == "stopped"


def test_another_fleets_launch_is_not_ours_to_stop(kept: MakeKept) -> None:
    held = kept()
    node = held.nodes["gpu-b"]
    launch = next(launch for name, launch in held.processes if name == "gpu-b")
    fence = {"fleet": FLEET, "owner": OWNER, "epoch": node.lease()["epoch"]}
    with pytest.raises(Exception, match="belongs to fleet"):
        node.ask("stop", **fence, launch=launch)
