"""Asks a shard whether it serves: one HTTP exchange without threads and without ever waiting.

Status 200 on the health path counts; where a model is named, `/v1/models` must list it; and whoever
answers must be this shard's own: two servers may share one port, and the older one's answer must
not make the new one ready.
"""

from __future__ import annotations

import errno
import json
import select
import socket
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from . import netlink, procs
from .spec import HealthCheck

DEADLINE_S = 10.0
"""A server that answers later than this is not serving; an engine under load takes a second."""

MAX_REPLY = 1024 * 1024


class Result(NamedTuple):
    """What one probe said."""

    ok: bool
    detail: str


class Reply(NamedTuple):
    """An HTTP answer, or why there is none (`status` 0)."""

    status: int
    body: bytes
    error: str


_RESOLVED: Dict[Tuple[str, int], Any] = {}
"""Addresses of names, for as long as they accept connections: a name server that hangs or is down
must neither stop a supervisor's loop nor make a shard that serves unhealthy."""


def _resolve(host: str, port: int) -> Any:
    """The first address, as getaddrinfo gives it. OSError."""
    if (host, port) not in _RESOLVED:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        _RESOLVED[(host, port)] = found[0]
    return _RESOLVED[(host, port)]


class Exchange:
    """One GET over a socket that never blocks; `step` whenever the socket is ready."""

    def __init__(self, host: str, port: int, path: str) -> None:
        self.reply: Optional[Reply] = None
        self._asked = (host, port)
        self._data = b""
        literal = "[%s]" % host if ":" in host else host
        head = "GET %s HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\nAccept: */*\r\n\r\n"
        self._unsent = (head % (path, literal, port)).encode("ascii")
        self._socket: Optional[socket.socket] = None
        try:
            family, _, _, _, target = _resolve(host, port)
            self.address = str(target[0])
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            code = self._socket.connect_ex(target)
        except (OSError, OverflowError) as error:
            self._end(Reply(0, b"", str(error)))
            return
        if code not in (0, errno.EINPROGRESS):
            _RESOLVED.pop((host, port), None)
            self._end(Reply(0, b"", _words(code)))

    @property
    def events(self) -> Tuple[int, int]:
        """Descriptor and poll mask; only while there is no reply."""
        assert self._socket is not None
        mask = select.POLLOUT if self._unsent else select.POLLIN
        return self._socket.fileno(), mask

    def step(self) -> None:
        """Go on as far as the socket allows now."""
        assert self._socket is not None
        try:
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                _RESOLVED.pop(self._asked, None)
                self._end(Reply(0, b"", _words(code)))
            elif self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            else:
                self._receive()
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(Reply(0, b"", error.strerror or str(error)))

    def give_up(self, why: str) -> None:
        """End without an answer."""
        if self.reply is None:
            self._end(Reply(0, b"", why))

    def _receive(self) -> None:
        assert self._socket is not None
        data = self._socket.recv(65536)
        self._data += data
        whole = parse_reply(self._data, closed=not data)
        if whole is not None:
            self._end(whole)
        elif len(self._data) > MAX_REPLY:
            self._end(Reply(0, b"", "the answer is longer than %d bytes" % MAX_REPLY))

    def _end(self, reply: Reply) -> None:
        self.reply = reply
        if self._socket is not None:
            self._socket.close()


def parse_reply(data: bytes, *, closed: bool) -> Optional[Reply]:
    """The HTTP answer in `data`; None where more is to come."""
    head, gap, body = data.partition(b"\r\n\r\n")
    if not gap:
        return Reply(0, b"", "closed before it answered") if closed else None
    lines = head.split(b"\r\n")
    first = lines[0].split(b" ", 2)
    if not first[0].startswith(b"HTTP/1.") or len(first) < 2 or not first[1].isdigit():
        return Reply(0, b"", "answers something else than HTTP")
    status = int(first[1])
    fields = dict(_field(line) for line in lines[1:])
    if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
        plain = _unchunk(body)
        if plain is None:
            return Reply(status, b"", "cut off") if closed else None
        return Reply(status, plain, "")
    length = fields.get(b"content-length", b"")
    if status in (204, 304) or (length.isdigit() and len(body) >= int(length)):
        return Reply(status, body[: int(length or b"0")], "")
    return Reply(status, body, "") if closed else None


def _field(line: bytes) -> Tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.strip().lower(), value.strip()


def _unchunk(data: bytes) -> Optional[bytes]:
    plain = b""
    while True:
        size, gap, rest = data.partition(b"\r\n")
        if not gap:
            return None
        try:
            count = int(size.split(b";")[0], 16)
        except ValueError:
            return None
        if count == 0:
            return plain
        if len(rest) < count + 2:
            return None
        plain, data = plain + rest[:count], rest[count + 2 :]


class Probe:
    """One whole probe: health path, then the model's name, then whose socket it is.

    `whose` gives the pids of the shard and is only called when all else is well; None: not asked
    (a container's processes are not ours to see, or it was asked a moment ago).
    """

    def __init__(
        self, check: HealthCheck, started: float, whose: Optional[Callable[[], Iterable[int]]]
    ) -> None:
        self.check = check
        self.started = started
        self.result: Optional[Result] = None
        self.checked_owner = False
        self._whose = whose
        self._exchange = Exchange(check.host, check.port, check.path)
        self._models = False
        self._advance()

    @property
    def events(self) -> Tuple[int, int]:
        """Descriptor and poll mask; only while there is no result."""
        return self._exchange.events

    def step(self) -> None:
        """Go on as far as possible now."""
        self._exchange.step()
        self._advance()

    def expire(self, now: float) -> None:
        """End it once its deadline has passed."""
        if self.result is None and now - self.started > DEADLINE_S:
            self._exchange.give_up("no answer within %d s" % DEADLINE_S)
            self._advance()

    def cancel(self) -> None:
        """Close the socket; the probe is of no more interest."""
        self._exchange.give_up("cancelled")

    def _advance(self) -> None:
        reply = self._exchange.reply
        if reply is None:
            return
        where = "/v1/models" if self._models else self.check.path
        if reply.status != 200:
            self.result = Result(False, "%s: %s" % (where, reply.error or reply.status))
        elif self.check.model and not self._models:
            self._models = True
            self._exchange = Exchange(self.check.host, self.check.port, "/v1/models")
            self._advance()
        elif self._models and self.check.model not in model_names(reply.body):
            names = ", ".join(sorted(model_names(reply.body))) or "none"
            self.result = Result(False, "serves %s, not %s" % (names, self.check.model))
        else:
            self.result = self._judge_owner()

    def _judge_owner(self) -> Result:
        if self._whose is None:
            return Result(True, "")
        why = stranger_on(self._exchange.address, self.check.port, self._whose())
        self.checked_owner = not why
        return Result(not why, why)


def model_names(body: bytes) -> Set[str]:
    """Ids and aliases in a `/v1/models` answer (llama-server shows one id, the rest as aliases)."""
    try:
        entries = json.loads(body.decode("utf-8"))["data"]
        names: List[object] = []
        for entry in entries:
            names += [entry["id"], *entry.get("aliases", ())]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()
    return {name for name in names if isinstance(name, str)}


def stranger_on(address: str, port: int, pids: Iterable[int]) -> str:
    """Why the listener is not this shard's own; empty where it is, or cannot be told."""
    try:
        listening = [s for s in netlink.listeners() if s.takes(address, port)]
    except OSError:
        return ""
    # The kernel gives a connection to the socket of the exact address first.
    exact = [s for s in listening if s.address == address]
    taking = exact or listening
    if not taking:
        return ""
    inodes, complete = procs.socket_inodes(pids)
    foreign = [s for s in taking if s.inode not in inodes]
    if not foreign or not complete:
        return ""
    what = "is shared with" if len(foreign) < len(taking) else "is answered by"
    return "port %d %s another process" % (port, what)


def _words(code: int) -> str:
    return errno.errorcode.get(code, str(code)) if code != errno.ECONNREFUSED else "refused"
