"""Whether a worker can reach its leader, asked before anything is started: by routes and by trying.

A firewall that drops shows only in trying: without it all ranks start, wait for each other and time
out after minutes. The leader does not listen yet, so its refusal is an answer too: it came back.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from typing import Dict, List

from .spec import Spec

CONNECT_S = 3.0
"""For all ports together. Two SYNs go out within it (Linux repeats after 1 s), so that one lost
packet is no finding."""

_ANSWERED = (0, errno.ECONNREFUSED, errno.ECONNRESET)


def findings(spec: Spec, *, trying: bool) -> List[str]:
    """Why this rank would not reach its leader; nothing for the leader itself.

    `trying`: connect for real, and close at once. Not while the leader may be starting already:
    an engine may take the connection for a worker's.
    """
    host = spec.leader
    if not host or spec.rank == 0 or not spec.address:
        return []
    found = _route(host, spec.address)
    return found or (_tried(host, spec.leader_ports) if trying else [])


def _route(leader: str, own: str) -> List[str]:
    """By the routing table alone: a UDP socket is connected, nothing is sent."""
    try:
        info = socket.getaddrinfo(leader, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(info[0], socket.SOCK_DGRAM) as probe:
            probe.connect(info[4])
            source = str(probe.getsockname()[0])
    except OSError as error:
        return ["leader's address %s: %s" % (leader, error.strerror or error)]
    ours = leader == own or (source == leader and not leader.startswith("127."))
    return ["leader's address %s is this node's own" % leader] if ours else []


def _tried(leader: str, ports: "tuple[int, ...]") -> List[str]:
    """What no answer came from within CONNECT_S; all ports are tried at once."""
    until = time.monotonic() + CONNECT_S
    waiting: Dict[int, "tuple[socket.socket, int]"] = {}
    found: List[str] = []
    poller = select.poll()
    try:
        for port in ports:
            info = socket.getaddrinfo(leader, port, type=socket.SOCK_STREAM)[0]
            probe = socket.socket(info[0], socket.SOCK_STREAM)
            waiting[probe.fileno()] = probe, port
            probe.setblocking(False)
            code = probe.connect_ex(info[4])
            if code != errno.EINPROGRESS:
                found += _end(waiting, probe.fileno(), leader, code)
                continue
            poller.register(probe.fileno(), select.POLLOUT)
        while waiting and time.monotonic() < until:
            for fd, _ in poller.poll(max(1, int((until - time.monotonic()) * 1000))):
                poller.unregister(fd)
                code = waiting[fd][0].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                found += _end(waiting, fd, leader, code)
        if waiting:
            silent = ", ".join(str(port) for port in sorted(port for _, port in waiting.values()))
            found.append(
                "leader's address %s: no answer from port %s within %d s; is a firewall in between?"
                % (leader, silent, CONNECT_S)
            )
    except OSError as error:
        found.append("leader's address %s: %s" % (leader, error.strerror or error))
    finally:
        for probe, _ in waiting.values():
            probe.close()
    return found


def _end(
    waiting: "Dict[int, tuple[socket.socket, int]]", fd: int, leader: str, code: int
) -> List[str]:
    """What one connection came to."""
    probe, port = waiting.pop(fd)
    probe.close()
    if code in _ANSWERED:
        return []
    return ["leader's address %s port %d: %s" % (leader, port, os.strerror(code))]
