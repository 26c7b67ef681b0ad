"""One look at all nodes of a pass: every answer, or why there is none, by one deadline.

Open channels are asked from the calling thread and their answers taken as they come; nodes that
must be connected first get a thread each for as long as that takes. At the deadline whoever has
not answered is reported; nobody waits for anybody else. An open channel that stayed mute is closed;
a connection that is still being made may go on for a while, so that a node which is merely slow
(its first Python start, on a loaded machine) is connected at the next look.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reconciler.core.codec import DecodeError
from reconciler.core.observed import LookError, NodeAnswer, NodeLook
from reconciler.errors import NodeError
from reconciler.nodes.channel import AgentChannel
from reconciler.nodes.decode import decode_answer
from reconciler.nodes.lane import Lane
from reconciler.nodes.protocol import NodeUnseen, explain
from reconciler.nodes.ssh import Deadline

AGENT_SHARE = 0.8
"""Share of the time left that the agent gets to answer in; the rest is for the way back."""

LINGER_S = 20.0
"""How long after the deadline a connection may still be made; each step of it has its own limit."""


@dataclass
class Ask:
    """One node's part of a look."""

    node: str
    lane: Lane
    began: float
    agent: AgentChannel | None = None
    number: int = 0
    working: bool = False
    """A thread of this look holds the lane."""


class Look:
    """A look under way. `before` has what each node said last, and is brought up to date."""

    def __init__(
        self,
        lanes: Mapping[str, Lane],
        fields: Mapping[str, Any],
        deadline: Deadline,
        before: dict[str, tuple[dict[str, Any], NodeAnswer]],
    ) -> None:
        self._asks = [Ask(name, lane, time.monotonic()) for name, lane in lanes.items()]
        self._fields, self._deadline, self._before = fields, deadline, before
        self._news: queue.SimpleQueue[tuple[Ask, NodeLook | None]] = queue.SimpleQueue()
        self.looks: dict[str, NodeLook] = {}

    def run(self) -> dict[str, NodeLook]:
        """All looks, by node."""
        for ask in self._asks:
            self._start(ask)
        pending = {ask.node: ask for ask in self._asks if ask.node not in self.looks}
        while pending:
            try:
                ask, look = self._news.get(timeout=self._deadline.left())
            except queue.Empty:
                break
            if ask.node not in pending:
                continue
            if look is not None:
                self._end(ask, look)
            else:
                self._collect(ask)
            if ask.node in self.looks:
                del pending[ask.node]
        for ask in pending.values():
            self._give_up(ask)
        return {ask.node: self.looks[ask.node] for ask in self._asks}

    def _start(self, ask: Ask) -> None:
        lane = ask.lane
        if not lane.lock.acquire(blocking=False):
            if lane.late is not None:
                # Waiting for it once was enough: a mute node costs a pass one deadline, not two.
                self._end(ask, self._failed(ask, lane.late, "; still trying"))
            else:
                self._in_thread(ask)
            return
        lane.late = None
        ask.agent = lane.agent
        waits = lane.backoff.remaining_s()
        if ask.agent is None and waits and lane.problem is not None:
            lane.lock.release()
            self._end(ask, self._failed(ask, lane.problem, f"; next try in {waits:.0f} s"))
        elif ask.agent is None:
            lane.lock.release()
            self._in_thread(ask)
        else:
            self._send(ask, ask.agent)

    def _send(self, ask: Ask, agent: AgentChannel) -> None:
        try:
            wake, seconds = (lambda: self._news.put((ask, None))), self._deadline.left()
            ask.number = agent.begin("observe", self._request(), wake, seconds)
        except NodeUnseen:
            self._again(ask)

    def _request(self) -> dict[str, Any]:
        seconds = max(1.0, self._deadline.left() * AGENT_SHARE)
        return {**self._fields, "deadline_s": round(seconds, 3)}

    def _again(self, ask: Ask) -> None:
        """A kept connection turned out dead, which says nothing about the node: connect anew."""
        ask.lane.drop()
        ask.lane.lock.release()
        ask.agent = None
        self._in_thread(ask)

    def _collect(self, ask: Ask) -> None:
        if ask.agent is None:
            return
        try:
            frame = ask.agent.poll(ask.number)
            if frame is None:
                return
            look = self._answered(ask, ask.agent.result(frame))
        except NodeUnseen as error:
            if error.kind is LookError.UNREACHABLE:
                self._again(ask)
                return
            ask.lane.fail(error)
            look = self._failed(ask, error)
        except NodeError as error:
            look = self._failed(ask, error)
        ask.lane.lock.release()
        self._end(ask, look)

    def _in_thread(self, ask: Ask) -> None:
        name = f"look {ask.node}"
        threading.Thread(target=self._connect_and_ask, args=(ask,), name=name, daemon=True).start()

    def _connect_and_ask(self, ask: Ask) -> None:
        lane = ask.lane
        if not lane.lock.acquire(timeout=self._deadline.left()):
            return
        ask.working = True
        try:
            lingering = Deadline(self._deadline.left() + LINGER_S)
            look = self._answered(ask, lane.request("observe", self._request(), lingering))
        except NodeError as error:
            look = self._failed(ask, error)
        except Exception as error:  # noqa: BLE001  the one place: a bug in one lane stays there
            lane.drop()
            kind = LookError.UNREACHABLE
            detail = f"internal error: {type(error).__name__}: {error}"
            look = NodeLook(ask.node, error=kind, detail=detail, look_ms=self._ms(ask))
        finally:
            ask.working, lane.late = False, None
            lane.lock.release()
        self._news.put((ask, look))

    def _answered(self, ask: Ask, data: dict[str, Any]) -> NodeLook:
        try:
            answer = decode_answer(data, self._before.get(ask.node))
        except DecodeError as error:
            self._before.pop(ask.node, None)
            detail = f"its answer cannot be read: {error}"
            hint = "is its agent newer than this reconciler?"
            kind = LookError.DAMAGED
            return NodeLook(ask.node, error=kind, detail=detail, hint=hint, look_ms=self._ms(ask))
        self._before[ask.node] = (data, answer)
        return NodeLook(ask.node, answer, look_ms=self._ms(ask))

    def _failed(self, ask: Ask, error: NodeError, more: str = "") -> NodeLook:
        kind = error.kind if isinstance(error, NodeUnseen) else LookError.DAMAGED
        detail = error.reason if isinstance(error, NodeUnseen) else explain(error)
        return NodeLook(
            ask.node, error=kind, detail=detail + more, hint=error.hint, look_ms=self._ms(ask)
        )

    def _give_up(self, ask: Ask) -> None:
        seconds = self._deadline.seconds
        waited_for = "an answer" if ask.agent is not None else "a connection and an answer"
        error = NodeUnseen(
            ask.lane.endpoint.subject,
            LookError.UNREACHABLE,
            f"no answer: {waited_for} took more than {seconds:g} s",
            "it is frozen, overloaded or cut off; look at the machine's console",
        )
        if ask.agent is not None:
            ask.lane.fail(error)
            ask.lane.lock.release()
        elif ask.working:
            ask.lane.late = error
        self._end(ask, self._failed(ask, error))

    def _end(self, ask: Ask, look: NodeLook) -> None:
        self.looks[ask.node] = look

    def _ms(self, ask: Ask) -> float:
        return round((time.monotonic() - ask.began) * 1000, 3)


def look_at(
    lanes: Mapping[str, Lane],
    fields: Mapping[str, Any],
    deadline: Deadline,
    before: dict[str, tuple[dict[str, Any], NodeAnswer]],
) -> dict[str, NodeLook]:
    """Looks at all `lanes`; never raises for a node."""
    return Look(lanes, fields, deadline, before).run()
