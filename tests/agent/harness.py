"""A node without SSH: the real bootstrap, agent, supervisor and engines in processes of this test.

What SSH adds (a channel, a login shell) is tested over real sshd elsewhere; everything behind it is
what runs on nodes. Each node has a machine id, a boot id, a root and a loopback address of its own.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from reconciler.agent import bootstrap, cgroup, package, procs

FLEET = "6f1c3c1e-5a1f-4c6e-9a56-0d3a3f4f2b11"
OWNER = "tester"
MARKER = "m4rk3r"
DEADLINE_S = 30.0

Json = dict[str, Any]


class Refused(Exception):
    """The agent's answer was an error."""

    def __init__(self, error: Json) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: str = error["code"]
        self.message: str = error["message"]
        self.findings: list[str] = error["findings"]


class Session:
    """One agent process, spoken to as the reconciler does over one channel."""

    def __init__(
        self,
        env: dict[str, str],
        root: str = "",
        python: str = sys.executable,
        agent: tuple[bytes, str] | None = None,
        previous: Sequence[str] = (),
        within: Sequence[str] = (),
    ) -> None:
        self.process = subprocess.Popen(
            [*within, python, "-ISqi"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            start_new_session=True,
        )
        self._buffer = b""
        self.noise: list[bytes] = []
        data, digest = agent or package.build()
        self.uploaded = False
        self._write(bootstrap.line(MARKER, digest, root, previous))
        self.first = self.receive()
        if self.first["bootstrap"] == "need":
            self.uploaded = True
            self._write(bootstrap.upload(data))
            self.first = self.receive()

    def ask(self, op: str, /, **fields: Any) -> Any:
        """The result of a request; Refused where the agent refuses."""
        self.send(op, **fields)
        answer = self.receive()
        if not answer["ok"]:
            raise Refused(answer["error"])
        return answer["result"]

    def send(self, op: str, /, **fields: Any) -> None:
        self._write(json.dumps({"id": 1, "op": op, **fields}))

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def receive(self, deadline_s: float = DEADLINE_S) -> Json:
        """The next framed answer."""
        until = time.monotonic() + deadline_s
        while True:
            line = self.read_line(until)
            if not line.startswith(b"\x1eRECONCILE " + MARKER.encode()):
                self.noise.append(line)
                continue
            _, _, size, text = line.rstrip(b"\n").split(b" ", 3)
            assert int(size) == len(text)
            return dict(json.loads(text))

    def read_line(self, until: float) -> bytes:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            assert left > 0, "no answer in time"
            if select.select([fd], [], [], left)[0]:
                data = os.read(fd, 65536)
                assert data, f"the agent ended with {self.process.wait()}"
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line + b"\n"

    def close(self) -> None:
        """End the session as a closed channel does."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Node:
    """A node under test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machine_id = uuid.uuid4().hex
        # Drawn by the machine id: other tests run on this machine, and ports are told apart by it.
        drawn = int(self.machine_id[:6], 16)
        self.address = f"127.{128 + drawn % 127}.{drawn >> 8 & 255}.{1 + (drawn >> 16) % 250}"
        self.identity = folder / "identity"
        self.identity.mkdir(parents=True)
        (self.identity / "machine-id").write_text(self.machine_id + "\n")
        self.boot()
        self.root = folder / "root"
        self.previous: list[Path] = []
        """Former roots, as a Node document names them."""
        self.within: Sequence[str] = ()
        """A command that runs the agent, for one that lives in namespaces of its own."""
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "RECONCILE_IDENTITY_DIR": str(self.identity),
            "RECONCILE_ROOT": str(self.root),
        }
        self._sessions: list[Session] = []
        self._main: Session | None = None

    def boot(self) -> None:
        """Give it another boot id, as a reboot does (its processes are not touched)."""
        (self.identity / "boot_id").write_text(str(uuid.uuid4()) + "\n")

    def seed(self, kept: Path) -> None:
        """Give it the agent as an earlier test's node has it: to compile it takes half a second."""
        if not kept.exists():
            self.ask("hello")
            self.ask("hello")
            shutil.copytree(self.root / "agent", kept)
        else:
            self.root.mkdir(mode=0o700)
            shutil.copytree(kept, self.root / "agent")

    def session(self, agent: tuple[bytes, str] | None = None) -> Session:
        previous = [str(path) for path in self.previous]
        session = Session(self.env, agent=agent, previous=previous, within=self.within)
        self._sessions.append(session)
        return session

    def ask(self, op: str, /, **fields: Any) -> Any:
        """Over one kept session."""
        if self._main is None:
            self._main = self.session()
        return self._main.ask(op, **fields)

    def reconnect(self) -> None:
        """The next request goes over a new session."""
        if self._main is not None:
            self._main.close()
        self._main = None

    def move(self, root: Path) -> None:
        """Another root from the next request on; the one before is a former one."""
        self.previous.insert(0, self.root)
        self.root = root
        self.env["RECONCILE_ROOT"] = str(root)
        self.reconnect()

    # --- Acting as a reconciler ---------------------------------------------------------------

    def lease(self, owner: str = OWNER, ttl_s: float = 600, **fields: Any) -> Json:
        fields = {"fleet": FLEET, "action": "acquire", "owner": owner, "ttl_s": ttl_s, **fields}
        return dict(self.ask("lease", **fields))

    def fence(self) -> Json:
        """A living lease's fence."""
        return {"fleet": FLEET, "owner": OWNER, "epoch": self.lease()["epoch"]}

    def start(self, spec: Json, **labels: Any) -> str:
        return str(self.ask("start", **self.fence(), spec=spec, labels=labels)["state"])

    def stop(self, launch: str, **fields: Any) -> str:
        return str(self.ask("stop", **self.fence(), launch=launch, **fields)["state"])

    def adopt(self, launch: str) -> str:
        return str(self.ask("adopt", **self.fence(), launch=launch)["state"])

    def shards(self) -> dict[str, Json]:
        answer = self.ask("observe", parts=["shards"])
        assert answer.get("shards_error", "") == ""
        return {shard["launch"]: shard for shard in answer["shards"]}

    def shard(self, launch: str) -> Json:
        return self.shards()[launch]

    def until(
        self, launch: str, what: Callable[[Json], bool], deadline_s: float = DEADLINE_S
    ) -> Json:
        """The shard once `what` holds of it."""
        return poll(lambda: self.shard(launch), what, deadline_s)

    def ready(self, launch: str) -> Json:
        return self.until(launch, lambda s: s["health"]["ok"] or s["phase"] == "ended")

    def ended(self, launch: str) -> Json:
        return self.until(launch, lambda s: s["phase"] == "ended" and not s["alive"])

    # --- What is left -------------------------------------------------------------------------

    def processes(self) -> list[int]:
        """Everything alive that carries this machine's id: shards and supervisors."""
        needle = f"@{self.machine_id}".encode()
        found = []
        for pid in procs.all_pids():
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            if needle in environ:
                found.append(pid)
        return found

    def supervisor(self, launch: str) -> int:
        status = json.loads((self.root / "launches" / launch / "status.json").read_text())
        return int(status["supervisor"]["pid"])

    def close(self) -> None:
        """End all that this node runs; by pid, each checked by its environment."""
        for session in self._sessions:
            session.close()
        until = time.monotonic() + 10
        while time.monotonic() < until:
            left = self.processes()
            if not left:
                self._remove_groups()
                return
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)
        raise AssertionError(f"left behind: {left}")

    def _remove_groups(self) -> None:
        """Empty groups of supervisors that were killed; each is named in its launch's status."""
        roots = [self.root, *self.previous]
        for path in [path for root in roots for path in root.glob("launches/*/status.json")]:
            try:
                group = str(json.loads(path.read_text()).get("cgroup") or "")
            except ValueError:
                continue
            if group:
                cgroup.remove(group)


def poll(
    ask: Callable[[], Any], what: Callable[[Any], bool], deadline_s: float = DEADLINE_S
) -> Any:
    """The first answer for which `what` holds; the last one is shown where none does."""
    until = time.monotonic() + deadline_s
    while True:
        found = ask()
        if what(found):
            return found
        assert time.monotonic() < until, f"did not come true within {deadline_s} s: {found}"
        time.sleep(0.03)


def gone(pid: int) -> bool:
    """Whether the process has ended (a zombie has)."""
    found = procs.stat(pid)
    return found is None or found.dead


PORTS = iter(range(21000, 29000))
"""Each test gets ports of its own; nodes have addresses of their own besides."""


def ports() -> Iterator[int]:
    return PORTS


def on_gpu(spec: Json, *uuids: str) -> Json:
    """The spec with these GPUs, by NVML; the command is told their indices."""
    spec["gpu_source"] = "nvml"
    spec["places"][0]["gpus"] = list(uuids)
    spec["commands"][-1]["gpu_env"] = ["CUDA_VISIBLE_DEVICES"]
    return spec


class Specs:
    """Makes spec.json contents for one node."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def sim(self, launch: str = "chat-0-aaaaa", *options: str, **changes: Any) -> Json:
        """The sim engine as one rank, ready at once."""
        port = next(PORTS)
        _, digest = package.build()
        agent = str(self.node.root / "agent" / f"{digest}.pyz")
        argv = [sys.executable, "-I", agent, "sim", "--host", self.node.address]
        argv += ["--port", str(port), "--served-model-name", "chat", *options]
        health = {"host": self.node.address, "port": port, "path": "/health", "model": "chat"}
        spec = self.shell(launch, argv, port=port, **changes)
        spec["health"] = {**health, "interval_s": 0.2, **changes.get("health", {})}
        return spec

    def shell(self, launch: str, argv: list[str], *, port: int = 0, **changes: Any) -> Json:
        """Any command, without a health path."""
        place = {
            "rank": 0,
            "node": "node-a",
            "machine_id": self.node.machine_id,
            "gpus": [],
            "ports": {"http": port} if port else {},
            "address": self.node.address,
        }
        spec: Json = {
            "format": "1.0",
            "fleet": FLEET,
            "launch": launch,
            "replica": launch.rsplit("-", 1)[0],
            "seq": 1,
            "rank": 0,
            "places": [place],
            "mode": "plain",
            "restart": "",
            "fingerprint": "p1:" + "0" * 64,
            "profile": {"profile": {}, "model": {}},
            "gpu_source": "declared",
            "gpu_index": {},
            "address": self.node.address,
            "network": {"interface": ""},
            "commands": [
                {"name": "serve", "argv": argv, "env": {}, "wait_for": None, "gpu_env": []}
            ],
            "files": [],
            "container": None,
            "health": None,
            "require_paths": [],
            "start_timeout_s": 60,
            "stop_grace_s": 5,
            "drain_s": 0,
            "stop_signal": "TERM",
        }
        spec.update({k: v for k, v in changes.items() if k != "health"})
        return spec
