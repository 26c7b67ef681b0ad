"""Start and stop are safe to repeat, refuse what is taken or unfit, and leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler.agent import package
from tests.agent.harness import FLEET, Json, Node, Refused, Specs, poll


def refusal(node: Node, spec: Json) -> Refused:
    with pytest.raises(Refused) as caught:
        node.start(spec)
    return caught.value


def with_gpus(spec: Json, *names: str) -> Json:
    spec["places"][0]["gpus"] = list(names)
    spec["gpu_index"] = {name: int(name.rsplit("-", 1)[1]) for name in names}
    return spec


def test_a_lost_reply_is_answered_by_asking_again(node: Node, specs: Specs) -> None:
    spec = specs.shell("job-0-aaaaa", ["sleep", "60"])
    states = [node.start(spec) for _ in range(3)]
    assert states == ["started", "already", "already"]
    shard = node.until("job-0-aaaaa", lambda s: s["phase"] == "running")
    assert len(shard["pids"]) == 1


def test_another_spec_under_the_same_id_is_a_conflict_and_untouched(
    node: Node, specs: Specs
) -> None:
    node.start(specs.shell("job-0-aaaaa", ["sleep", "60"]))
    pids = node.until("job-0-aaaaa", lambda s: s["pids"] != [])["pids"]
    assert refusal(node, specs.shell("job-0-aaaaa", ["sleep", "61"])).code == "conflict"
    assert node.shard("job-0-aaaaa")["pids"] == pids


def test_an_ended_launch_is_never_started_again(node: Node, specs: Specs) -> None:
    spec = specs.shell("job-0-aaaaa", ["false"])
    node.start(spec)
    node.ended("job-0-aaaaa")
    assert node.start(spec) == "ended"
    assert node.stop("job-0-aaaaa") == "ended"
    assert node.adopt("job-0-aaaaa") == "ended"
    assert node.shard("job-0-aaaaa")["exit"]["code"] == 1


def test_a_stopped_launch_reads_stopped_with_its_code(node: Node, specs: Specs) -> None:
    node.start(specs.sim("chat-0-aaaaa"))
    node.ready("chat-0-aaaaa")
    assert node.stop("chat-0-aaaaa") == "stopping"
    ended = node.ended("chat-0-aaaaa")["exit"]
    assert (ended["kind"], ended["code"]) == ("stopped", 0)
    assert node.processes() == []


def test_a_gpu_is_not_given_twice(node: Node, specs: Specs) -> None:
    node.start(with_gpus(specs.shell("a-0-aaaaa", ["sleep", "60"]), "gpu-0", "gpu-1"))
    late = with_gpus(specs.shell("b-0-aaaaa", ["sleep", "60"]), "gpu-1", "gpu-2")
    refused = refusal(node, late)
    assert refused.code == "gpu-taken"
    assert refused.message == "GPU gpu-1 is held by launch a-0-aaaaa"
    assert "b-0-aaaaa" not in node.shards()
    node.stop("a-0-aaaaa")
    node.ended("a-0-aaaaa")
    assert node.start(late) == "started"


def test_a_declared_gpu_is_not_given_twice_under_another_name(node: Node, specs: Specs) -> None:
    node.start(with_gpus(specs.shell("a-0-aaaaa", ["sleep", "60"]), "old-gpu-0", "old-gpu-1"))
    late = with_gpus(specs.shell("b-0-aaaaa", ["sleep", "60"]), "new-gpu-0")
    refused = refusal(node, late)
    assert refused.code == "gpu-taken"
    assert refused.message == (
        "GPU new-gpu-0 has the index of one that launch a-0-aaaaa holds by another name"
    )


def test_a_gpu_of_another_fleets_launch_is_taken_and_the_launch_untouched(
    node: Node, specs: Specs
) -> None:
    other = "0d2b6a38-0000-4000-8000-000000000000"
    lease = node.ask("lease", fleet=other, action="acquire", owner="them", ttl_s=60)
    fence = {"fleet": other, "owner": "them", "epoch": lease["epoch"]}
    theirs = with_gpus(specs.shell("a-0-aaaaa", ["sleep", "60"], fleet=other), "gpu-0")
    node.ask("start", **fence, spec=theirs, labels={})
    ours = with_gpus(specs.shell("b-0-aaaaa", ["sleep", "60"]), "gpu-0")
    assert refusal(node, ours).code == "gpu-taken"
    with pytest.raises(Refused, match="belongs to fleet"):
        node.stop("a-0-aaaaa")
    assert node.shard("a-0-aaaaa")["alive"]


def test_a_port_of_a_live_launch_is_taken_before_it_is_bound(node: Node, specs: Specs) -> None:
    node.start(specs.shell("a-0-aaaaa", ["sleep", "60"], port=20555))
    refused = refusal(node, specs.shell("b-0-aaaaa", ["sleep", "60"], port=20555))
    assert (refused.code, refused.message) == (
        "port-taken",
        "port 20555 (http) is held by launch a-0-aaaaa",
    )


def test_everything_that_is_unfit_is_said_at_once(node: Node, specs: Specs, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((node.address, 0))
        taken.listen()
        port = taken.getsockname()[1]
        spec = specs.shell("a-0-aaaaa", ["no-such-engine", "serve"], port=port)
        spec["require_paths"] = [str(tmp_path / "absent.gguf"), str(tmp_path)]
        spec["places"][0]["gpus"] = ["gpu-9"]
        spec["needs"] = {"ram_gib": 9_999_999, "nofile": 0}
        spec["network"] = {"interface": "ib77"}
        refused = refusal(node, spec)
    assert refused.code == "preflight"
    text = "\n".join(refused.findings)
    assert f"port {port} (http) on {node.address}: Address already in use" in text
    assert "program no-such-engine is not found" in text
    assert "absent.gguf: No such file or directory" in text
    assert "GPU gpu-9: the spec gives no index" in text
    assert "the profile needs 9999999 GiB" in text
    assert "interface ib77 is not here" in text
    assert len(refused.findings) == 6
    assert node.shards() == {}


def test_an_address_of_another_machine_is_found_out(node: Node, specs: Specs) -> None:
    spec = specs.shell("a-0-aaaaa", ["sleep", "60"], port=20556, address="192.0.2.77")
    assert "Cannot assign requested address" in refusal(node, spec).message


@pytest.mark.parametrize(
    "change",
    [
        {"launch": "../../etc"},
        {"launch": "UPPER"},
        {"format": "2.0"},
        {"seq": "3"},
        {"commands": []},
        {"commands": [{"name": "supervisor", "argv": ["true"]}]},
        {"commands": [{"name": "a/b", "argv": ["true"]}]},
        {"commands": [{"name": "a", "argv": ["tr\0ue"]}]},
        {"commands": [{"name": "a", "argv": ["true"], "env": {"RECONCILE_MARK": "x"}}]},
        {"files": [{"path": "../spec.json", "content": ""}]},
        {"files": [{"path": "/etc/passwd", "content": ""}]},
        {"stop_signal": "NOPE"},
        {"health": {"host": "x", "port": 1, "path": "no-slash"}},
        {"container": {"tool": "sh", "name": "x"}},
        {"fleet": "0d2b6a38-0000-4000-8000-000000000000"},
    ],
)
def test_a_malformed_spec_is_refused_before_anything_is_written(
    node: Node, specs: Specs, change: Json
) -> None:
    spec = {**specs.shell("a-0-aaaaa", ["sleep", "60"]), **change}
    assert refusal(node, spec).code == "bad-request"
    assert node.shards() == {}


def test_a_spec_for_another_machine_is_refused(node: Node, specs: Specs) -> None:
    spec = specs.shell("a-0-aaaaa", ["sleep", "60"])
    spec["places"][0]["machine_id"] = "0" * 32
    assert "is for machine 0000" in refusal(node, spec).message


def test_files_are_there_before_the_first_process(node: Node, specs: Specs) -> None:
    spec = specs.shell("a-0-aaaaa", ["sh", "-c", "cat files/conf/engine.yaml; exit 3"])
    spec["files"] = [{"path": "conf/engine.yaml", "content": "a: \u00e9\n"}]
    node.start(spec)
    shard = node.ended("a-0-aaaaa")
    assert (shard["log_tail"], shard["exit"]["code"]) == (["a: \u00e9"], 3)


def test_records_are_for_their_user_alone(node: Node, specs: Specs) -> None:
    node.start(specs.shell("a-0-aaaaa", ["sleep", "60"]))
    folder = node.root / "launches" / "a-0-aaaaa"
    node.until("a-0-aaaaa", lambda s: s["phase"] == "running")
    # A part file is gone by its rename before it could be looked at.
    for path in [path for path in folder.iterdir() if not path.name.startswith(".")]:
        assert path.stat().st_mode & 0o077 == 0, path
    assert node.root.stat().st_mode & 0o077 == 0


def test_the_environment_is_the_declared_base_and_the_commands_own(
    make_node: Callable[[], Node],
) -> None:
    node = make_node()
    node.env.update({"HF_HOME": "/models/hf", "LANG": "C.UTF-8", "AWS_SECRET": "hush"})
    node.ask("hello")
    spec = Specs(node).shell("a-0-aaaaa", ["env", "-0"])
    spec["commands"][0]["env"] = {"NCCL_DEBUG": "INFO", "HF_HOME": "/own"}
    spec["commands"][0]["gpu_env"] = ["CUDA_VISIBLE_DEVICES"]
    with_gpus(spec, "gpu-3", "gpu-1")
    node.start(spec)
    node.ended("a-0-aaaaa")
    text = (node.root / "launches" / "a-0-aaaaa" / "serve.log").read_text()
    env = dict(entry.split("=", 1) for entry in text.split("\0") if entry)
    assert env == {
        "PATH": node.env["PATH"],
        "HOME": node.env["HOME"],
        "LANG": "C.UTF-8",
        "HF_HOME": "/own",
        "NCCL_DEBUG": "INFO",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "3,1",
        "RECONCILE_MARK": f"{FLEET}/a-0-aaaaa/0@{node.machine_id}",
    }


def test_a_secret_comes_from_its_file_and_stands_in_no_record(
    node: Node, specs: Specs, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("canary-7f3a\n")
    spec = specs.shell("a-0-aaaaa", ["sh", "-c", 'test "${HF_TOKEN%f3a}" = canary-7 && exit 5'])
    spec["commands"][0]["env_files"] = {"HF_TOKEN": str(token)}
    node.start(spec)
    assert node.ended("a-0-aaaaa")["exit"]["code"] == 5
    for path in node.root.rglob("*"):
        if path.is_file():
            assert b"canary-7f3a" not in path.read_bytes(), path
    assert "canary" not in json.dumps(node.ask("observe"))


@pytest.mark.parametrize(
    ("content", "finding"),
    [("", "the file is empty"), ("\n", "the file is empty"), (None, "No such file")],
)
def test_a_secret_that_is_absent_or_empty_is_found_before_the_start(
    node: Node, specs: Specs, tmp_path: Path, content: str | None, finding: str
) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_text(content)
    spec = specs.shell("a-0-aaaaa", ["true"])
    spec["commands"][0]["env_files"] = {"HF_TOKEN": str(token)}
    assert finding in refusal(node, spec).message


def test_a_relabel_restarts_nothing(node: Node, specs: Specs) -> None:
    node.start(specs.shell("a-0-aaaaa", ["sleep", "60"]), placement="a", ordinal=0)
    pids = node.until("a-0-aaaaa", lambda s: s["pids"] != [])["pids"]
    labels = {"placement": "b", "ordinal": 4, "replica": "b-4"}
    node.ask("relabel", **node.fence(), launch="a-0-aaaaa", labels=labels)
    shard = node.shard("a-0-aaaaa")
    assert shard["labels"]["replica"] == "b-4"
    assert shard["record"]["replica"] == "a-0"
    assert shard["pids"] == pids


def test_a_file_of_the_labels_is_replaced_beside_the_running_launch(
    node: Node, specs: Specs
) -> None:
    spec = specs.shell("a-0-aaaaa", ["sleep", "60"])
    spec["files"] = [{"path": "members.json", "content": "none"}, {"path": "own", "content": "o"}]
    first = {"placement": "a", "replica": "a-0", "files": {"members.json": "one"}}
    asked = {**node.fence(), "spec": spec, "labels": first}
    assert node.ask("start", **asked) == {"state": "started"}
    files = node.root / "launches" / "a-0-aaaaa" / "files"
    assert (files / "members.json").read_text() == "one"
    pids = node.until("a-0-aaaaa", lambda s: s["pids"] != [])["pids"]
    second = {**first, "files": {"members.json": "two", "sub/new": "n"}}
    node.ask("relabel", **node.fence(), launch="a-0-aaaaa", labels=second)
    assert (files / "members.json").read_text() == "two"
    assert (files / "sub/new").read_text() == "n"
    assert (files / "own").read_text() == "o"
    shard = node.shard("a-0-aaaaa")
    assert (shard["pids"], shard["labels"]["files"]) == (pids, second["files"])
    assert node.ask("start", **asked) == {"state": "already"}, "the same spec, whatever the labels"
    assert (files / "members.json").read_text() == "two"


@pytest.mark.parametrize("path", ["../spec.json", "/etc/passwd", "a/../../lock", "."])
def test_a_file_of_the_labels_cannot_leave_its_folder(node: Node, specs: Specs, path: str) -> None:
    node.start(specs.shell("a-0-aaaaa", ["sleep", "60"]))
    with pytest.raises(Refused, match="leaves the launch's folder"):
        node.ask("relabel", **node.fence(), launch="a-0-aaaaa", labels={"files": {path: "x"}})


def test_a_stop_can_be_hurried(node: Node, specs: Specs) -> None:
    script = "trap '' TERM; echo up; while :; do sleep 1; done"
    node.start(specs.shell("a-0-aaaaa", ["sh", "-c", script], stop_grace_s=600))
    log = node.root / "launches" / "a-0-aaaaa" / "serve.log"
    poll(lambda: log.exists() and log.read_text(), lambda text: text == "up\n")
    node.stop("a-0-aaaaa")
    shard = node.until("a-0-aaaaa", lambda s: s["phase"] == "stopping")
    assert shard["alive"]
    age = shard["stop_age_s"]
    node.stop("a-0-aaaaa", grace_s=0)
    ended = node.ended("a-0-aaaaa")
    assert (ended["exit"]["kind"], ended["exit"]["signal"]) == ("stopped", "KILL")
    assert ended["stop_age_s"] >= age


def test_a_drain_comes_before_the_signal(node: Node, specs: Specs) -> None:
    node.start(specs.sim("chat-0-aaaaa", drain_s=1))
    node.ready("chat-0-aaaaa")
    node.stop("chat-0-aaaaa")
    shard = node.until("chat-0-aaaaa", lambda s: s["phase"] == "stopping")
    assert shard["pids"]
    assert node.ended("chat-0-aaaaa")["stop_age_s"] >= 1


def test_what_is_not_there_cannot_be_stopped(node: Node) -> None:
    with pytest.raises(Refused, match="is not on this node") as caught:
        node.stop("ghost-0-aaaaa")
    assert caught.value.code == "not-found"


def test_the_last_ready_and_the_last_three_failures_of_a_replica_are_kept(
    node: Node, specs: Specs
) -> None:
    def run(seq: int, *options: str) -> str:
        launch = f"chat-0-aaaa{seq}"
        node.start(specs.sim(launch, *options, seq=seq), replica="chat-0")
        node.ready(launch)
        node.stop(launch)
        node.ended(launch)
        return launch

    ready = [run(1), run(2)]
    failed = [run(seq, "--fail") for seq in range(3, 8)]
    node.start(specs.sim("chat-0-aaaa9", seq=9), replica="chat-0")
    node.start(specs.sim("other-0-aaaaa"), replica="other-0")
    assert set(node.shards()) == {ready[1], *failed[2:], "chat-0-aaaa9", "other-0-aaaaa"}


def test_cycles_leave_nothing_behind(node: Node, specs: Specs) -> None:
    def held() -> int:
        assert node._main is not None
        return len(os.listdir(f"/proc/{node._main.process.pid}/fd"))

    counts = []
    for cycle in range(5):
        launch = f"chat-0-aaaa{cycle}"
        node.start(specs.sim(launch, seq=cycle))
        node.ready(launch)
        node.stop(launch)
        node.ended(launch)
        counts.append(held())
        poll(node.processes, lambda pids: pids == [])
    assert len(set(counts)) == 1, "descriptors of the agent after each cycle"


@pytest.mark.parametrize("race", range(5))
def test_of_two_starters_of_one_launch_one_starts(node: Node, specs: Specs, race: int) -> None:
    spec = specs.shell("job-0-aaaaa", ["sh", "-c", "echo started; sleep 60"])
    states = together(node, [spec] * 4)
    assert sorted(states) == ["already", "already", "already", "started"]
    assert logged(node, "job-0-aaaaa") == "started\n"


@pytest.mark.parametrize("race", range(5))
def test_of_two_launches_that_want_one_gpu_one_starts(node: Node, specs: Specs, race: int) -> None:
    launches = [f"job-{number}-aaaaa" for number in range(4)]
    made = [with_gpus(specs.shell(launch, ["sleep", "60"]), "gpu-0") for launch in launches]
    states = together(node, made)
    assert sorted(states) == ["gpu-taken", "gpu-taken", "gpu-taken", "started"]
    assert len(node.shards()) == 1


def together(node: Node, specs: list[Json]) -> list[str]:
    """Start all at the same moment, each over a session of its own."""
    fence = node.fence()
    sessions = [node.session() for _ in specs]
    barrier = threading.Barrier(len(specs))
    states: list[str] = []

    def run(index: int) -> None:
        barrier.wait()
        try:
            answer = sessions[index].ask("start", **fence, spec=specs[index], labels={})
            states.append(answer["state"])
        except Refused as error:
            states.append(error.code)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(specs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return states


def logged(node: Node, launch: str) -> str:
    path = node.root / "launches" / launch / "serve.log"

    def read() -> str:
        with contextlib.suppress(FileNotFoundError):
            return path.read_text()
        return ""

    return str(poll(read, lambda text: text != ""))


def test_the_agents_file_may_be_replaced_under_a_running_supervisor(
    node: Node, specs: Specs
) -> None:
    node.start(specs.sim("chat-0-aaaaa"))
    node.ready("chat-0-aaaaa")
    node.reconnect()
    for path in (node.root / "agent").iterdir():
        path.unlink()
    node.session()
    assert (node.root / "agent" / f"{package.build()[1]}.pyz").exists()
    assert node.stop("chat-0-aaaaa") == "stopping"
    assert node.ended("chat-0-aaaaa")["exit"]["kind"] == "stopped"
    status = json.loads((node.root / "launches/chat-0-aaaaa/status.json").read_text())
    assert status["phase"] == "ended"
