"""SIGKILL of the agent and of the supervisor, at moments spread over a start and a stop.

Whatever moment it hits: no process of a launch lives that reads ended, none lives twice, and asking
again brings the start or the stop to its end.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from reconciler.agent import procs
from tests.agent.harness import Node, Refused, Specs, poll

LAUNCH = "job-0-aaaaa"
START_MS = [0, 5, 20, 50, 100, 150, 250, 400]
STOP_MS = [0, 5, 20, 60, 150, 400]
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def supervisors(node: Node) -> list[int]:
    """All that supervise a launch of this node."""
    needle = f"@{node.machine_id}".encode()

    def supervises(pid: int) -> bool:
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        named = [v for v in environ.split(b"\0") if v.startswith(b"RECONCILE_SUPERVISES=")]
        return any(v.endswith(needle) for v in named)

    return [pid for pid in procs.all_pids() if supervises(pid)]


def engines(node: Node) -> list[int]:
    """What carries the mark and supervises nothing."""
    return sorted(set(node.processes()) - set(supervisors(node)))


def end(node: Node) -> None:
    """A stop that is asked for until it is done leaves nothing."""
    assert node.stop(LAUNCH, grace_s=0) in ("stopping", "ended")
    node.ended(LAUNCH)
    assert poll(node.processes, lambda left: not left) == []


@pytest.mark.parametrize("after_ms", START_MS)
def test_an_agent_killed_in_a_start_leaves_what_the_same_request_finishes(
    node: Node, specs: Specs, after_ms: int
) -> None:
    spec = specs.sim(LAUNCH)
    fence = node.fence()
    dying = node.session()
    dying.send("start", **fence, spec=spec, labels={})
    time.sleep(after_ms / 1000)
    os.killpg(dying.process.pid, signal.SIGKILL)
    # A supervisor that was under way when the agent died may hold the lock only in a moment.
    state = poll(lambda: try_start(node, spec), lambda state: state != "")
    assert state in ("started", "already", "ended")
    shard = node.ready(LAUNCH)
    if state == "ended" or shard["phase"] == "ended":
        # A supervisor that died with the agent, perhaps only after the second answer.
        assert engines(node) == [], "it reads ended, so nothing of it may live"
        return
    assert (len(engines(node)), len(supervisors(node))) == (1, 1)
    end(node)


def try_start(node: Node, spec: dict[str, object]) -> str:
    """Empty: refused for now."""
    try:
        return node.start(spec)
    except Refused as refused:
        if refused.code != "io":
            raise
        return ""


@pytest.mark.parametrize("after_ms", START_MS)
def test_a_supervisor_killed_in_a_start_is_no_second_engine_and_no_lost_one(
    node: Node, specs: Specs, after_ms: int
) -> None:
    spec = specs.sim(LAUNCH)
    session = node.session()
    session.send("start", **node.fence(), spec=spec, labels={})
    (pid,) = poll(lambda: supervisors(node), lambda found: len(found) == 1)
    time.sleep(after_ms / 1000)
    os.kill(pid, signal.SIGKILL)
    session.receive()
    shard = node.shards().get(LAUNCH)
    if shard is None:
        assert poll(node.processes, lambda left: not left) == [], "refused, so it leaves nothing"
        return
    state = node.adopt(LAUNCH)
    assert state in ("adopted", "ended")
    if state == "ended":
        assert engines(node) == [], "it reads ended, so nothing of it may live"
        assert node.start(spec) == "ended"
        return
    node.until(LAUNCH, lambda s: s["supervised"] or s["phase"] == "ended")
    assert len(engines(node)) <= 1
    end(node)


@pytest.mark.parametrize("after_ms", STOP_MS)
def test_a_supervisor_killed_in_a_stop_is_followed_by_one_that_finishes_it(
    node: Node, specs: Specs, after_ms: int
) -> None:
    node.start(specs.shell(LAUNCH, [sys.executable, "-c", STUBBORN], stop_grace_s=1))
    node.until(LAUNCH, lambda s: bool(s["pids"]))
    (pid,) = supervisors(node)
    node.stop(LAUNCH)
    time.sleep(after_ms / 1000)
    os.kill(pid, signal.SIGKILL)
    poll(lambda: supervisors(node), lambda left: not left)
    shard = node.shard(LAUNCH)
    assert (shard["phase"] == "ended") == (engines(node) == [])
    end(node)
    assert node.shard(LAUNCH)["exit"]["kind"] == "stopped"


@pytest.mark.parametrize("after_ms", STOP_MS)
def test_an_agent_killed_in_a_stop_has_asked_for_it_or_not(
    node: Node, specs: Specs, after_ms: int
) -> None:
    node.start(specs.shell(LAUNCH, ["sleep", "600"]))
    node.until(LAUNCH, lambda s: bool(s["pids"]))
    dying = node.session()
    dying.send("stop", **node.fence(), launch=LAUNCH)
    time.sleep(after_ms / 1000)
    os.killpg(dying.process.pid, signal.SIGKILL)
    dying.process.wait()
    if not node.shard(LAUNCH)["stop_asked"]:
        assert len(engines(node)) == 1, "a stop that was not written stops nothing"
    end(node)
