"""What survives and what is ended: SIGKILL of supervisor, engine, sidecar and grandchild."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.agent.harness import Json, Node, Refused, Specs, gone, poll

TREE = textwrap.dedent(
    """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def child(act):
        if os.fork() == 0:
            act()
            open("up-%d" % os.getpid(), "w").close()
            time.sleep(600)
            os._exit(0)

    def daemon():
        os.setsid()
        if os.fork():
            os._exit(0)

    def cleared():
        os.setsid()
        if os.fork():
            os._exit(0)
        code = "import os,time; open('up-%d' % os.getpid(),'w').close(); time.sleep(600)"
        os.execve(sys.executable, [sys.executable, "-c", code], {})

    for act in (lambda: None, os.setsid, lambda: os.setpgid(0, 0), daemon, cleared):
        child(act)
    open("up-%d" % os.getpid(), "w").close()
    EXIT
    """
)
"""A tree of six: plain, own session, own group, daemonised, daemonised with its environment
cleared; all of them ignore TERM."""


def tree(specs: Specs, launch: str, then: str = "time.sleep(600)", **changes: object) -> Json:
    return specs.shell(launch, [sys.executable, "-c", TREE.replace("EXIT", then)], **changes)


def members(node: Node, launch: str, count: int = 6) -> list[int]:
    """Pids of the tree, once all are up."""
    folder = node.root / "launches" / launch
    ups = poll(lambda: list(folder.glob("up-*")), lambda found: len(found) >= count)
    return [int(path.name.partition("-")[2]) for path in ups]


def kill_supervisor(node: Node, launch: str) -> None:
    pid = node.supervisor(launch)
    os.kill(pid, signal.SIGKILL)
    poll(lambda: gone(pid), bool)


def without_cgroup(node: Node, launch: str) -> None:
    """Take the shard out of its group, as on a node where none can be made."""
    status = json.loads((node.root / "launches" / launch / "status.json").read_text())
    if not status["cgroup"]:
        return
    parent = Path(status["cgroup"]).parent
    for pid in (Path(status["cgroup"]) / "cgroup.procs").read_text().split():
        (parent / "cgroup.procs").write_text(pid)


@pytest.mark.parametrize("means", ["as the node has it", "without a cgroup"])
def test_a_stop_ends_the_whole_tree(node: Node, specs: Specs, means: str) -> None:
    node.start(tree(specs, "job-0-aaaaa", stop_grace_s=1))
    pids = members(node, "job-0-aaaaa")
    if means == "without a cgroup":
        without_cgroup(node, "job-0-aaaaa")
    node.stop("job-0-aaaaa")
    assert node.ended("job-0-aaaaa")["exit"]["kind"] == "stopped"
    assert [pid for pid in pids if not gone(pid)] == []


def test_a_command_that_ends_takes_what_it_left_with_it(node: Node, specs: Specs) -> None:
    node.start(tree(specs, "job-0-aaaaa", "sys.exit(9)", stop_grace_s=1))
    pids = members(node, "job-0-aaaaa")
    shard = node.ended("job-0-aaaaa")
    assert (shard["exit"]["kind"], shard["exit"]["code"]) == ("exited", 9)
    assert [pid for pid in pids if not gone(pid)] == []


def test_an_engine_killed_alone_reads_as_ended_by_a_signal(node: Node, specs: Specs) -> None:
    node.start(specs.sim("chat-0-aaaaa"))
    (pid,) = node.ready("chat-0-aaaaa")["pids"]
    os.kill(pid, signal.SIGKILL)
    shard = node.ended("chat-0-aaaaa")
    assert (shard["exit"]["kind"], shard["exit"]["signal"]) == ("signal", "KILL")
    assert shard["ever_ready"]
    assert node.processes() == []


def test_the_engine_outlives_its_supervisor_and_is_supervised_again(
    node: Node, specs: Specs
) -> None:
    node.start(specs.sim("chat-0-aaaaa"))
    pids = node.ready("chat-0-aaaaa")["pids"]
    kill_supervisor(node, "chat-0-aaaaa")
    shard = node.shard("chat-0-aaaaa")
    assert (shard["alive"], shard["supervised"], shard["fresh"]) == (True, False, False)
    assert not shard["health"]["ok"], "an answer of a dead supervisor counts as not ready"
    assert node.adopt("chat-0-aaaaa") == "adopted"
    shard = node.until("chat-0-aaaaa", lambda s: s["health"]["ok"])
    assert (shard["pids"], shard["supervised"], shard["ever_ready"]) == (pids, True, True)
    assert node.adopt("chat-0-aaaaa") == "supervised"
    assert node.stop("chat-0-aaaaa") == "stopping"
    assert node.ended("chat-0-aaaaa")["exit"]["kind"] == "stopped"
    assert [pid for pid in pids if not gone(pid)] == []


def test_an_adopted_engine_that_ends_reads_unknown(node: Node, specs: Specs) -> None:
    node.start(specs.sim("chat-0-aaaaa"))
    (pid,) = node.ready("chat-0-aaaaa")["pids"]
    kill_supervisor(node, "chat-0-aaaaa")
    node.adopt("chat-0-aaaaa")
    node.until("chat-0-aaaaa", lambda s: s["health"]["ok"])
    os.kill(pid, signal.SIGKILL)
    exited = node.ended("chat-0-aaaaa")["exit"]
    assert (exited["kind"], exited["code"]) == ("unknown", None)


def test_what_ended_without_a_supervisor_reads_unknown_and_is_written_down(
    node: Node, specs: Specs
) -> None:
    node.start(specs.sim("chat-0-aaaaa"))
    (pid,) = node.ready("chat-0-aaaaa")["pids"]
    kill_supervisor(node, "chat-0-aaaaa")
    os.kill(pid, signal.SIGKILL)
    assert node.ended("chat-0-aaaaa")["exit"]["kind"] == "unknown"
    assert node.adopt("chat-0-aaaaa") == "ended"
    status = json.loads((node.root / "launches/chat-0-aaaaa/status.json").read_text())
    assert status["exit"]["kind"] == "unknown"


def test_a_stop_without_a_supervisor_brings_one(node: Node, specs: Specs) -> None:
    node.start(tree(specs, "job-0-aaaaa", stop_grace_s=0.5))
    pids = members(node, "job-0-aaaaa")
    node.until("job-0-aaaaa", lambda s: s["phase"] == "running")
    kill_supervisor(node, "job-0-aaaaa")
    assert node.stop("job-0-aaaaa") == "stopping"
    assert node.ended("job-0-aaaaa")["exit"]["kind"] == "stopped"
    assert [pid for pid in pids if not gone(pid)] == []


def test_a_supervisor_killed_while_it_stops_is_replaced_and_the_stop_goes_on(
    node: Node, specs: Specs
) -> None:
    node.start(tree(specs, "job-0-aaaaa", stop_grace_s=600))
    pids = members(node, "job-0-aaaaa")
    node.stop("job-0-aaaaa")
    node.until("job-0-aaaaa", lambda s: s["phase"] == "stopping")
    kill_supervisor(node, "job-0-aaaaa")
    shard = node.shard("job-0-aaaaa")
    assert (shard["stop_asked"], shard["alive"]) == (True, True)
    assert node.stop("job-0-aaaaa", grace_s=0) == "stopping"
    assert node.ended("job-0-aaaaa")["exit"]["kind"] == "stopped"
    assert [pid for pid in pids if not gone(pid)] == []


def test_supervisors_killed_again_and_again_lose_nothing(node: Node, specs: Specs) -> None:
    node.start(specs.sim("chat-0-aaaaa"))
    pids = node.ready("chat-0-aaaaa")["pids"]
    for _ in range(4):
        kill_supervisor(node, "chat-0-aaaaa")
        assert node.adopt("chat-0-aaaaa") == "adopted"
    shard = node.until("chat-0-aaaaa", lambda s: s["health"]["ok"])
    assert shard["pids"] == pids
    assert len(node.processes()) == 2


def test_the_session_and_the_agent_may_go_at_any_time(node: Node, specs: Specs) -> None:
    node.start(specs.sim("chat-0-aaaaa"))
    pids = node.ready("chat-0-aaaaa")["pids"]
    assert node._main is not None
    os.killpg(node._main.process.pid, signal.SIGKILL)
    node.reconnect()
    shard = node.shard("chat-0-aaaaa")
    assert (shard["pids"], shard["supervised"]) == (pids, True)


def test_the_lock_ends_with_the_supervisor_and_not_with_its_children(
    node: Node, specs: Specs
) -> None:
    node.start(tree(specs, "job-0-aaaaa"))
    members(node, "job-0-aaaaa")
    assert node.shard("job-0-aaaaa")["supervised"]
    kill_supervisor(node, "job-0-aaaaa")
    assert not node.shard("job-0-aaaaa")["supervised"]


def test_another_boot_means_ended_and_nothing_is_signalled(node: Node, specs: Specs) -> None:
    # A record of the boot before, whose pid is a living process now: the pid was reused.
    node.start(specs.shell("job-0-aaaaa", ["sleep", "600"]))
    (pid,) = node.until("job-0-aaaaa", lambda s: s["pids"] != [])["pids"]
    kill_supervisor(node, "job-0-aaaaa")
    os.kill(pid, signal.SIGKILL)
    poll(lambda: gone(pid), bool)
    bystander = node.session().process
    path = node.root / "launches" / "job-0-aaaaa" / "status.json"
    status = json.loads(path.read_text())
    status.pop("check")
    status["processes"] = [
        {"name": "serve", "pid": bystander.pid, "start_time": 1, "pgid": bystander.pid}
    ]
    path.write_text(json.dumps(status))
    node.boot()
    node.reconnect()
    shard = node.shard("job-0-aaaaa")
    assert (shard["phase"], shard["alive"], shard["exit"]["kind"]) == ("ended", False, "reboot")
    assert node.stop("job-0-aaaaa") == "ended"
    assert node.adopt("job-0-aaaaa") == "ended"
    assert bystander.poll() is None


def test_a_reused_pid_is_neither_alive_nor_signalled(node: Node, specs: Specs) -> None:
    node.start(specs.shell("job-0-aaaaa", ["sleep", "600"]))
    path = node.root / "launches" / "job-0-aaaaa" / "status.json"
    status = poll(lambda: json.loads(path.read_text()), lambda told: told["processes"] != [])
    pid = status["processes"][0]["pid"]
    kill_supervisor(node, "job-0-aaaaa")
    os.kill(pid, signal.SIGKILL)
    poll(lambda: gone(pid), bool)
    bystander = node.session().process
    status.pop("check")
    status["processes"][0]["pid"] = bystander.pid
    path.write_text(json.dumps(status))
    shard = node.shard("job-0-aaaaa")
    assert (shard["alive"], shard["pids"]) == (False, [])
    assert node.stop("job-0-aaaaa") == "ended"
    assert bystander.poll() is None


# --- Commands in order ------------------------------------------------------------------------


def with_sidecar(spec: Json, argv: list[str], **fields: object) -> Json:
    sidecar = {"name": "side", "argv": argv, "env": {}, "wait_for": None, "gpu_env": []}
    spec["commands"].insert(0, {**sidecar, **fields})
    return spec


def test_a_sidecar_that_is_killed_is_started_again_and_the_engine_is_not(
    node: Node, specs: Specs
) -> None:
    node.start(with_sidecar(specs.sim("chat-0-aaaaa"), ["sleep", "600"]))
    node.ready("chat-0-aaaaa")
    path = node.root / "launches" / "chat-0-aaaaa" / "status.json"

    def pids() -> dict[str, int]:
        return {p["name"]: p["pid"] for p in json.loads(path.read_text())["processes"]}

    before = pids()
    os.kill(before["side"], signal.SIGKILL)
    after = poll(pids, lambda now: now.get("side", before["side"]) != before["side"])
    assert after["serve"] == before["serve"]
    assert node.shard("chat-0-aaaaa")["restarts"] == 1


def test_a_sidecar_that_keeps_failing_ends_the_shard(node: Node, specs: Specs) -> None:
    node.start(with_sidecar(specs.sim("chat-0-aaaaa"), ["sh", "-c", "exit 4"]))
    shard = node.ended("chat-0-aaaaa")
    assert (shard["exit"]["kind"], shard["exit"]["code"]) == ("sidecar", 4)
    assert shard["exit"]["command"] == "side"
    assert "ended 5 times in a row" in shard["exit"]["message"]


def test_a_sidecar_is_ended_with_the_shard(node: Node, specs: Specs) -> None:
    node.start(with_sidecar(specs.sim("chat-0-aaaaa"), ["sleep", "600"]))
    node.ready("chat-0-aaaaa")
    node.stop("chat-0-aaaaa")
    node.ended("chat-0-aaaaa")
    assert node.processes() == []


def test_a_command_waits_for_its_port(node: Node, specs: Specs) -> None:
    spec = with_sidecar(specs.sim("chat-0-aaaaa", "--load-time", "0"), ["sleep", "600"])
    port = spec["health"]["port"] + 4000
    spec["commands"][1]["wait_for"] = {"host": node.address, "port": port}
    node.start(spec)
    waiting = node.until("chat-0-aaaaa", lambda s: s["pids"] != [])
    time.sleep(0.6)
    shard = node.shard("chat-0-aaaaa")
    assert shard["pids"] == waiting["pids"], "the engine has not been started"
    assert shard["health"]["detail"] == f"waits for {node.address}:{port}"
    import socket

    with socket.socket() as leader:
        leader.bind((node.address, port))
        leader.listen()
        assert node.ready("chat-0-aaaaa")["health"]["ok"]


def test_what_never_becomes_ready_is_ended_by_the_supervisor(node: Node, specs: Specs) -> None:
    node.start(specs.sim("chat-0-aaaaa", "--never-ready", start_timeout_s=1))
    shard = node.ended("chat-0-aaaaa")
    assert shard["exit"]["kind"] == "timeout"
    assert "not ready within 1 s; last: /health: 503" in shard["exit"]["message"]
    assert node.processes() == []


def test_a_wait_that_never_ends_is_a_timeout(node: Node, specs: Specs) -> None:
    spec = specs.shell("job-0-aaaaa", ["sleep", "600"], start_timeout_s=0.5)
    spec["commands"][0]["wait_for"] = {"host": node.address, "port": 9}
    node.start(spec)
    assert node.ended("job-0-aaaaa")["exit"]["kind"] == "timeout"


def test_a_program_that_vanished_since_the_preflight_reads_preflight(
    node: Node, specs: Specs, tmp_path: Path
) -> None:
    engine = tmp_path / "engine"
    engine.write_text("#!/no/such/interpreter\n")
    engine.chmod(0o755)
    node.start(specs.shell("job-0-aaaaa", [str(engine)]))
    shard = node.ended("job-0-aaaaa")
    assert shard["exit"]["kind"] == "preflight"
    assert "No such file or directory" in shard["exit"]["message"]


def test_a_start_cut_off_before_the_supervisor_can_be_finished_by_asking_again(
    node: Node, specs: Specs
) -> None:
    spec = specs.shell("job-0-aaaaa", ["sleep", "600"])
    folder = node.root / "launches" / "job-0-aaaaa"
    (folder / "files").mkdir(parents=True)
    boot_id = node.ask("hello")["boot_id"]
    (folder / "spec.json").write_text(json.dumps({**spec, "boot_id": boot_id}))
    shard = node.shard("job-0-aaaaa")
    assert (shard["phase"], shard["exit"]["kind"]) == ("ended", "preflight")
    assert node.start(spec) == "started"
    node.until("job-0-aaaaa", lambda s: s["pids"] != [])


def test_a_start_cut_off_before_the_supervisor_can_be_stopped(node: Node, specs: Specs) -> None:
    spec = specs.shell("job-0-aaaaa", ["sleep", "600"])
    folder = node.root / "launches" / "job-0-aaaaa"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(spec))
    assert node.stop("job-0-aaaaa") == "ended"
    assert node.start(spec) == "ended"
    assert node.shard("job-0-aaaaa")["exit"]["kind"] == "stopped"


# --- Without a record -------------------------------------------------------------------------


def test_a_shard_without_a_record_is_shown_and_can_be_stopped(node: Node, specs: Specs) -> None:
    import shutil

    node.start(specs.sim("chat-0-aaaaa", rank=0))
    pids = node.ready("chat-0-aaaaa")["pids"]
    kill_supervisor(node, "chat-0-aaaaa")
    shutil.rmtree(node.root / "launches" / "chat-0-aaaaa")
    shard = node.shard("chat-0-aaaaa")
    assert (shard["record"], shard["record_error"]) == (None, "absent")
    assert (shard["alive"], shard["pids"]) == (True, pids)
    with pytest.raises(Refused, match="its record absent"):
        node.adopt("chat-0-aaaaa")
    assert node.stop("chat-0-aaaaa", grace_s=0) == "stopping"
    poll(lambda: [pid for pid in pids if not gone(pid)], lambda left: left == [])
    assert node.ended("chat-0-aaaaa")["exit"]["kind"] == "stopped"


def test_a_full_log_is_cut_while_the_engine_writes_on(node: Node, specs: Specs) -> None:
    script = "yes 0123456789abcdef | head -c 40000000; echo last; sleep 600"
    node.start(specs.shell("job-0-aaaaa", ["sh", "-c", script]))
    folder = node.root / "launches" / "job-0-aaaaa"
    poll((folder / "serve.log.1").exists, bool)
    poll(lambda: (folder / "serve.log").stat().st_size, lambda size: size < 16 * 1024 * 1024)
    assert (folder / "serve.log.1").stat().st_size <= 16 * 1024 * 1024
    assert node.shard("job-0-aaaaa")["phase"] == "running"
