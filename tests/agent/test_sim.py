"""The sim engine behaves as engines do where a reconciler, a client or a scraper can tell."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.harness import PORTS, poll

NET = f"127.83.{os.getpid() % 250}"
"""Of this process: others run the same tests at the same time, and ports are told apart by it."""
ADDRESS = f"{NET}.1"
ENGINE = [sys.executable, "-m", "reconciler.agent", "sim"]


class Sim:
    """One sim process."""

    def __init__(self, *options: str, host: str = ADDRESS, port: int = 0) -> None:
        self.port = port or next(PORTS)
        self.url = f"http://{host}:{self.port}"
        self.process = subprocess.Popen(
            [*ENGINE, f"--host={host}", f"--port={self.port}", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def status(self, path: str = "/health") -> int:
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    def ready(self) -> Sim:
        poll(self.status, lambda status: status == 200)
        return self

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=5) as reply:
            return bytes(reply.read())

    def chat(self, text: str = "hello there", **fields: Any) -> bytes:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        request = urllib.request.Request(
            self.url + "/v1/chat/completions", data=json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=20) as reply:
            return bytes(reply.read())

    def end(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=20)
        return self.process.returncode, out.decode()


@pytest.fixture
def sims() -> Iterator[list[Sim]]:
    """Sims of a test; ended with it."""
    started: list[Sim] = []
    yield started
    for sim in started:
        sim.process.kill()
        sim.process.communicate()


def test_it_loads_then_serves_its_names(sims: list[Sim]) -> None:
    sim = Sim("--load-time", "0.5", "--served-model-name", "a", "b", "--context", "99")
    sims.append(sim)
    poll(sim.status, lambda status: status == 503)
    sim.ready()
    models = json.loads(sim.get("/v1/models"))["data"]
    assert [(m["id"], m["max_model_len"]) for m in models] == [("a", 99), ("b", 99)]


def test_it_chats(sims: list[Sim]) -> None:
    sims.append(Sim())
    answer = json.loads(sims[0].ready().chat())
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": "You said: hello there",
    }
    assert answer["usage"]["total_tokens"] == 6


def test_it_streams(sims: list[Sim]) -> None:
    sims.append(Sim())
    lines = sims[0].ready().chat(stream=True).decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    events = [json.loads(line.partition("data: ")[2]) for line in lines[:-2]]
    words = [event["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(words) == "You said: hello there"
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"model": "nope"}, 404), ({"messages": []}, 400), ({"text": "w " * 20}, 400)],
)
def test_it_refuses_what_an_engine_refuses(
    sims: list[Sim], fields: dict[str, Any], status: int
) -> None:
    sims.append(Sim("--context", "10"))
    with pytest.raises(urllib.error.HTTPError) as caught:
        sims[0].ready().chat(**fields)
    with caught.value as error:
        assert error.code == status


def test_its_metrics_have_vllms_names(sims: list[Sim]) -> None:
    sims.append(Sim("--token-time", "0.2"))
    sim = sims[0].ready()

    def gauge(name: str) -> float:
        found = re.search(rf"(?m)^vllm:{name}{{.*}} (\S+)$", sim.get("/metrics").decode())
        assert found, name
        return float(found[1])

    thread = threading.Thread(target=sim.chat)
    thread.start()
    poll(lambda: gauge("num_requests_running"), lambda running: running == 1)
    thread.join()
    assert gauge("num_requests_running") == gauge("num_requests_waiting") == 0
    assert (gauge("prompt_tokens_total"), gauge("generation_tokens_total")) == (2, 4)
    assert gauge("request_success_total") == 1


def test_term_lets_running_requests_finish(sims: list[Sim]) -> None:
    sims.append(Sim("--token-time", "0.2"))
    sim = sims[0].ready()
    answers: list[bytes] = []
    thread = threading.Thread(target=lambda: answers.append(sim.chat()))
    thread.start()
    time.sleep(0.3)
    sim.process.send_signal(signal.SIGTERM)
    poll(sim.status, lambda status: status == 0)
    thread.join()
    assert json.loads(answers[0])["choices"][0]["finish_reason"] == "stop"
    ended = time.monotonic()
    assert sim.end()[0] == 0
    assert time.monotonic() - ended < 1


def test_term_while_loading_is_a_clean_end(sims: list[Sim]) -> None:
    sims.append(Sim("--load-time", "60"))
    poll(sims[0].status, lambda status: status == 503)
    sims[0].process.send_signal(signal.SIGTERM)
    assert sims[0].end()[0] == 0


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--fail"], 1, "failed to load"),
        (["--fail", "--fail-code", "42", "--fail-message", "no such quantization"], 42, "no such"),
        (["--crash-after", "0.3"], 1, "crash, as asked for"),
        (["--nope"], 2, "unrecognized arguments: --nope"),
        (["--load"], 2, "unrecognized arguments: --load"),
    ],
)
def test_it_fails_as_it_is_told(sims: list[Sim], options: list[str], code: int, said: str) -> None:
    sims.append(Sim(*options))
    ended, out = sims[0].end()
    assert ended == code
    assert said in out


def test_it_can_stay_unready_and_turn_unhealthy(sims: list[Sim]) -> None:
    sims += [Sim("--never-ready"), Sim("--unhealthy-after", "0.3")]
    sims[1].ready()
    poll(sims[1].status, lambda status: status == 500)
    assert sims[0].status() == 503


def test_it_binds_its_own_address_only_and_shares_no_port(sims: list[Sim]) -> None:
    sims.append(Sim())
    sims[0].ready()
    with socket.socket() as other:
        assert other.connect_ex(("127.83.0.9", sims[0].port)) != 0
    second = Sim(port=sims[0].port)
    sims.append(second)
    code, out = second.end()
    assert code == 1
    assert "couldn't bind" in out


# --- More than one node -----------------------------------------------------------------------


def pair(sims: list[Sim]) -> tuple[Sim, Sim]:
    """A leader and its one worker, each on an address of its own."""
    sync = next(PORTS)
    leader = Sim("--nodes", "2", "--rank", "0", "--sync-port", str(sync))
    options = ("--nodes", "2", "--rank", "1", "--leader", f"{ADDRESS}:{sync}")
    sims += [leader, Sim(*options, host=f"{NET}.2")]
    return sims[0], sims[1]


def test_the_leader_is_ready_once_all_workers_have_joined(sims: list[Sim]) -> None:
    sync = next(PORTS)
    leader = Sim("--nodes", "2", "--sync-port", str(sync))
    sims.append(leader)
    poll(leader.status, lambda status: status == 503)
    time.sleep(0.5)
    assert leader.status() == 503
    worker = Sim("--nodes", "2", "--rank", "1", "--leader", f"{ADDRESS}:{sync}", host=f"{NET}.2")
    sims.append(worker)
    leader.ready()
    assert worker.status() == 0, "ranks above 0 serve nothing"


def test_a_lost_worker_ends_the_leader(sims: list[Sim]) -> None:
    leader, worker = pair(sims)
    leader.ready()
    worker.process.kill()
    code, out = leader.end()
    assert code == 1
    assert "a worker is lost" in out


def test_a_lost_leader_ends_the_worker(sims: list[Sim]) -> None:
    leader, worker = pair(sims)
    leader.ready()
    leader.process.kill()
    code, out = worker.end()
    assert code == 1
    assert "the leader is gone" in out


def test_a_worker_waits_for_its_leader(sims: list[Sim]) -> None:
    sync = next(PORTS)
    sims.append(Sim("--rank", "1", "--nodes", "2", "--leader", f"{ADDRESS}:{sync}"))
    time.sleep(0.5)
    assert sims[0].process.poll() is None
    sims[0].process.send_signal(signal.SIGTERM)
    assert sims[0].end()[0] == 0
