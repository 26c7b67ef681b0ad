"""A machine that no document describes yet: which host key it may show, and one look at it.

A host key is taken from a known_hosts file, or is one whose SHA256 fingerprint a person gave. What
the machine shows is only compared with these; nothing else is ever sent before one of them is met.
"""

from __future__ import annotations

import random
import re
import threading
from dataclasses import dataclass, replace

from reconciler.core.model import Desired, Fleet, GpuInventory, Node, NodeSsh, Revision
from reconciler.core.observed import LookError, NodeAnswer
from reconciler.hostkeys import KnownKey
from reconciler.nodes.credentials import Credentials
from reconciler.nodes.endpoint import Endpoint, of_node, parse_jump
from reconciler.nodes.pool import NodePool, PoolSettings, defaults_of
from reconciler.nodes.protocol import NodeUnseen
from reconciler.nodes.ssh import Abort, Deadline, Dialer, where

HOW_TO_READ = (
    "run `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the machine's own console and give"
    " what it shows as --host-key SHA256:…, or put the key into ~/.ssh/known_hosts"
)

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}").fullmatch


@dataclass(frozen=True)
class Target:
    """Whom a person asked for, and how it is reached."""

    host: str
    user: str = ""
    port: int = 0
    identity_file: str = ""
    jump: str = ""
    fingerprint: str = ""
    """`SHA256:…` of the host key that it may show; empty: known_hosts decides."""


@dataclass(frozen=True)
class Discovered:
    """A machine that answered, and the host key that it showed and was allowed to show."""

    answer: NodeAnswer
    host_key: KnownKey
    user: str
    port: int


def parse_target(text: str) -> tuple[str, str, int]:
    """(user, host, port) of `[user@]host[:port]`. Raises NodeUnseen."""
    # An IPv6 address without brackets has no port.
    if re.fullmatch(r"[0-9A-Fa-f]*(:[0-9A-Fa-f]*){2,}", text):
        return "", text, 0
    return parse_jump(text)


def discover(target: Target, *, name: str, settings: PoolSettings, fleet: str) -> Discovered:
    """One look at a machine, under the fleet id `fleet`. It starts and changes nothing there but
    that the agent's file is put down. Raises NodeUnseen."""
    if target.fingerprint and not _FINGERPRINT(target.fingerprint):
        raise NodeUnseen(
            f"node {name}",
            LookError.HOST_KEY,
            f"{target.fingerprint!r} is no SHA256 fingerprint",
            "it is SHA256: and 43 characters, as `ssh-keygen -lf` shows it",
        )
    ssh = NodeSsh(
        user=target.user, port=target.port, identity_file=target.identity_file, jump=target.jump
    )
    node = Node(name, target.host, "new", GpuInventory("none", 0), ssh=ssh)
    about = Fleet("init", fleet)
    endpoint = of_node(about, node, defaults_of(settings))
    key = _allowed_key(endpoint, target.fingerprint, settings)
    node = replace(node, ssh=replace(ssh, host_key=f"{key.type} {key.base64}"))
    desired = Desired(Revision("", "init"), about, {name: node})
    with NodePool(owner="init", settings=settings) as pool:
        look = pool.look(desired, remember=False).nodes[name]
    if look.answer is None:
        hint = look.hint
        if look.error is LookError.AUTH:
            # There is no document yet whose ssh.user or ssh.identity_file could be set.
            hint = (
                f"put a public key of yours into {endpoint.user}'s authorized_keys there, or give"
                " USER@HOST and --identity FILE"
            )
        raise NodeUnseen(f"node {name}", look.error or LookError.UNREACHABLE, look.detail, hint)
    return Discovered(look.answer, key, endpoint.user, endpoint.port)


def _allowed_key(endpoint: Endpoint, fingerprint: str, settings: PoolSettings) -> KnownKey:
    dialer = Dialer(Credentials(settings.home), threading.BoundedSemaphore(1), random.Random())
    deadline = Deadline(endpoint.connect_timeout_s * 3)
    shown = []
    try:
        known = {} if fingerprint else {k.base64: k for k in _known(dialer, endpoint)}
        kinds = tuple(dict.fromkeys(k.type for k in known.values()))
        for key in dialer.shown_keys(endpoint, deadline, Abort(), kinds):
            if key.fingerprint == fingerprint:
                dialer.refuse_revoked(endpoint, key, f"{where(endpoint)} shows the host key")
            if key.fingerprint == fingerprint or key.base64 in known:
                return key
            shown.append(f"{key.type} {key.fingerprint}")
    finally:
        dialer.close()
    wanted = fingerprint or " or ".join(f"{k.fingerprint} ({k.source})" for k in known.values())
    raise NodeUnseen(
        endpoint.subject,
        LookError.HOST_KEY,
        f"{where(endpoint)} shows {', '.join(shown) or 'no key of a known type'}; expected"
        f" {wanted}",
        "if the fingerprint is right, somebody answers in the machine's place: do not go on",
    )


def _known(dialer: Dialer, endpoint: Endpoint) -> list[KnownKey]:
    try:
        return dialer.known_keys(endpoint)
    except NodeUnseen as error:
        reason = error.reason.replace("neither its document nor", "none of")
        raise NodeUnseen(error.subject, error.kind, reason, HOW_TO_READ) from error
