"""A fleet as its user has it: a git repo, three real sshd nodes, and the `reconcile` command.

Tests say what they do in the user's words (`world.commit`, `world.reconcile("--dry-run")`) and look
at what the user can look at: exit codes, JSON output, files on nodes, HTTP answers. Nothing in here
imports the product but `LoopbackFleet` (the nodes) and the codec of its published JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from reconciler.nodes.loopback import LoopbackFleet

T = TypeVar("T")

FLEET_ID = "7d1d1f7e-8f0b-4a36-9a0e-4f4b7b4d2c11"
GPUS = 8

FLEET = {
    "kind": "Fleet",
    "name": "test",
    "version": 1,
    "id": FLEET_ID,
    "observe_timeout_s": 8,
    "lease_s": 20,
    "interval_s": 1,
    "unhealthy_after_s": 5,
    "max_parallel": "100%",
}


@dataclass(frozen=True)
class Ran:
    """One run of the command."""

    code: int
    out: str
    err: str
    seconds: float

    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)

    def __str__(self) -> str:
        return f"exit {self.code} after {self.seconds:.1f} s\n{self.out}\n{self.err}"


def until(what: str, probe: Callable[[], T | None], timeout_s: float = 30.0) -> T:
    """The first truthy answer of `probe`; fails by name when the deadline passes."""
    deadline = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline:
        last = probe()
        if last:
            return last  # type: ignore[return-value]
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout_s} s: {what} (last: {last!r})")


class World:
    """One fleet repo and its nodes."""

    def __init__(self, folder: Path, nodes: LoopbackFleet) -> None:
        self.folder, self.nodes = folder, nodes
        self.repo = folder / "repo"
        self.repo.mkdir(parents=True)
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("RECONCILE_", "GIT_"))},
            "HOME": str(folder / "operator"),
            "XDG_CACHE_HOME": str(folder / "operator" / "cache"),
            "XDG_STATE_HOME": str(folder / "operator" / "state"),
            "GIT_AUTHOR_NAME": "Ada",
            "GIT_AUTHOR_EMAIL": "ada@example.com",
            "GIT_COMMITTER_NAME": "Ada",
            "GIT_COMMITTER_EMAIL": "ada@example.com",
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        (folder / "operator").mkdir()
        self.git("init", "-q", "-b", "main")
        self.fleet()
        self.node_documents()
        self.model()
        self.profile()

    # --- the fleet repo ------------------------------------------------------------------------

    def git(self, *argv: str) -> str:
        """Runs real git in the repo."""
        done = subprocess.run(
            ["git", *argv], cwd=self.repo, env=self.env, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, f"git {argv}: {done.stderr}"
        return done.stdout.strip()

    def write(self, path: str, *documents: Mapping[str, Any] | str) -> None:
        """Documents of one file; text is written as it is."""
        file = self.repo / path
        file.parent.mkdir(parents=True, exist_ok=True)
        texts = [
            d if isinstance(d, str) else yaml.safe_dump(dict(d), sort_keys=False) for d in documents
        ]
        file.write_text("---\n".join(texts))

    def remove(self, path: str) -> None:
        """Takes a file out."""
        (self.repo / path).unlink()

    def commit(self, message: str = "change") -> str:
        """Commits everything; the hex of the commit."""
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def fleet(self, **fields: Any) -> None:
        """fleet.yaml."""
        self.write("fleet.yaml", {**FLEET, **fields})

    def node_documents(self, **changes: Mapping[str, Any]) -> None:
        """nodes/all.yaml; `changes` by node name (None takes the node out)."""
        documents = []
        for name, node in self.nodes.nodes.items():
            if name in changes and changes[name] is None:
                continue
            documents.append(
                {
                    "kind": "Node",
                    "name": name,
                    "address": node.address,
                    "pool": "sim",
                    "gpus": {"class": "sim-gpu", "count": GPUS, "source": "declared"},
                    "ssh": node.ssh_document(),
                    **changes.get(name, {}),
                }
            )
        self.write("nodes/all.yaml", *documents)

    def model(self, name: str = "tiny", **fields: Any) -> None:
        """catalog/model-NAME.yaml."""
        self.write(f"catalog/model-{name}.yaml", {"kind": "Model", "name": name, **fields})

    def profile(self, name: str = "tiny", *, args: tuple[str, ...] = (), **fields: Any) -> None:
        """catalog/profile-NAME.yaml on the sim engine: one GPU, ready at once."""
        document = {
            "kind": "Profile",
            "name": name,
            "model": "tiny",
            "engine": "sim",
            "gpu_class": "sim-gpu",
            "gpus_per_node": 1,
            "args": [
                *(("--load-time", "0.2") if fields.get("engine", "sim") == "sim" else ()),
                *args,
            ],
            "start_timeout_s": 60,
            "stop_grace_s": 5,
            **fields,
        }
        self.write(f"catalog/profile-{name}.yaml", document)

    def placement(self, name: str = "chat", **fields: Any) -> None:
        """placements/NAME.yaml."""
        document = {
            "kind": "Placement",
            "name": name,
            "profile": "tiny",
            "pool": "sim",
            "replicas": 1,
        }
        self.write(f"placements/{name}.yaml", {**document, **fields})

    # --- the command -----------------------------------------------------------------------------

    def reconcile(self, *argv: str, timeout_s: float = 60.0, code: int | None = None) -> Ran:
        """Runs `reconcile` in the repo; `code` is the exit code that it must end with."""
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "reconciler.cli", *argv],
            cwd=self.repo,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        ran = Ran(done.returncode, done.stdout, done.stderr, time.monotonic() - started)
        if code is not None:
            assert ran.code == code, f"reconcile {' '.join(argv)}: expected exit {code}, got {ran}"
        return ran

    def converge(self, timeout_s: float = 60.0) -> Ran:
        """Passes until nothing is left to do."""
        return self.reconcile(
            "--wait", "--timeout", f"{timeout_s:.0f}", timeout_s=timeout_s + 20, code=0
        )

    def plan(self, *argv: str) -> Any:
        """The dry run's JSON."""
        ran = self.reconcile("--dry-run", "--output", "json", *argv)
        assert ran.code in (0, 2, 3, 4), f"dry run: {ran}"
        return ran.json()

    def forget(self) -> None:
        """The operator's caches and state are gone, as after the loss of the control machine."""
        shutil.rmtree(self.folder / "operator")
        (self.folder / "operator").mkdir()

    def observe(self) -> Any:
        """`reconcile observe` as JSON."""
        return self.reconcile("observe").json()

    @contextmanager
    def daemon(self, *argv: str) -> Iterator[subprocess.Popen[str]]:
        """`reconcile daemon`, ended by SIGTERM unless the test did it."""
        log = (self.folder / "daemon.log").open("a")
        process = subprocess.Popen(
            [sys.executable, "-m", "reconciler.cli", "daemon", *argv],
            cwd=self.repo,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
                raise AssertionError("the daemon did not end within 15 s of SIGTERM") from None
            finally:
                log.close()

    @property
    def daemon_log(self) -> str:
        """What all daemons of this world wrote."""
        return (self.folder / "daemon.log").read_text()

    # --- what can be seen from outside ----

    def launches(self) -> dict[str, dict[str, Any]]:
        """Launch → spec, status and node, read from the nodes' own folders."""
        found: dict[str, dict[str, Any]] = {}
        for name, node in self.nodes.nodes.items():
            for folder in sorted((node.root / "launches").glob("*")):
                with suppress(OSError, ValueError):
                    spec = json.loads((folder / "spec.json").read_text())
                    status = json.loads((folder / "status.json").read_text())
                    entry = found.setdefault(
                        folder.name, {"replica": spec["replica"], "shards": {}}
                    )
                    entry["shards"][name] = {"spec": spec, "status": status, "folder": folder}
        return found

    def living(self) -> dict[str, dict[str, Any]]:
        """The launches of which a shard has not ended, nor died with its node."""

        def lives(node: str, shard: dict[str, Any]) -> bool:
            status = shard["status"]
            return status["phase"] != "ended" and status["boot_id"] == self.nodes[node].boot_id

        return {
            launch: entry
            for launch, entry in self.launches().items()
            if any(lives(node, shard) for node, shard in entry["shards"].items())
        }

    def commit_in_force(self) -> str | None:
        """The commit that the leases on all nodes name, once they agree."""
        commits = set()
        for node in self.nodes.nodes.values():
            with suppress(OSError, ValueError):
                lease = json.loads((node.root / f"lease-{FLEET_ID}.json").read_text())
                commits.add(lease.get("revision", ""))
        return commits.pop() if len(commits) == 1 and commits != {""} else None

    def urls(self) -> dict[str, str]:
        """Launch → base URL of the rank that serves."""
        urls = {}
        for launch, entry in self.living().items():
            for shard in entry["shards"].values():
                health = shard["spec"].get("health")
                if health:
                    urls[launch] = f"http://{health['host']}:{health['port']}"
        return urls

    def ready(self) -> dict[str, str]:
        """Launch → URL of those whose health path answers 200 now."""
        return {launch: url for launch, url in self.urls().items() if healthy(url)}


def healthy(url: str) -> bool:
    """One GET of /health."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def chat(url: str, model: str, text: str = "hello") -> dict[str, Any]:
    """One chat completion."""
    messages = [{"role": "user", "content": text}]
    body = json.dumps({"model": model, "messages": messages, "max_tokens": 16}).encode()
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        reply: dict[str, Any] = json.load(answer)
        return reply
