"""Where a node is and how it is reached, resolved: node before fleet before ~/.ssh/config.

Pure but for what `paramiko.SSHConfig` does when a `Match exec` is asked. An Endpoint is a value: if
an edit in git changes it, the connection is made anew; if not, it is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from reconciler.core.model import Fleet, Node
from reconciler.core.observed import LookError
from reconciler.nodes import sshconfig
from reconciler.nodes.protocol import NodeUnseen

MAX_JUMPS = 4
"""A config in which hosts jump through each other must end."""
DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


@dataclass(frozen=True)
class Endpoint:
    """All that a connection depends on."""

    subject: str
    """How messages name it: `node gpu-a`, `jump host bastion`."""
    address: str
    port: int
    user: str
    host_key: str = ""
    """From the inventory; then known_hosts is not asked."""
    host_key_name: str = ""
    """Name in known_hosts; empty: address and port."""
    known_hosts: tuple[Path, ...] = ()
    revoking: tuple[Path, ...] = ()
    """known_hosts files whose `@revoked` lines count as well, whichever file the keys come from."""
    identity_files: tuple[Path, ...] = ()
    identities_only: bool = False
    sudo: str = ""
    root: str = ""
    previous_roots: tuple[str, ...] = ()
    connect_timeout_s: float = 10.0
    jump: Endpoint | None = None


@dataclass(frozen=True)
class SshDefaults:
    """The machine that the reconciler runs on."""

    user: str
    home: Path
    known_hosts: tuple[Path, ...] = ()
    """Empty: ~/.ssh/known_hosts and /etc/ssh/ssh_known_hosts."""
    config: paramiko.SSHConfig | None = None

    def path(self, text: str) -> Path:
        """`~` is this home; relative paths are relative to it, as in ssh_config(5)."""
        if text.startswith("~/"):
            text = text[2:]
        return self.home / text


def of_node(fleet: Fleet, node: Node, defaults: SshDefaults) -> Endpoint:
    """How to reach `node`. Raises NodeUnseen where its configuration cannot be followed."""
    ssh, base = node.ssh, fleet.ssh
    return _resolve(
        defaults,
        subject=f"node {node.name}",
        host=node.address,
        user=ssh.user or base.user,
        port=ssh.port or base.port,
        jump=ssh.jump or base.jump,
        identity_file=ssh.identity_file or base.identity_file,
        known_hosts=ssh.known_hosts or base.known_hosts,
        host_key=ssh.host_key,
        sudo=ssh.sudo or base.sudo,
        root=node.root or fleet.root,
        previous_roots=node.previous_roots,
        connect_timeout_s=ssh.connect_timeout_s or base.connect_timeout_s,
        depth=0,
    )


def _resolve(
    defaults: SshDefaults,
    *,
    subject: str,
    host: str,
    user: str,
    port: int,
    jump: str,
    identity_file: str,
    known_hosts: str,
    host_key: str,
    sudo: str,
    root: str,
    connect_timeout_s: float,
    depth: int,
    previous_roots: tuple[str, ...] = (),
) -> Endpoint:
    config: dict[str, Any] = sshconfig.lookup(defaults.config, subject, host)
    if (config.get("proxycommand") or "none").lower() != "none":
        problem = f"~/.ssh/config has a ProxyCommand for {host}, which is not supported"
        raise NodeUnseen(subject, LookError.UNREACHABLE, problem, "use ProxyJump, or `jump`")
    if not jump and config.get("proxyjump", "none").lower() != "none":
        jump = config["proxyjump"]
    files = [identity_file] if identity_file else list(config.get("identityfile", []))
    known = [known_hosts] if known_hosts else config.get("userknownhostsfile", "").split()
    return Endpoint(
        subject=subject,
        address=config.get("hostname", host),
        port=port or _port(subject, config.get("port", "22")),
        user=user or config.get("user", defaults.user),
        host_key=host_key,
        host_key_name=config.get("hostkeyalias", ""),
        known_hosts=tuple(map(defaults.path, known)) or _known_hosts(defaults),
        revoking=(*defaults.known_hosts, *_standard(defaults)),
        identity_files=tuple(map(defaults.path, files)),
        identities_only=bool(identity_file) or config.get("identitiesonly", "no") == "yes",
        sudo=sudo,
        root=root,
        previous_roots=previous_roots,
        connect_timeout_s=connect_timeout_s,
        jump=_jump(defaults, subject, jump, identity_file, known_hosts, connect_timeout_s, depth),
    )


def _port(subject: str, text: str) -> int:
    if re.fullmatch(r"[0-9]{1,5}", text, re.ASCII):
        return int(text)
    reason = f"~/.ssh/config says Port {text!r}, which is no number"
    raise NodeUnseen(subject, LookError.UNREACHABLE, reason, "correct it, or set ssh.port")


def _known_hosts(defaults: SshDefaults) -> tuple[Path, ...]:
    return defaults.known_hosts or _standard(defaults)


def _standard(defaults: SshDefaults) -> tuple[Path, ...]:
    return (defaults.home / ".ssh/known_hosts", Path("/etc/ssh/ssh_known_hosts"))


def _jump(
    defaults: SshDefaults,
    subject: str,
    text: str,
    identity_file: str,
    known_hosts: str,
    connect_timeout_s: float,
    depth: int,
) -> Endpoint | None:
    if not text:
        return None
    if depth >= MAX_JUMPS:
        problem = f"more than {MAX_JUMPS} jump hosts on the way to it"
        raise NodeUnseen(subject, LookError.UNREACHABLE, problem, "see ProxyJump in ~/.ssh/config")
    # `a,b` means: first a, then b; so b is reached through a.
    before, _, last = text.rpartition(",")
    user, host, port = parse_jump(last)
    return _resolve(
        defaults,
        subject=f"jump host {host}",
        host=host,
        user=user,
        port=port,
        jump=before,
        identity_file=identity_file,
        known_hosts=known_hosts,
        host_key="",
        sudo="",
        root="",
        connect_timeout_s=connect_timeout_s,
        depth=depth + 1,
    )


def parse_jump(text: str) -> tuple[str, str, int]:
    """(user, host, port) of `[user@]host[:port]`; IPv6 addresses stand in brackets."""
    match = re.fullmatch(r"(?:(.+)@)?(?:\[([^]]+)\]|([^:]+))(?::(\d+))?", text.strip())
    if not match:
        raise NodeUnseen(
            f"jump host {text!r}",
            LookError.UNREACHABLE,
            "is not [user@]host[:port]",
            "an IPv6 address needs brackets",
        )
    return match[1] or "", match[2] or match[3], int(match[4] or 0)
