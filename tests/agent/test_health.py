"""Ready is a fresh, good answer of the shard's own process for the right model."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from reconciler.agent import health, netlink
from reconciler.agent.spec import HealthCheck
from tests.agent.harness import PORTS, Node, Specs, poll


def test_loading_is_not_ready(node: Node, specs: Specs) -> None:
    node.start(specs.sim("chat-0-aaaaa", "--load-time", "1"))
    shard = node.until("chat-0-aaaaa", lambda s: s["health"]["detail"] == "/health: 503")
    assert (shard["phase"], shard["ever_ready"]) == ("starting", False)
    assert shard["health"]["failing_for_s"] == 0, "failing counts only after having been ready"
    shard = node.ready("chat-0-aaaaa")
    assert (shard["phase"], shard["ever_ready"], shard["fresh"]) == ("running", True, True)


def test_a_ready_shard_that_turns_unhealthy_says_for_how_long(node: Node, specs: Specs) -> None:
    node.start(specs.sim("chat-0-aaaaa", "--unhealthy-after", "0.5"))
    node.ready("chat-0-aaaaa")
    shard = node.until("chat-0-aaaaa", lambda s: s["health"]["failing_for_s"] > 1)
    assert not shard["health"]["ok"]
    assert shard["health"]["detail"] == "/health: 500"
    assert shard["phase"] == "running"
    assert shard["log_tail"]


def test_the_wrong_model_on_the_right_port_is_not_ready(node: Node, specs: Specs) -> None:
    spec = specs.sim("chat-0-aaaaa", "--served-model-name", "other", "more")
    node.start(spec)
    node.until("chat-0-aaaaa", lambda s: s["health"]["detail"] == "serves more, other, not chat")


def test_any_served_name_counts(node: Node, specs: Specs) -> None:
    node.start(specs.sim("chat-0-aaaaa", "--served-model-name", "first", "chat"))
    assert node.ready("chat-0-aaaaa")["health"]["ok"]


def test_a_stranger_who_answers_on_the_port_does_not_make_it_ready(
    node: Node, specs: Specs
) -> None:
    """The older server was started by hand after the preflight: it has the port, and is healthy."""
    spec = specs.shell("chat-0-aaaaa", ["sleep", "600"])
    port = next(PORTS)
    spec["health"] = {
        "host": node.address, "port": port, "path": "/health", "model": "chat", "interval_s": 0.2,
    }  # fmt: skip
    agent = node.ask("hello")["agent"]
    argv = [sys.executable, "-I", agent, "sim", "--host", node.address, "--port", str(port)]
    stranger = subprocess.Popen(
        [*argv, "--served-model-name", "chat"], stdout=subprocess.DEVNULL, env={"PATH": "/usr/bin"}
    )
    try:
        poll(lambda: _connects(node.address, port), bool)
        node.start(spec)
        wanted = f"port {port} is answered by another process"
        shard = node.until("chat-0-aaaaa", lambda s: s["health"]["detail"] == wanted)
        assert not shard["ever_ready"]
    finally:
        stranger.kill()
        stranger.wait()


def _connects(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def test_a_frozen_engine_is_not_ready(node: Node, specs: Specs) -> None:
    node.start(specs.sim("chat-0-aaaaa"))
    (pid,) = node.ready("chat-0-aaaaa")["pids"]
    os.kill(pid, signal.SIGSTOP)
    node.until("chat-0-aaaaa", lambda s: not s["fresh"] or not s["health"]["ok"], 30)
    os.kill(pid, signal.SIGCONT)
    node.until("chat-0-aaaaa", lambda s: s["fresh"] and s["health"]["ok"])


def test_a_frozen_supervisor_is_not_fresh(node: Node, specs: Specs) -> None:
    node.start(specs.sim("chat-0-aaaaa"))
    node.ready("chat-0-aaaaa")
    pid = node.supervisor("chat-0-aaaaa")
    os.kill(pid, signal.SIGSTOP)
    shard = node.until("chat-0-aaaaa", lambda s: not s["fresh"])
    assert shard["alive"]
    os.kill(pid, signal.SIGCONT)
    node.until("chat-0-aaaaa", lambda s: s["fresh"])


# --- One exchange -----------------------------------------------------------------------------


@contextmanager
def answering(address: str, serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that does to each connection what `serve` does."""
    listener = socket.socket()
    listener.bind((address, 0))
    listener.listen()

    def run() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(65536)
                    serve(connection)
                except OSError:
                    continue

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def ask(port: int, deadline_s: float = 5.0) -> health.Reply:
    """Drive one exchange to its end."""
    import select

    exchange = health.Exchange("127.0.0.1", port, "/health")
    until = time.monotonic() + deadline_s
    while exchange.reply is None:
        poller = select.poll()
        poller.register(*exchange.events)
        if time.monotonic() > until:
            exchange.give_up("late")
        elif poller.poll(50):
            exchange.step()
    return exchange.reply


@pytest.mark.parametrize(
    ("sent", "status", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok"),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", 200, b"until the end"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", 503, b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", 200, b"ab"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", 200, b""),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", 0, b""),
        (b"", 0, b""),
        (b"HTTP/1.1 20", 0, b""),
    ],
)
def test_answers_of_every_kind_are_read(sent: bytes, status: int, body: bytes) -> None:
    with answering("127.0.0.1", lambda connection: connection.sendall(sent)) as port:
        reply = ask(port)
    assert (reply.status, reply.body) == (status, body)
    whole = status == 200 and (body != b"" or b"Length" in sent)
    assert bool(reply.error) is not (whole or status == 503)


def test_an_endless_answer_is_cut_off() -> None:
    def pour(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)

    with answering("127.0.0.1", pour) as port:
        assert "longer than" in ask(port).error


def test_a_server_that_trickles_meets_the_deadline() -> None:
    def trickle(connection: socket.socket) -> None:
        while True:
            connection.sendall(b"H")
            time.sleep(0.01)

    with answering("127.0.0.1", trickle) as port:
        assert ask(port, deadline_s=0.3).error == "late"


def test_a_probe_expires() -> None:
    with answering("127.0.0.1", lambda connection: time.sleep(1)) as port:
        probe = health.Probe(HealthCheck("127.0.0.1", port, "/health", "", 5.0), 0.0, None)
        probe.expire(health.DEADLINE_S + 0.1)
    assert probe.result == health.Result(False, "/health: no answer within 10 s")


def test_names_are_ids_and_aliases() -> None:
    body = b'{"data": [{"id": "a", "aliases": ["b", "c"]}, {"id": "d"}]}'
    assert health.model_names(body) == {"a", "b", "c", "d"}
    for odd in (b"", b"[]", b'{"data": 3}', b'{"data": [3]}', b"[" * 100_000, b'{"data": [{}]}'):
        assert health.model_names(odd) == set()


def test_listeners_are_found_with_their_addresses() -> None:
    with socket.socket() as plain, socket.socket(socket.AF_INET6) as both:
        plain.bind(("127.0.0.1", 0))
        plain.listen()
        both.bind(("::1", 0))
        both.listen()
        found = {(s.address, s.port): s.inode for s in netlink.listeners()}
        for bound in (plain, both):
            host, port = bound.getsockname()[:2]
            assert found[(host, port)] == os.fstat(bound.fileno()).st_ino


def test_whoever_shares_the_port_is_a_stranger() -> None:
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        ours.listen()
        port = ours.getsockname()[1]
        assert health.stranger_on("127.0.0.1", port, [os.getpid()]) == ""
        assert "answered by another process" in health.stranger_on("127.0.0.1", port, [])
