"""Requests over real sshd to an agent that misbehaves: a value or a NodeError, and never a hang."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from reconciler.core.model import Desired
from reconciler.core.observed import LookError
from reconciler.nodes.loopback import LoopbackFleet
from reconciler.nodes.pool import NodePool
from reconciler.nodes.protocol import NodeRefused, NodeUnseen, ReplyLost, explain
from tests.nodes.conftest import MakePool
from tests.support.desired import desired_of
from tests.support.fixtures import StartFleet
from tests.support.waiting import until

NODE = "node-1"


@pytest.fixture
def fleet(start_fleet: StartFleet) -> LoopbackFleet:
    return start_fleet(1)


@pytest.fixture
def desired(fleet: LoopbackFleet) -> Desired:
    return desired_of(fleet, observe_timeout_s=3)


@pytest.fixture
def pool(make_pool: MakePool) -> NodePool:
    return make_pool(retry_base_s=0.01)


def test_a_refusal_carries_its_code_and_findings(desired: Desired, pool: NodePool) -> None:
    with pytest.raises(NodeRefused) as caught:
        pool.request(desired, NODE, "refuse", code="preflight")
    assert (caught.value.code, caught.value.findings) == ("preflight", ("a", "b"))
    assert pool.request(desired, NODE, "echo")["count"] == 2, "a refusal costs no connection"


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("cut", "into an answer"),
        ("lie", "says that it has"),
        ("wrong-id", "came to"),
        ("huge", "bytes"),
        ("flood", "without an end"),
        ("flood-errors", "without an end"),
        ("answers", "answers came to one request"),
    ],
)
def test_a_damaged_answer_is_told_apart_from_silence(
    desired: Desired, pool: NodePool, op: str, words: str
) -> None:
    with pytest.raises(ReplyLost) as caught:
        pool.request(desired, NODE, op)
    assert caught.value.kind is LookError.DAMAGED
    assert words in caught.value.reason
    assert pool.request(desired, NODE, "echo")["count"] == 1, "a new connection follows"


def test_a_refusal_that_is_no_text_is_a_refusal(desired: Desired, pool: NodePool) -> None:
    with pytest.raises(NodeRefused) as caught:
        pool.request(desired, NODE, "nested")
    assert (caught.value.code, caught.value.reason) == ("(list)", "(list)")


def test_a_refusal_is_told_as_far_as_people_read(desired: Desired, pool: NodePool) -> None:
    with pytest.raises(NodeRefused) as caught:
        pool.request(desired, NODE, "refuse", code="x" * 1_000_000)
    assert len(caught.value.code) < 3000


def test_a_lost_reply_is_answered_by_asking_again_once(desired: Desired, pool: NodePool) -> None:
    first = pool.request(desired, NODE, "echo")["pid"]
    assert pool.request(desired, NODE, "die-once")["pid"] != first


def test_a_reply_that_is_lost_twice_is_lost(desired: Desired, pool: NodePool) -> None:
    with pytest.raises(ReplyLost) as caught:
        pool.request(desired, NODE, "die")
    assert caught.value.kind is LookError.UNREACHABLE


def test_an_agent_that_falls_silent_is_given_up_at_the_deadline(
    desired: Desired, pool: NodePool
) -> None:
    began = time.monotonic()
    with pytest.raises(ReplyLost, match="no answer to 'mute'"):
        pool.request(desired, NODE, "mute")
    assert time.monotonic() - began < 3.3


def test_a_node_that_is_frozen_is_given_up_at_the_deadline(
    fleet: LoopbackFleet, desired: Desired, pool: NodePool
) -> None:
    pool.request(desired, NODE, "echo")
    fleet.freeze(NODE)
    began = time.monotonic()
    with pytest.raises(NodeUnseen):
        pool.request(desired, NODE, "echo", data="x" * 4_000_000)
    assert time.monotonic() - began < 3.3
    fleet.thaw(NODE)
    until(lambda: try_echo(pool, desired), "it answers again")


def try_echo(pool: NodePool, desired: Desired) -> bool:
    try:
        return "got" in pool.request(desired, NODE, "echo")
    except NodeUnseen:
        return False


def test_a_flood_of_noise_and_stderr_stalls_nothing(desired: Desired, pool: NodePool) -> None:
    assert pool.request(desired, NODE, "noise") == {"survived": True}
    assert pool.request(desired, NODE, "echo")["count"] == 2


def test_a_large_request_and_its_answer_arrive_whole(desired: Desired, pool: NodePool) -> None:
    data = "".join(chr(32 + i % 90) for i in range(3_000_000))
    assert pool.request(desired, NODE, "echo", data=data)["got"] == data


def test_one_request_at_a_time_reaches_a_node(desired: Desired, pool: NodePool) -> None:
    counts: list[int] = []
    lock = threading.Lock()

    def ask() -> None:
        count = pool.request(desired, NODE, "echo", data="x" * 100_000)["count"]
        with lock:
            counts.append(count)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(counts) == list(range(1, 21))


def test_the_session_ends_and_what_it_started_lives_on(
    fleet: LoopbackFleet, desired: Desired, pool: NodePool
) -> None:
    agent = pool.request(desired, NODE, "echo")["pid"]
    pool.close()
    until(lambda: agent not in fleet.pids(NODE), "the agent has ended with its stdin")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_closed_pool_leaves_no_thread_and_no_socket(
    start_fleet: StartFleet, make_pool: MakePool, tmp_path: Path
) -> None:
    fleet = start_fleet(6)
    threads, files = set(threading.enumerate()), descriptors()
    fleet.freeze("node-2")
    fleet.stop("node-3")
    pool = make_pool()
    broken = desired_of(fleet, observe_timeout_s=1)
    pool.look(broken)
    with pytest.raises(NodeUnseen):
        pool.request(broken, "node-4", "mute")
    pool.look(broken)
    pool.close()

    def left() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t not in threads]

    until(lambda: not left() and descriptors() <= files, "all threads and sockets", within_s=1.0)


@pytest.mark.parametrize(
    ("reason", "findings", "told"),
    [
        ("no shm; no path", ["no shm", "no path"], "no shm; no path"),
        ("cannot start", ["no shm", "no path"], "cannot start: no shm; no path"),
        ("cannot start", [], "cannot start"),
    ],
)
def test_what_a_node_found_is_told_once(reason: str, findings: list[str], told: str) -> None:
    assert explain(NodeRefused("gpu-a", "preflight", reason, findings)) == told
