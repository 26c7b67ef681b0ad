"""One session with a reconciler: requests on stdin, framed answers on stdout, until stdin ends.

What it started lives on when it ends. The one place where an unexpected exception becomes an
answer.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import Callable, Dict, Iterator, Mapping, TextIO

from . import (
    VERSION,
    compiled,
    hold,
    journal,
    lease,
    locks,
    logs,
    records,
    releases,
    secretfiles,
    wire,
)
from .acts import Actor
from .node import FORMAT, Node, boottime
from .observe import PARTS, Observer
from .probes import Probes
from .spec import LAUNCH
from .wire import AgentError, Fields, Json

JOURNALED = ("start", "stop", "relabel", "adopt", "hold", "lease")
ASKED_OFTEN = ("renew", "update")
"""Lease actions that are not journaled: a renewal each twenty seconds would push all else out."""

DEFAULT_DEADLINE_S = 20.0


class Session:
    """The operations, by name."""

    def __init__(self, node: Node, env: Mapping[str, str]) -> None:
        self.node = node
        self.probes = Probes(node.runs_from)
        self.observer = Observer(node, self.probes)
        self.actor = Actor(node, self.observer, self.probes, env)
        self._last_lease: object = None
        self.ops: Dict[str, Callable[[Json], object]] = {
            "hello": self.hello,
            "observe": self.observe,
            "lease": self.lease,
            "hold": self.hold,
            "check": self.actor.check,
            "start": self.actor.start,
            "stop": self.actor.stop,
            "relabel": self.actor.relabel,
            "adopt": self.actor.adopt,
            "logs": self.logs,
            "journal": self.journal,
        }

    def close(self) -> None:
        """End the probe children."""
        self.probes.close()

    def answer(self, line: str) -> Json:
        """The answer to one request line, whatever happens."""
        request: Json = {}
        try:
            request = wire.parse_request(line)
            op = self.ops.get(request["op"])
            if op is None:
                raise AgentError(
                    "unknown-op", "op %r: known are %s" % (request["op"], ", ".join(self.ops))
                )
            result = op(request)
        except AgentError as error:
            answer = wire.failure(request.get("id"), error)
            self._note(request, error.code, error.message)
        except Exception as error:  # noqa: BLE001 - the one edge: a bug must not end the session
            text = "%s: %s" % (type(error).__name__, error)
            where = traceback.extract_tb(error.__traceback__)[-1]
            text += " (%s:%s)" % (os.path.basename(where.filename), where.lineno)
            answer = wire.failure(request.get("id"), AgentError("internal", text))
            self._note(request, "internal", text)
        else:
            answer = wire.success(request.get("id"), result)
            self._note_success(request, result if isinstance(result, dict) else {})
        return answer

    def _note_success(self, request: Json, result: Json) -> None:
        if request.get("op") == "lease" and "epoch" in result:
            given = (request.get("fleet"), request.get("action"), result["epoch"])
            if given == self._last_lease:
                # The same lease kept once more: every pass asks for it.
                return
            self._last_lease = given
            request = {**request, "epoch": result["epoch"]}
        self._note(request, str(result.get("state", "done")), "")

    def _note(self, request: Json, result: str, message: str) -> None:
        """The journal's line for a request that changes something."""
        op = request.get("op")
        if op not in JOURNALED or (request.get("action") in ASKED_OFTEN and not message):
            return
        entry: Json = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "boottime": round(boottime(), 3),
            "boot_id": self.node.identity.boot_id,
            "op": op,
            "result": result,
        }
        for name in ("fleet", "owner", "epoch", "action", "launch", "reason", "revision"):
            if isinstance(request.get(name), (str, int)):
                entry[name] = request[name]
        spec = request.get("spec")
        if isinstance(spec, dict):
            entry["launch"] = str(spec.get("launch"))
        if message:
            entry["message"] = message[:1000]
        journal.append(self.node.root, entry)

    # --- Operations that act on no launch -----------------------------------------------------

    def hello(self, request: Json) -> Json:
        """Who this node is."""
        return {
            "format": FORMAT,
            "machine_id": self.node.identity.machine_id,
            "boot_id": self.node.identity.boot_id,
            "agent": self.node.agent,
            "agent_version": VERSION,
            "root": self.node.root,
            "python": "%d.%d.%d" % sys.version_info[:3],
        }

    def observe(self, request: Json) -> Json:
        """A `NodeAnswer`."""
        fields = Fields(request)
        parts = request.get("parts")
        if parts is not None and not (
            isinstance(parts, list) and all(isinstance(p, str) for p in parts)
        ):
            raise AgentError("bad-request", "parts: a list of names")
        deadline_s = max(0.1, fields.number("deadline_s", DEFAULT_DEADLINE_S))
        fleet = fields.text("fleet", "")
        wanted = list(PARTS) if parts is None else parts
        return self.observer.answer(wanted, deadline_s, lease.check_fleet(fleet) if fleet else "")

    def lease(self, request: Json) -> Json:
        """Acquire, renew, release, update or take the lease."""

        def change() -> Json:
            stored = lease.change(self.node, request)
            if request.get("action") in ("acquire", "renew"):
                # Each pass that acts begins so, and goes on so: what a death left is gone by then.
                pids, _ = records.by_launch(self.node, self.observer.marks())
                secretfiles.sweep(self.node, self.observer.cache, pids)
            return stored

        return self._written(change)

    def hold(self, request: Json) -> object:
        """Set or clear the node's hold."""
        return self._written(lambda: hold.change_hold(self.node, request))

    def _written(self, act: Callable[[], object]) -> "Json":
        with locks.acting(*self.node.acting_locks):
            try:
                return act()  # type: ignore[return-value]
            except OSError as error:
                raise AgentError("io", "%s: %s" % (self.node.root, error.strerror)) from None

    def logs(self, request: Json) -> Json:
        """Lines of a command's output."""
        fields = Fields(request)
        launch = fields.text("launch")
        folder = records.folder_of(self.node, launch) if LAUNCH.match(launch) else ""
        if not os.path.isdir(folder):
            raise AgentError("not-found", "launch %s is not on this node" % launch)
        spec = records.see(self.node, self.observer.cache, launch, {}).spec
        lines = max(0, fields.integer("lines", 100))
        return logs.read(
            folder, spec, fields.text("command", ""), lines, fields.integer("offset", -1)
        )

    def journal(self, request: Json) -> Json:
        """The last entries of the journal, oldest first."""
        count = max(1, min(10000, Fields(request).integer("lines", 100)))
        return {"entries": journal.read(self.node.root, count)}


def run(node: Node, env: Mapping[str, str], marker: str, source: TextIO, sink: TextIO) -> None:
    """Say `ready`, then answer every line of `source`."""
    # Never closed: it is in use for as long as this process lives.
    releases.hold(node.agent)
    session = Session(node, env)
    try:
        ready = {"bootstrap": "ready", **session.hello({})}
        _send(sink, "\n" + wire.frame(marker, ready))
        for number, line in enumerate(_lines(source)):
            answer = session.answer(line)
            _send(sink, wire.frame(marker, answer))
            if number == 0:
                _settle(node)
    finally:
        session.close()


def _settle(node: Node) -> None:
    """After the first answer, so that nobody waits: the next session starts faster, and what
    older releases left behind goes."""
    if node.runs_from == node.agent:
        compiled.make(node.agent)
    own = os.path.basename(node.agent).partition(".")[0]
    for root in node.roots:
        releases.tidy(os.path.join(root, "agent"), own, time.time())


def _send(sink: TextIO, text: str) -> None:
    sink.write(text)
    sink.flush()


def _lines(source: TextIO) -> Iterator[str]:
    """Lines of at most `MAX_REQUEST`; a longer one is passed on cut: it reads as a bad request."""
    while True:
        line = source.readline(wire.MAX_REQUEST + 1)
        if not line:
            return
        rest = line
        while not rest.endswith("\n") and len(rest) > wire.MAX_REQUEST:
            rest = source.readline(wire.MAX_REQUEST + 1)
        if line.strip():
            yield line
