"""One node's lane: its connection, kept; its back-off; one request at a time.

A lane never affects another one. Whoever holds `lock` works on the node, and no one else does; what
goes wrong here is raised as a NodeError and makes the lane's next user connect anew.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reconciler.core.observed import LookError
from reconciler.nodes.channel import AgentChannel, AgentPackage
from reconciler.nodes.endpoint import Endpoint
from reconciler.nodes.protocol import NodeUnseen, ReplyLost
from reconciler.nodes.ssh import Abort, Deadline, Dialer

MIN_RETRY_S = 0.5
"""Asking again makes sense only with so much time left."""


@dataclass
class Backoff:
    """When a failed node is tried again: doubling, with jitter so that many do not come at once."""

    base_s: float
    cap_s: float
    rng: random.Random
    clock: Callable[[], float] = time.monotonic
    failures: int = 0
    until: float = 0.0

    def failed(self) -> None:
        """One more failure in a row."""
        self.failures += 1
        pause = min(self.cap_s, self.base_s * 2 ** min(self.failures - 1, 30))
        self.until = self.clock() + pause * (0.5 + self.rng.random() / 2)

    def succeeded(self) -> None:
        """It works: forget the failures."""
        self.failures, self.until = 0, 0.0

    def remaining_s(self) -> float:
        """How long to leave the node alone still; 0: try."""
        return max(0.0, self.until - self.clock())


class Lane:
    """The way to one node. All methods but `abort` need `lock` held."""

    def __init__(
        self, endpoint: Endpoint, dialer: Dialer, package: AgentPackage, backoff: Backoff
    ) -> None:
        self.endpoint, self.backoff = endpoint, backoff
        self.lock = threading.Lock()
        self.problem: NodeUnseen | None = None
        """Why the last attempt failed; what is shown during the back-off."""
        self.late: NodeUnseen | None = None
        """Set while a connection is still being made for a look that has given it up."""
        self._dialer, self._package = dialer, package
        self._agent: AgentChannel | None = None
        self._abort: Abort | None = None
        self.closed = False

    @property
    def agent(self) -> AgentChannel | None:
        """The open channel, if it still stands."""
        return self._agent if self._agent is not None and self._agent.usable else None

    def connect(self, deadline: Deadline) -> AgentChannel:
        """The open channel, or a new one. Raises NodeUnseen, and remembers it for the back-off."""
        if (agent := self.agent) is not None:
            return agent
        self.drop()
        abort = self._abort = Abort()
        if self.closed:
            raise NodeUnseen(self.endpoint.subject, LookError.UNREACHABLE, "the pool is closed")
        try:
            transport = self._dialer.connect(self.endpoint, deadline, abort)
            abort.add(transport.close)
            marker = secrets.token_hex(8)
            self._agent = AgentChannel.open(
                self.endpoint, transport, self._package, marker, deadline, abort
            )
        except NodeUnseen as error:
            self.fail(error)
            raise
        self.backoff.succeeded()
        return self._agent

    def request(self, op: str, fields: Mapping[str, Any], deadline: Deadline) -> dict[str, Any]:
        """Asks, and after a lost reply asks once again over a new connection.

        Raises NodeRefused, NodeUnseen, or ReplyLost where it may have been done all the same.
        """
        sent = False
        kept = self.agent is not None
        try:
            try:
                return self.connect(deadline).request(op, fields, deadline.left())
            except NodeUnseen as first:
                # A kept connection that turns out dead says nothing about the node.
                sent = isinstance(first, ReplyLost) or first.kind is LookError.DAMAGED
                if not (sent or kept) or deadline.left() < MIN_RETRY_S or self.closed:
                    raise
                self.drop()
                return self.connect(deadline).request(op, fields, deadline.left())
        except NodeUnseen as error:
            self.fail(error)
            if sent and not isinstance(error, ReplyLost):
                raise ReplyLost(error.subject, error.kind, error.reason, error.hint) from error
            raise

    def fail(self, error: NodeUnseen) -> None:
        """The connection is of no more use; the next attempt waits its back-off."""
        if self.problem is not error:
            self.problem = error
            self.backoff.failed()
        self.drop()

    def abort(self) -> None:
        """Makes whoever works on this lane return at once; from any thread."""
        if self._abort is not None:
            self._abort()

    def drop(self) -> None:
        """Closes the connection, if there is one."""
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.close()
        self.abort()

    def close(self) -> None:
        """Closes for good; does not wait for whoever works on it."""
        self.closed = True
        self.abort()
        if self.lock.acquire(timeout=1.0):
            self.drop()
            self.lock.release()
