"""A container is nobody's child here: it is found by label, waited for and ended by its runtime.

The runtime is a stand-in with podman's words (`run`, `ps`, `inspect`, `wait`, `stop`, `rm`), whose
containers are no descendants of the supervisor and carry no mark, as dockerd's do not.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.agent.harness import Json, Node, Specs, poll
from tests.agent.test_supervision import kill_supervisor

CLIENT = """#!{python} -IS
import json, socket, sys
with socket.socket(socket.AF_UNIX) as link:
    link.connect({path!r})
    link.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    code, out = json.loads(link.makefile().readline())
sys.stdout.write(out)
sys.exit(code)
"""


class Runtime:
    """The daemon: runs containers as children of the test."""

    def __init__(self, node: Node) -> None:
        self.containers: dict[str, tuple[subprocess.Popen[bytes], dict[str, str]]] = {}
        self.asked: list[str] = []
        self.mute = False
        folder = node.folder / "bin"
        folder.mkdir()
        path = str(node.folder / "podman.sock")
        tool = folder / "podman"
        tool.write_text(CLIENT.format(python=sys.executable, path=path))
        tool.chmod(0o755)
        node.env["PATH"] = f"{folder}:{node.env['PATH']}"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(path)
        self._socket.listen(64)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(link,), daemon=True).start()

    def _answer(self, link: socket.socket) -> None:
        with link:
            verb, *args = json.loads(link.recv(65536))
            self.asked.append(verb)
            answer = (1, "") if self.mute else getattr(self, "do_" + verb)(args)
            try:
                link.sendall(json.dumps(answer).encode() + b"\n")
            except OSError:
                # The client was killed meanwhile.
                return

    def do_run(self, args: list[str]) -> tuple[int, str]:
        labels, name = {}, ""
        while args[0].startswith("--"):
            option, value, *args = args
            if option == "--name":
                name = value
            elif option == "--label":
                labels.update([value.split("=", 1)])
        process = subprocess.Popen(args[1:], env={}, start_new_session=True)
        self.containers[name] = (process, labels)
        return process.wait(), ""

    def do_ps(self, args: list[str]) -> tuple[int, str]:
        wanted = args[args.index("--filter") + 1]
        names = [n for n, (process, _) in self.containers.items() if process.poll() is None]
        if wanted.startswith("name="):
            names = [n for n in names if wanted == f"name=^{n}$"]
        return 0, "".join(f"{name}\n" for name in names)

    def do_inspect(self, args: list[str]) -> tuple[int, str]:
        if any(name not in self.containers for name in args):
            return 125, ""
        shown: list[Json] = []
        for name in args:
            process, labels = self.containers[name]
            state = {"ExitCode": process.poll() or 0, "OOMKilled": process.poll() == 137}
            shown.append({"Name": "/" + name, "State": state, "Config": {"Labels": labels}})
        return 0, json.dumps(shown)

    def do_wait(self, args: list[str]) -> tuple[int, str]:
        return 0, f"{self.containers[args[0]][0].wait()}\n"

    def do_stop(self, args: list[str]) -> tuple[int, str]:
        self.containers[args[-1]][0].terminate()
        self.containers[args[-1]][0].wait()
        return 0, ""

    def do_rm(self, args: list[str]) -> tuple[int, str]:
        found = self.containers.pop(args[-1], None)
        if found is not None:
            found[0].kill()
            found[0].wait()
        return 0, ""

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for process, _ in self.containers.values():
            process.kill()
            process.wait()


@pytest.fixture
def runtime(node: Node) -> Iterator[Runtime]:
    made = Runtime(node)
    yield made
    made.close()


def contained(specs: Specs, script: str, **changes: Any) -> Json:
    """A shell script in a container of the stand-in."""
    launch = "chat-0-aaaaa"
    labels = ["--label", f"reconcile.launch={launch}", "--label", "reconcile.fleet=x"]
    argv = ["podman", "run", "--name", launch, *labels, "image", "/bin/sh", "-c", script]
    spec = specs.shell(launch, argv, **changes)
    spec["container"] = {"tool": "podman", "name": launch}
    return spec


def client_pid(node: Node) -> int:
    status = json.loads((node.root / "launches/chat-0-aaaaa/status.json").read_text())
    return int(next(p["pid"] for p in status["processes"] if p["name"] == "serve"))


def up(node: Node, runtime: Runtime) -> None:
    node.until("chat-0-aaaaa", lambda s: s["phase"] == "running" and s["pids"] != [])
    poll(lambda: "chat-0-aaaaa" in runtime.containers, bool)


def test_its_exit_is_the_shards(node: Node, runtime: Runtime, specs: Specs) -> None:
    node.start(contained(specs, "exit 7"))
    exited = node.ended("chat-0-aaaaa")["exit"]
    assert (exited["kind"], exited["code"]) == ("exited", 7)
    assert runtime.containers == {}, "recorded, then removed"


def test_an_end_for_want_of_memory_says_so(node: Node, runtime: Runtime, specs: Specs) -> None:
    node.start(contained(specs, "exit 137"))
    assert node.ended("chat-0-aaaaa")["exit"]["message"] == "out of memory"


def test_it_is_stopped_by_its_runtime(node: Node, runtime: Runtime, specs: Specs) -> None:
    node.start(contained(specs, "trap 'exit 0' TERM; while :; do sleep 0.05; done"))
    up(node, runtime)
    node.stop("chat-0-aaaaa")
    exited = node.ended("chat-0-aaaaa")["exit"]
    assert (exited["kind"], exited["code"]) == ("stopped", 0)
    assert "stop" in runtime.asked
    assert runtime.containers == {}


def test_it_lives_on_without_supervisor_and_client_and_is_adopted(
    node: Node, runtime: Runtime, specs: Specs
) -> None:
    node.start(contained(specs, "trap 'exit 0' TERM; while :; do sleep 0.05; done"))
    up(node, runtime)
    client = client_pid(node)
    kill_supervisor(node, "chat-0-aaaaa")
    os.kill(client, signal.SIGKILL)
    shard = node.until("chat-0-aaaaa", lambda s: s["pids"] == [])
    assert (shard["alive"], shard["supervised"]) == (True, False)
    assert node.adopt("chat-0-aaaaa") == "adopted"
    poll(lambda: "wait" in runtime.asked, bool)
    assert runtime.asked.count("run") == 1, "it is never started twice"
    assert node.stop("chat-0-aaaaa") == "stopping"
    assert node.ended("chat-0-aaaaa")["exit"]["kind"] == "stopped"
    assert runtime.containers == {}


def test_the_runtime_knows_the_exit_that_no_supervisor_saw(
    node: Node, runtime: Runtime, specs: Specs
) -> None:
    node.start(contained(specs, "sleep 600"))
    up(node, runtime)
    client = client_pid(node)
    kill_supervisor(node, "chat-0-aaaaa")
    os.kill(client, signal.SIGKILL)
    node.until("chat-0-aaaaa", lambda s: s["pids"] == [])
    node.adopt("chat-0-aaaaa")
    poll(lambda: "wait" in runtime.asked, bool)
    runtime.containers["chat-0-aaaaa"][0].kill()
    exited = node.ended("chat-0-aaaaa")["exit"]
    assert (exited["kind"], exited["code"]) == ("exited", -9)


def test_a_runtime_that_does_not_answer_is_not_taken_for_an_end(
    node: Node, runtime: Runtime, specs: Specs
) -> None:
    node.start(contained(specs, "trap 'exit 0' TERM; while :; do sleep 0.05; done"))
    up(node, runtime)
    client = client_pid(node)
    kill_supervisor(node, "chat-0-aaaaa")
    os.kill(client, signal.SIGKILL)
    runtime.mute = True
    shard = node.until("chat-0-aaaaa", lambda s: s["pids"] == [])
    assert shard["alive"]
    runtime.mute = False


def test_a_container_without_a_record_is_shown(node: Node, runtime: Runtime, specs: Specs) -> None:
    process = subprocess.Popen(["sleep", "600"])
    runtime.containers["ghost-0-aaaaa"] = (process, {"reconcile.launch": "ghost-0-aaaaa"})
    node.reconnect()
    shard: Callable[[], Json] = lambda: node.shards().get("ghost-0-aaaaa", {})  # noqa: E731
    found = poll(shard, bool)
    assert (found["record_error"], found["alive"]) == ("absent", True)
