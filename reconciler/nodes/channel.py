"""One long-lived agent channel: the bootstrap, the agent's file if it is absent, then requests.

One request is under way at a time. Nothing here has a thread: paramiko's reader wakes whoever asked
(`wake`), and that one polls. So a thousand open channels cost nothing while they are idle.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import paramiko

from reconciler.core.observed import LookError
from reconciler.nodes.endpoint import Endpoint
from reconciler.nodes.framing import MAX_ANSWER, Damaged, Frame, FrameReader
from reconciler.nodes.protocol import NodeRefused, NodeUnseen, ReplyLost
from reconciler.nodes.ssh import Abort, Deadline
from reconciler.nodes.unsuitable import unsuitable

WINDOW = 16 * 1024 * 1024
"""Above the longest answer, so that one can never stall for lack of window."""
READ = 1 << 20
STDERR_KEPT = 4096
MOST_SAID = 4 * MAX_ANSWER
"""Bytes of one request's answer and of all that is said beside it: a node that never stops would
keep whoever reads, and with it the look at all other nodes, beyond every deadline."""
MOST_WAITING = 64
"""Answers that nobody has asked for; small ones take fifty times their length in memory."""
LONGEST_REFUSAL = 2000
"""Characters of a node's own words, and findings of one answer, that are told."""
MOST_FINDINGS = 50
OPEN_S = 10.0
"""Least time that opening a session may take; the node's connect timeout where that is longer."""


class Bootstrap(Protocol):
    """reconciler.agent.bootstrap: how an agent comes to run on a node."""

    def command(self, sudo_user: str) -> str: ...
    def line(
        self, marker: str, agent_hash: str, root: str, previous_roots: Sequence[str] = ()
    ) -> str: ...
    def upload(self, agent: bytes) -> str: ...


class AgentPackage:
    """The agent's file, its hash and the way to start it; the upload is encoded once."""

    def __init__(self, bootstrap: Bootstrap, content: bytes, digest: str) -> None:
        self.bootstrap, self.digest = bootstrap, digest
        self._content, self._encoded = content, ""

    def upload(self) -> bytes:
        """The file as a line for the node."""
        if not self._encoded:
            self._encoded = self.bootstrap.upload(self._content)
        return self._encoded.encode("ascii") + b"\n"


class _Wake:
    """What paramiko sets when data is there: passes it on to whoever waits now.

    As much of a threading.Event as a BufferedPipe uses; a real one weighs 1 KB a channel.
    """

    call: Callable[[], None] | None = None

    def set(self) -> None:
        # Called with the buffer's lock held: this may only pass a word on, never read.
        if self.call is not None:
            self.call()

    def clear(self) -> None:
        """Nothing is there any more; whoever waits has read it."""


class _BoundedEvent(threading.Event):
    """An event that nobody waits for longer than `seconds`: then it raises TimeoutError."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def wait(self, timeout: float | None = None) -> bool:
        if not super().wait(self._seconds if timeout is None else timeout):
            raise TimeoutError(f"sshd does not answer within {self._seconds:.1f} s")
        return True


class AgentChannel:
    """A running agent on one node. Any NodeUnseen means: close it, it cannot be used again."""

    def __init__(
        self,
        endpoint: Endpoint,
        transport: paramiko.Transport,
        channel: paramiko.Channel,
        marker: str,
        abort: Abort,
    ) -> None:
        self._endpoint, self._transport, self._channel = endpoint, transport, channel
        self._abort = abort
        self._reader = FrameReader(marker)
        self._stderr = bytearray()
        self._frames: list[Frame | Damaged] = []
        self._next_id = 1
        self._said_bytes = 0
        """Since the last request."""
        self._wake = _Wake()
        self.bytes_received = 0
        for pipe in (channel.in_buffer, channel.in_stderr_buffer):
            pipe.set_event(cast(threading.Event, self._wake))

    @classmethod
    def open(
        cls,
        endpoint: Endpoint,
        transport: paramiko.Transport,
        package: AgentPackage,
        marker: str,
        deadline: Deadline,
        abort: Abort,
    ) -> AgentChannel:
        """Starts the agent on the node, sending it there if need be. Raises NodeUnseen."""
        seconds = deadline.left(max(OPEN_S, endpoint.connect_timeout_s))
        try:
            channel = transport.open_session(window_size=WINDOW, timeout=seconds)
            # What exec_command waits for without a limit.
            channel.event = _BoundedEvent(seconds)
            channel.exec_command(package.bootstrap.command(endpoint.sudo))
        except paramiko.ChannelException as error:
            reason = f"sshd refuses a session: {error.text}"
            hint = "it may be at its MaxSessions, or the account may run no commands"
            raise NodeUnseen(endpoint.subject, LookError.UNREACHABLE, reason, hint) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            reason = f"no session could be opened: {error or type(error).__name__}"
            raise NodeUnseen(endpoint.subject, LookError.UNREACHABLE, reason) from error
        agent = cls(endpoint, transport, channel, marker, abort)
        line = package.bootstrap.line(
            marker, package.digest, endpoint.root, endpoint.previous_roots
        )
        agent._send(line.encode("ascii") + b"\n", deadline.left(), starting=True)
        said = agent._greeting(deadline)
        if said == "need":
            agent._send(package.upload(), deadline.left(), starting=True)
            said = agent._greeting(deadline)
        if said != "ready":
            raise agent._damaged(f"the bootstrap answered {said!r}")
        return agent

    @property
    def usable(self) -> bool:
        """Whether the connection still stands, as far as this side can know."""
        return self._transport.is_active() and not self._channel.closed and not self._abort.done

    def begin(
        self, op: str, fields: Mapping[str, Any], wake: Callable[[], None], seconds: float
    ) -> int:
        """Sends a request within `seconds`; `wake` is called, from any thread, whenever `poll` may
        have news.

        Raises NodeUnseen (not ReplyLost) where the request cannot have reached the agent.
        """
        number = self._next_id
        self._next_id += 1
        text = json.dumps({"id": number, "op": op, **fields}, separators=(",", ":"))
        self._wake.call = wake
        self._said_bytes = 0
        self._send(text.encode("ascii") + b"\n", seconds)
        return number

    def poll(self, number: int) -> Frame | None:
        """The answer to request `number` if it is there. Raises NodeUnseen: gone, or damaged."""
        ended = self._drain()
        while self._frames:
            frame = self._frames.pop(0)
            if isinstance(frame, Damaged):
                raise self._damaged(frame.reason)
            if frame.data.get("id") == number:
                self._wake.call = None
                return frame
            came = frame.data.get("id")
            shown = came if type(came) is int else type(came).__name__
            raise self._damaged(f"an answer to request {shown!r:.40} came to {number}")
        if ended:
            raise self._gone(ReplyLost)
        return None

    def request(self, op: str, fields: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Asks and waits. Raises NodeRefused, NodeUnseen, or ReplyLost after the request went."""
        news: queue.SimpleQueue[None] = queue.SimpleQueue()
        deadline = Deadline(seconds)
        number = self.begin(op, fields, lambda: news.put(None), seconds)
        while True:
            frame = self.poll(number)
            if frame is not None:
                return self.result(frame)
            try:
                news.get(timeout=deadline.left())
            except queue.Empty:
                reason = f"no answer to {op!r} within {seconds:.1f} s"
                raise ReplyLost(self._endpoint.subject, LookError.UNREACHABLE, reason) from None

    def result(self, frame: Frame) -> dict[str, Any]:
        """The frame's result. Raises NodeRefused with what the node says."""
        data = frame.data
        result = data.get("result")
        if data.get("ok") is True and (isinstance(result, dict) or result is None):
            return result or {}
        error = data.get("error")
        if data.get("ok") is not False or not isinstance(error, dict):
            raise self._damaged("an answer has neither a result nor an error")
        findings = error.get("findings")
        raise NodeRefused(
            self._endpoint.subject,
            _told(error.get("code", "internal")),
            _told(error.get("message", "")),
            list(map(_told, findings[:MOST_FINDINGS])) if isinstance(findings, list) else [],
        )

    def close(self) -> None:
        """Ends the agent (its stdin ends) and the connection; what it started lives on."""
        self._abort()
        self._transport.close()

    # --- how it is done ------------------------------------------------------------------------

    def _greeting(self, deadline: Deadline) -> str:
        news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wake.call = lambda: news.put(None)
        while True:
            ended = self._drain()
            if self._frames:
                break
            if ended:
                raise self._gone(NodeUnseen, starting=True)
            try:
                news.get(timeout=deadline.left())
            except queue.Empty:
                reason = f"python3 did not start the agent within {deadline.seconds:.1f} s"
                words = self._said()
                reason += f"; its last words: {words}" if words else ""
                raise self._unreachable(reason) from None
        frame = self._frames.pop(0)
        if isinstance(frame, Damaged):
            raise self._damaged(frame.reason)
        said = frame.data.get("bootstrap")
        if said == "unsuitable":
            reason = _told(frame.data.get("message", "it cannot run the agent"))
            raise NodeUnseen(self._endpoint.subject, LookError.UNSUITABLE, reason)
        return _told(said, 40)

    def _send(self, data: bytes, seconds: float, *, starting: bool = False) -> None:
        self._channel.settimeout(max(0.001, seconds))
        try:
            if len(data) < READ >> 5:
                self._channel.sendall(data)
            else:
                # TCP itself may block where the peer stopped reading; only a close ends that.
                with self._abort.after(max(0.001, seconds)):
                    self._channel.sendall(data)
        except TimeoutError as error:
            raise self._unreachable("it does not take what is sent") from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            self._drain()
            # What could not be started may have ended before it was told anything.
            raise self._gone(NodeUnseen, starting=starting) from error

    def _drain(self) -> bool:
        """Reads all that is there; whether the stream has ended."""
        channel = self._channel
        while channel.recv_stderr_ready():
            # Unread, 2 MiB of it would stop the node's side for ever.
            said = channel.recv_stderr(READ)
            self._count(said)
            self._stderr += said
            del self._stderr[:-STDERR_KEPT]
        while channel.recv_ready():
            data = channel.recv(READ)
            self.bytes_received += len(data)
            self._count(data)
            self._frames += self._reader.feed(data)
            if len(self._frames) > MOST_WAITING:
                raise self._damaged(f"more than {MOST_WAITING} answers came to one request")
        return bool(channel.eof_received or channel.closed) and not channel.recv_ready()

    def _count(self, data: bytes) -> None:
        self._said_bytes += len(data)
        if self._said_bytes > MOST_SAID:
            reason = f"more than {MOST_SAID >> 20} MiB came to one request, without an end"
            raise self._damaged(reason)

    def _said(self) -> str:
        parts = [self._stderr.decode("utf-8", "replace").strip(), self._reader.noise]
        return " | ".join(part[-600:] for part in parts if part)

    def _gone(self, kind: type[NodeUnseen], *, starting: bool = False) -> NodeUnseen:
        truncated = self._reader.rest()
        if truncated:
            return self._damaged(truncated)
        said = self._said()
        if starting and (self._channel.exit_status_ready() or self._channel.eof_received):
            status = self._status()
            if status is not None:
                return unsuitable(self._endpoint, status, said)
            if self._transport.is_active():
                words = f" ({said})" if said else ""
                reason = f"python3 ended without a status, as by a signal{words}"
                return kind(self._endpoint.subject, LookError.UNSUITABLE, reason)
        reason = "the connection was cut" + (f"; last words: {said}" if said else "")
        return kind(self._endpoint.subject, LookError.UNREACHABLE, reason)

    def _status(self) -> int | None:
        # The exit status may come a moment after the end of the stream.
        self._channel.status_event.wait(1.0)
        status = self._channel.exit_status
        return status if status >= 0 and self._channel.exit_status_ready() else None

    def _damaged(self, reason: str) -> NodeUnseen:
        hint = "the node is held; look at it with `reconcile observe`"
        return NodeUnseen(self._endpoint.subject, LookError.DAMAGED, reason, hint)

    def _unreachable(self, reason: str) -> NodeUnseen:
        return NodeUnseen(self._endpoint.subject, LookError.UNREACHABLE, reason)


def _told(said: object, most: int = LONGEST_REFUSAL) -> str:
    """A node's own words, as many as a message may hold."""
    # Not `str` of anything else: that fails on what nests deeply.
    text = said if isinstance(said, str) else f"({type(said).__name__})"
    return text if len(text) <= most else f"{text[:most]}…"
