"""Starts what specs say, as a node would: in order, each command waiting for its port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from reconciler.core.changes import ShardSpec

DEADLINE_S = 180.0

Wrap = Callable[[ShardSpec, Sequence[str]], list[str]]
"""How a rank's command is run here: in a chroot, in a network namespace."""


class Running:
    """All processes of one launch; ends every one of them, children too."""

    def __init__(self, specs: Sequence[ShardSpec], logs: Path, wrap: Wrap) -> None:
        self._specs = specs
        self._logs = logs
        self._wrap = wrap
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Running:
        waiting = [(shard, command) for shard in self._specs for command in shard.spec["commands"]]
        deadline = time.monotonic() + DEADLINE_S
        while waiting:
            assert time.monotonic() < deadline, f"never started: {waiting}\n{self.log()}"
            ready = [
                (shard, command)
                for shard, command in waiting
                if self._may_start(shard, command["wait_for"])
            ]
            for shard, command in ready:
                self._start(shard, command)
                waiting.remove((shard, command))
            time.sleep(0.1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes.values():
                try:
                    os.killpg(process.pid, number)
                except ProcessLookupError:
                    pass
            end = time.monotonic() + 15
            while time.monotonic() < end and any(p.poll() is None for p in self.processes.values()):
                time.sleep(0.1)

    def _may_start(self, shard: ShardSpec, wait_for: Mapping[str, Any] | None) -> bool:
        if wait_for is None:
            return True
        probe = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"
        argv = ["python3", "-c", probe, wait_for["host"], str(wait_for["port"])]
        inside = self._wrap(shard, argv)
        if inside[0] == "chroot":
            inside = argv
        return subprocess.run(inside, stderr=subprocess.DEVNULL, check=False).returncode == 0

    def _start(self, shard: ShardSpec, command: Mapping[str, Any]) -> None:
        name = f"{shard.spec['rank']}-{command['name']}"
        base = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
        with open(self._logs / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                self._wrap(shard, command["argv"]),
                env={**base, **command["env"]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self) -> str:
        """The end of every log."""
        texts = (p.read_text(errors="replace")[-3000:] for p in sorted(self._logs.glob("*.log")))
        return "\n---\n".join(texts)

    def ended(self) -> list[str]:
        """Processes that ended by themselves."""
        return [name for name, process in self.processes.items() if process.poll() is not None]

    def wait_ready(self, health: Mapping[str, Any], seconds: float = DEADLINE_S) -> None:
        """Until the health path answers 200. Fails at once where a process has ended."""
        url = f"http://{health['host']}:{health['port']}{health['path']}"
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert not self.ended(), f"{self.ended()} ended:\n{self.log()}"
            if get(url) is not None:
                return
            time.sleep(0.3)
        raise AssertionError(f"not ready after {seconds} s:\n{self.log()}")


def get(url: str, data: bytes | None = None, timeout_s: float = 60) -> bytes | None:
    """The body of a 200; None for anything else."""
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return bytes(answer.read()) if answer.status == 200 else None
    except OSError:
        return None


def free(address: str, port: int) -> bool:
    """Whether nothing listens there."""
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) != 0
