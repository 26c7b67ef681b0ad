"""A stop awaits the requests in flight, by the engine's own count, and no longer than it may."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from typing import Any

from reconciler.agent.draining import parse
from tests.agent.harness import Node, Specs

METRICS = ["vllm:num_requests_running", "vllm:num_requests_waiting"]


def draining(specs: Specs, *options: str, drain_s: float = 30.0, **drain: Any) -> dict[str, Any]:
    """A sim engine that makes a token each 0.1 s."""
    spec = specs.sim("chat-0-aaaaa", "--token-time", "0.1", *options, drain_s=drain_s)
    at = [{"host": spec["health"]["host"], "port": spec["health"]["port"]}]
    settled = {"metrics": METRICS, "path": "/metrics", "settle_s": 0.5, "at": at}
    return {**spec, "drain": {**settled, **drain}}


class Stream(threading.Thread):
    """One streamed answer of `words` words, read to its end."""

    def __init__(self, spec: dict[str, Any], words: int) -> None:
        super().__init__()
        where = (spec["health"]["host"], spec["health"]["port"])
        text = " ".join("w" for _ in range(words - 2))
        body = {"messages": [{"role": "user", "content": text}], "stream": True}
        self._request = urllib.request.Request(
            "http://{}:{}/v1/chat/completions".format(*where),
            json.dumps({**body, "max_tokens": words}).encode(),
            {"Content-Type": "application/json"},
        )
        self.begun = threading.Event()
        self.lines: list[bytes] = []

    def run(self) -> None:
        with urllib.request.urlopen(self._request, timeout=30) as answer:
            for line in answer:
                self.lines.append(line)
                self.begun.set()


def test_a_streamed_request_in_flight_is_finished_before_the_stop_signal(
    node: Node, specs: Specs
) -> None:
    spec = draining(specs)
    node.start(spec)
    node.ready("chat-0-aaaaa")
    stream = Stream(spec, 20)
    stream.start()
    assert stream.begun.wait(10)
    began = time.monotonic()
    node.stop("chat-0-aaaaa")
    told = node.until("chat-0-aaaaa", lambda s: "in flight" in s["health"]["detail"])
    assert told["phase"] == "stopping"
    log = node.root / "launches" / "chat-0-aaaaa" / "serve.log"
    ended = node.ended("chat-0-aaaaa")
    stream.join(10)
    assert stream.lines[-2].strip() == b"data: [DONE]"
    assert "sim: ended" in log.read_text()
    assert ended["exit"]["kind"] == "stopped"
    assert time.monotonic() - began < 20, "the whole drain time was waited"


def test_nothing_in_flight_is_not_waited_for(node: Node, specs: Specs) -> None:
    node.start(draining(specs, drain_s=60.0))
    node.ready("chat-0-aaaaa")
    began = time.monotonic()
    node.stop("chat-0-aaaaa")
    node.ended("chat-0-aaaaa")
    assert 0.5 <= time.monotonic() - began < 10


def test_after_the_drain_time_the_signal_comes_whatever_is_in_flight(
    node: Node, specs: Specs
) -> None:
    spec = draining(specs, drain_s=1.0)
    spec = {**spec, "stop_grace_s": 1.0}
    node.start(spec)
    node.ready("chat-0-aaaaa")
    stream = Stream(spec, 200)
    stream.daemon = True
    stream.start()
    assert stream.begun.wait(10)
    node.stop("chat-0-aaaaa")
    began = time.monotonic()
    node.ended("chat-0-aaaaa")
    assert time.monotonic() - began < 10


def test_a_count_that_cannot_be_read_is_taken_for_busy(node: Node, specs: Specs) -> None:
    node.start(draining(specs, drain_s=2.0, path="/no-metrics"))
    node.ready("chat-0-aaaaa")
    began = time.monotonic()
    node.stop("chat-0-aaaaa")
    node.ended("chat-0-aaaaa")
    assert time.monotonic() - began >= 2.0


def test_what_was_never_ready_is_not_drained(node: Node, specs: Specs) -> None:
    node.start(draining(specs, "--never-ready", drain_s=60.0))
    node.until("chat-0-aaaaa", lambda s: bool(s["pids"]))
    began = time.monotonic()
    node.stop("chat-0-aaaaa")
    node.ended("chat-0-aaaaa")
    assert time.monotonic() - began < 10


def test_a_shard_whose_command_ends_meanwhile_is_not_waited_for(node: Node, specs: Specs) -> None:
    node.start(draining(specs, "--crash-after", "3", drain_s=60.0, path="/no-metrics"))
    node.ready("chat-0-aaaaa")
    began = time.monotonic()
    node.stop("chat-0-aaaaa")
    node.ended("chat-0-aaaaa")
    assert time.monotonic() - began < 20


def test_a_stop_without_grace_does_not_drain(node: Node, specs: Specs) -> None:
    node.start(draining(specs, drain_s=60.0, path="/no-metrics"))
    node.ready("chat-0-aaaaa")
    node.stop("chat-0-aaaaa")
    began = time.monotonic()
    node.stop("chat-0-aaaaa", grace_s=0)
    node.ended("chat-0-aaaaa")
    assert time.monotonic() - began < 10


# --- Reading the count ------------------------------------------------------------------------

RUNNING = frozenset({"vllm:num_requests_running"})


def test_the_count_is_the_sum_over_all_labels() -> None:
    text = (
        "# HELP vllm:num_requests_running Number of requests\n"
        'vllm:num_requests_running{engine="0",model_name="a b}"} 2.0\n'
        'vllm:num_requests_running{engine="1",model_name="a b}"} 1.0 1700000000\n'
        'vllm:num_requests_running_by_reason{engine="1"} 7.0\n'
    )
    assert parse(text, RUNNING) == 3.0


def test_a_gauge_without_labels_counts() -> None:
    assert (
        parse("llamacpp:requests_processing 4\n", frozenset({"llamacpp:requests_processing"}))
        == 4.0
    )


def test_an_answer_without_the_gauge_or_with_an_odd_value_tells_nothing() -> None:
    assert parse("", RUNNING) is None
    assert parse("vllm:num_requests_running{} NaN", RUNNING) is None
    assert parse("vllm:num_requests_running{} x", RUNNING) is None
    assert parse("vllm:num_requests_running{}", RUNNING) is None
