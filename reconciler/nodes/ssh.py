"""One SSH connection: dialled, checked, authenticated, each step with a deadline of its own.

paramiko does the protocol; everything that may hang in it (`start_client`, `exec_command`,
`open_session`, a peer that was frozen) is waited for here with a limit, and ends by closing the
socket. Host keys are compared with the inventory's or a known_hosts file's and never learnt; agent
forwarding, ptys and port forwarding by the node are never asked for.
"""

from __future__ import annotations

import logging
import random
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import paramiko

from reconciler.core.observed import LookError
from reconciler.hostkeys import KnownHosts, KnownKey, host_name, parse_key
from reconciler.nodes.credentials import Credentials
from reconciler.nodes.endpoint import Endpoint
from reconciler.nodes.protocol import NodeUnseen
from reconciler.nodes.sockets import TunedSocket, dial, wait_for

LOG = "reconciler.ssh"
# paramiko logs each failed handshake with a traceback; what matters of it is in the NodeUnseen.
logging.getLogger(LOG).addHandler(logging.NullHandler())

KEY_EXCHANGES = (
    "curve25519-sha256@libssh.org",
    "ecdh-sha2-nistp256",
    "ecdh-sha2-nistp384",
    "ecdh-sha2-nistp521",
    "diffie-hellman-group16-sha512",
    "diffie-hellman-group-exchange-sha256",
    "diffie-hellman-group14-sha256",
)
"""By cost: 4 ms of CPU for the first two, 35 to 65 for the last three."""
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
DIGESTS = (
    "hmac-sha2-256-etm@openssh.com",
    "hmac-sha2-512-etm@openssh.com",
    "hmac-sha2-256",
    "hmac-sha2-512",
)
RSA = ("rsa-sha2-512", "rsa-sha2-256")
KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")
"""What `ssh-keygen -A` makes."""

DROPPED_RETRIES = 3
"""sshd drops connections at random above MaxStartups: that is "come again", not "down"."""


class Deadline:
    """A point in time; each step gets at most its own limit and never more than is left."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.seconds = seconds
        self._at = clock() + seconds

    def left(self, limit: float = float("inf")) -> float:
        """Seconds for the next step; 0 when the time is over."""
        return max(0.0, min(limit, self._at - self._clock()))


class Abort:
    """What to close so that whoever works on a connection returns at once, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closers: list[Callable[[], None]] = []
        self.done = False

    def add(self, close: Callable[[], None]) -> None:
        """`close` is called at the abort, or at once if that has been."""
        with self._lock:
            if not self.done:
                self._closers.append(close)
                return
        close()

    def __call__(self) -> None:
        with self._lock:
            self.done = True
            closers, self._closers = self._closers, []
        for close in reversed(closers):
            close()

    @contextmanager
    def after(self, seconds: float) -> Iterator[None]:
        """Aborts if the block takes longer: for calls that have no timeout of their own."""
        timer = threading.Timer(seconds, self)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


@dataclass
class Dialer:
    """What all connections of a pool share."""

    credentials: Credentials
    gate: AbstractContextManager[Any]
    """Bounds the handshakes in progress: they are what costs CPU, here and on a jump host."""
    rng: random.Random = field(default_factory=random.Random)
    _known: dict[tuple[Any, ...], KnownHosts] = field(default_factory=dict)
    _jumps: dict[Endpoint, paramiko.Transport] = field(default_factory=dict)
    _jump_abort: Abort = field(default_factory=lambda: Abort())
    _jump_locks: dict[Endpoint, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def connect(self, endpoint: Endpoint, deadline: Deadline, abort: Abort) -> paramiko.Transport:
        """An authenticated connection. Raises NodeUnseen."""
        for attempt in range(DROPPED_RETRIES):
            try:
                return self._connect(endpoint, deadline, abort)
            except _Dropped as dropped:
                pause = 0.2 * (attempt + 1) * (0.5 + self.rng.random())
                if attempt + 1 == DROPPED_RETRIES or deadline.left() < pause or abort.done:
                    raise NodeUnseen(
                        endpoint.subject,
                        LookError.UNREACHABLE,
                        f"{where(endpoint)} {dropped}",
                        "sshd may be at its MaxStartups; the next pass tries again",
                    ) from None
                time.sleep(pause)
        raise AssertionError("unreachable")

    def shown_keys(
        self, endpoint: Endpoint, deadline: Deadline, abort: Abort, kinds: Sequence[str] = ()
    ) -> Iterator[KnownKey]:
        """The host keys that it shows, one a connection, none of them trusted: to be compared with
        what a person said. `kinds` are the types asked for. Raises NodeUnseen."""
        for kind in kinds or KEY_TYPES:
            try:
                sock = self._reach(endpoint, deadline, abort)
                asked = KnownKey(kind, "", "the asking")
                transport = _handshake(endpoint, sock, [asked], deadline)
            except NodeUnseen as error:
                if error.kind is LookError.HOST_KEY:
                    continue  # it has no key of this type
                raise
            except _Dropped as dropped:
                reason = f"{where(endpoint)} {dropped}"
                raise NodeUnseen(endpoint.subject, LookError.UNREACHABLE, reason) from None
            shown = transport.get_remote_server_key()
            transport.close()
            name, text = shown.get_name(), shown.get_base64()
            yield KnownKey(name, text, where(endpoint))

    def close(self) -> None:
        """Closes the connections to jump hosts."""
        self._jump_abort()
        with self._lock:
            jumps = list(self._jumps.values())
            self._jumps.clear()
        for transport in jumps:
            transport.close()

    def _connect(self, endpoint: Endpoint, deadline: Deadline, abort: Abort) -> paramiko.Transport:
        keys = self.known_keys(endpoint)
        sock = self._reach(endpoint, deadline, abort)
        abort.add(sock.close)
        with self.gate:
            transport = _handshake(endpoint, sock, keys, deadline)
            self._check_host_key(endpoint, transport, keys)
            _authenticate(endpoint, transport, self.credentials, deadline)
        return transport

    def _check_host_key(
        self, endpoint: Endpoint, transport: paramiko.Transport, keys: list[KnownKey]
    ) -> None:
        raw = transport.get_remote_server_key()
        shown = KnownKey(raw.get_name(), raw.get_base64(), where(endpoint))
        if shown.base64 in {key.base64 for key in keys}:
            return
        transport.close()
        self.refuse_revoked(endpoint, shown, f"{where(endpoint)} shows the host key")
        known = " or ".join(f"{key.fingerprint} ({key.source})" for key in keys)
        raise NodeUnseen(
            endpoint.subject,
            LookError.HOST_KEY,
            f"{where(endpoint)} shows the {shown.type} host key {shown.fingerprint}, "
            f"expected {known}",
            _resolve_hint(endpoint, keys),
        )

    def _reach(
        self, endpoint: Endpoint, deadline: Deadline, abort: Abort
    ) -> TunedSocket | paramiko.Channel:
        seconds = deadline.left(endpoint.connect_timeout_s)
        if endpoint.jump is not None:
            return self._through(endpoint, endpoint.jump, deadline, abort)
        try:
            sock = dial(endpoint.address, endpoint.port, seconds, lambda: abort.done)
        except OSError as error:
            reason = f"{where(endpoint)} cannot be reached: {error.strerror or error}"
            hint = "is it up, and is sshd running?"
            raise NodeUnseen(endpoint.subject, LookError.UNREACHABLE, reason, hint) from error
        # A frozen sshd accepts and stays mute: it must not hold a place at the gate.
        seconds = deadline.left(endpoint.connect_timeout_s)
        if not wait_for(sock, select.POLLIN, seconds, lambda: abort.done):
            sock.close()
            reason = f"{where(endpoint)} accepts connections, but sshd says nothing"
            hint = "it is frozen or overloaded; look at the machine's console"
            raise NodeUnseen(endpoint.subject, LookError.UNREACHABLE, reason, hint)
        if sock.hung_up():
            sock.close()
            raise _Dropped("closed the connection before a word")
        return sock

    def _through(
        self, endpoint: Endpoint, jump: Endpoint, deadline: Deadline, abort: Abort
    ) -> paramiko.Channel:
        with self._lock:
            lock = self._jump_locks.setdefault(jump, threading.Lock())
        with lock:
            transport = self._jumps.get(jump)
            if transport is None or not transport.is_active():
                try:
                    transport = self.connect(jump, deadline, self._jump_abort)
                except NodeUnseen as error:
                    reason = f"{jump.subject} on the way to it: {error.reason}"
                    raise NodeUnseen(endpoint.subject, error.kind, reason, error.hint) from error
                self._jumps[jump] = transport
        seconds = deadline.left(endpoint.connect_timeout_s)
        target = (endpoint.address, endpoint.port)
        try:
            channel = transport.open_channel(
                "direct-tcpip", target, ("127.0.0.1", 0), timeout=seconds
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            reason = f"{jump.subject} does not connect to {where(endpoint)}: {error}"
            hint = "is the node up, and does the jump host allow forwarding?"
            raise NodeUnseen(endpoint.subject, LookError.UNREACHABLE, reason, hint) from error
        return channel

    def known_keys(self, endpoint: Endpoint) -> list[KnownKey]:
        """The host keys that it may show, by inventory or known_hosts. NodeUnseen: none."""
        known = self._known_hosts(endpoint)
        try:
            own = parse_key(endpoint.host_key, "the inventory") if endpoint.host_key else None
        except ValueError as error:
            reason = f"its document's ssh.host_key cannot be read: {error}"
            raise NodeUnseen(endpoint.subject, LookError.HOST_KEY, reason) from error
        if own is not None:
            self.refuse_revoked(endpoint, own, "its document's ssh.host_key is")
            return [own]
        name = endpoint.host_key_name or host_name(endpoint.address, endpoint.port)
        keys = known.lookup(name)
        if not keys:
            files = ", ".join(map(str, endpoint.known_hosts))
            said = known.why_none(name)
            raise NodeUnseen(
                endpoint.subject,
                LookError.HOST_KEY,
                f"no host key is known for {name}: neither its document nor {files} has one"
                + (f" ({said})" if said else ""),
                "read it on the machine (`ssh-keygen -yf`, or `cat "
                "/etc/ssh/ssh_host_ed25519_key.pub`) and put it into ssh.host_key",
            )
        return keys

    def refuse_revoked(self, endpoint: Endpoint, key: KnownKey, what: str) -> None:
        """NodeUnseen where a known_hosts file revokes `key`, whoever else vouches for it."""
        line = self._known_hosts(endpoint).revoked(key.base64)
        if line:
            raise NodeUnseen(
                endpoint.subject,
                LookError.HOST_KEY,
                f"{what} {key.type} {key.fingerprint}, which {line} revokes",
                "others may have its private half: make a new host key on the machine "
                "(`ssh-keygen`), and name that one",
            )

    def _known_hosts(self, endpoint: Endpoint) -> KnownHosts:
        paths = dict.fromkeys((*endpoint.known_hosts, *endpoint.revoking))
        stamp = (endpoint.known_hosts, *((path, _mtime(path)) for path in paths))
        with self._lock:
            if stamp not in self._known:
                self._known[stamp] = KnownHosts(endpoint.known_hosts, endpoint.revoking)
            return self._known[stamp]


class _Dropped(Exception):
    """sshd hung up before or in its banner."""


def where(endpoint: Endpoint) -> str:
    """`gpu-a.example:22`."""
    return f"{endpoint.address}:{endpoint.port}"


def _mtime(path: Any) -> int:
    try:
        return int(path.stat().st_mtime_ns)
    except OSError:
        return 0


def _handshake(
    endpoint: Endpoint,
    sock: TunedSocket | paramiko.Channel,
    keys: list[KnownKey],
    deadline: Deadline,
) -> paramiko.Transport:
    seconds = deadline.left(endpoint.connect_timeout_s)
    transport = paramiko.Transport(sock)
    transport.set_log_channel(LOG)
    transport.clear_to_send_timeout = 5.0
    options = transport.get_security_options()
    options.kex = KEY_EXCHANGES
    options.ciphers = CIPHERS
    options.digests = DIGESTS
    # Only types that we know a key of: a server with several would else show another one.
    types = dict.fromkeys(kind for key in keys for kind in _algorithms(key.type))
    options.key_types = tuple(kind for kind in types if kind in options.key_types)
    if not options.key_types:
        sock.close()
        reason = f"its known host key is of type {keys[0].type}, which is not supported"
        raise NodeUnseen(endpoint.subject, LookError.HOST_KEY, reason, "use an ed25519 key")
    done = threading.Event()
    transport.start_client(event=done)
    finished = done.wait(seconds)
    if finished and transport.is_active():
        return transport
    error = transport.get_exception()
    # paramiko arms a timer of its own for the handshake and forgets it when that fails.
    transport.packetizer.complete_handshake()
    transport.close()
    sock.close()
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer) and "host key" in str(error):
        types_text = ", ".join(sorted({key.type for key in keys}))
        raise NodeUnseen(
            endpoint.subject,
            LookError.HOST_KEY,
            f"{where(endpoint)} has no host key of type {types_text}, which {keys[0].source} names",
            _resolve_hint(endpoint, keys),
        )
    if finished and (isinstance(error, EOFError) or "banner" in str(error)):
        raise _Dropped("closed the connection in the handshake")
    what = f"failed: {error}" if finished else f"took more than {seconds:.1f} s"
    reason = f"the SSH handshake with {where(endpoint)} {what}"
    hint = ""
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        ours = next((names for word, names in _OURS if word in str(error)), ())
        hint = f"sshd there must allow one of {', '.join(ours)}" if ours else ""
    raise NodeUnseen(endpoint.subject, LookError.UNREACHABLE, reason, hint)


_OURS = (("kex", KEY_EXCHANGES), ("ciphers", CIPHERS), ("macs", DIGESTS))
"""By the word in paramiko's message, what this side can do."""


def _algorithms(key_type: str) -> tuple[str, ...]:
    return RSA if key_type == "ssh-rsa" else (key_type,)


def _resolve_hint(endpoint: Endpoint, keys: list[KnownKey]) -> str:
    place = "ssh.host_key of its document" if endpoint.host_key else keys[0].source
    return (
        "if the machine was reinstalled, read its key on the machine itself and put it into "
        f"{place}; if it was not, somebody answers in its place"
    )


def _authenticate(
    endpoint: Endpoint, transport: paramiko.Transport, credentials: Credentials, deadline: Deadline
) -> None:
    notes: list[str] = []
    tried: list[str] = []
    with closing(credentials.candidates(endpoint, notes)) as candidates:
        for candidate in candidates:
            tried.append(candidate.label)
            done = threading.Event()
            seconds = deadline.left(endpoint.connect_timeout_s)
            transport.auth_publickey(endpoint.user, candidate.key, event=done)
            if not done.wait(seconds):
                transport.close()
                reason = f"{where(endpoint)} did not answer the login within {seconds:.1f} s"
                raise NodeUnseen(endpoint.subject, LookError.UNREACHABLE, reason)
            if transport.is_authenticated():
                return
            if not transport.is_active():
                break
    dropped = not transport.is_active()
    why = transport.get_exception() if dropped else None
    transport.close()
    how = "hung up at" if dropped else "refused"
    if why is not None and not isinstance(why, EOFError):
        notes.append(str(why))
    detail = "; ".join([f"tried {', '.join(tried) or 'no key'}", *notes])
    raise NodeUnseen(
        endpoint.subject,
        LookError.AUTH,
        f"{where(endpoint)} {how} the login of {endpoint.user!r} ({detail})",
        f"put a public key of ours into {endpoint.user}'s authorized_keys there, or set ssh.user "
        "and ssh.identity_file",
    )
