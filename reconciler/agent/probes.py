"""Asks probe children within a deadline; one that hangs is killed and replaced later.

A child in an uninterruptible call survives even KILL: it is left behind, and there are never more
than `MAX_LEFT_BEHIND` of a kind.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from typing import List, NamedTuple, Optional

from .wire import Json

RETRY_S = 30.0
"""After a hang, how long the kind is not asked again: each try costs a whole deadline."""

MAX_LEFT_BEHIND = 3


class Reply(NamedTuple):
    """What came within the deadline. `error` is empty only where the child said it was done."""

    parts: List[Json]
    error: str


class Probe:
    """One kind of question with its child process, started when first asked and kept."""

    def __init__(self, agent: str, kind: str) -> None:
        self._command = [sys.executable, "-I", agent, "probe", kind]
        self._kind = kind
        self._child: Optional[subprocess.Popen] = None  # type: ignore[type-arg]
        self._hung: List[subprocess.Popen] = []  # type: ignore[type-arg]
        self._quiet_until = 0.0
        self._buffer = b""
        self._waiting = False
        self._refused = ""

    def ask(self, request: Json, deadline_s: float) -> Reply:
        """All parts that the child gave before `deadline_s` was over. Never raises, never hangs."""
        self.begin(request)
        return self.finish(deadline_s)

    def begin(self, request: Json) -> None:
        """Ask; `finish` has the answer. What an earlier `begin` asked for is given up."""
        if self._waiting and self._child is not None:
            self._drop(hung=False)
        self._waiting = False
        wait = self._quiet_until - time.monotonic()
        if wait > 0:
            self._refused = "%s hung before; asked again in %.0f s" % (self._kind, wait)
            return
        try:
            child = self._running()
            if child is None:
                self._refused = "%s: %d probes hang" % (self._kind, len(self._hung))
                return
            assert child.stdin is not None
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
            self._waiting = True
        except OSError as error:
            self._fail(error)

    def finish(self, deadline_s: float) -> Reply:
        """What the child answers to the last `begin` within so many seconds from now."""
        child = self._child
        if not self._waiting or child is None:
            return Reply([], self._refused or "%s: not asked" % self._kind)
        self._waiting, self._refused = False, ""
        try:
            return self._collect(child, time.monotonic() + deadline_s, deadline_s)
        except OSError as error:
            self._fail(error)
            return Reply([], self._refused)

    def _fail(self, error: OSError) -> None:
        if self._child is not None:
            self._drop(hung=False)
        self._refused = "%s: probe failed: %s" % (self._kind, error)

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._drop(hung=False)

    def _running(self) -> "Optional[subprocess.Popen]":  # type: ignore[type-arg]
        self._hung = [child for child in self._hung if child.poll() is None]
        if self._child is not None and self._child.poll() is not None:
            self._drop(hung=False)
        if self._child is None:
            if len(self._hung) >= MAX_LEFT_BEHIND:
                return None
            self._buffer = b""
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self._child

    def _collect(self, child: "subprocess.Popen", until: float, deadline_s: float) -> Reply:  # type: ignore[type-arg]
        assert child.stdout is not None
        fd = child.stdout.fileno()
        parts: List[Json] = []
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        while True:
            while b"\n" in self._buffer:
                line, _, self._buffer = self._buffer.partition(b"\n")
                part = json.loads(line)
                if part.get("done"):
                    return Reply(parts, str(part.get("error", "")))
                parts.append(part)
            left = until - time.monotonic()
            if left <= 0 or not poller.poll(max(1, left * 1000)):
                self._drop(hung=True)
                self._quiet_until = time.monotonic() + RETRY_S
                return Reply(parts, "%s did not answer within %.1f s" % (self._kind, deadline_s))
            data = os.read(fd, 65536)
            if not data:
                code = child.wait(1)
                self._drop(hung=False)
                return Reply(parts, "%s: the probe ended with %d" % (self._kind, code))
            self._buffer += data

    def _drop(self, *, hung: bool) -> None:
        child, self._child = self._child, None
        assert child is not None
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass
        try:
            child.wait(0.2 if hung else 1)
        except subprocess.TimeoutExpired:
            self._hung.append(child)


class Probes:
    """The two kinds of question."""

    def __init__(self, agent: str) -> None:
        self.nvml = Probe(agent, "nvml")
        self.system = Probe(agent, "system")

    def close(self) -> None:
        """End both children."""
        self.nvml.close()
        self.system.close()
