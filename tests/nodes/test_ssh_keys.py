"""Ways to log in, over real sshd: encrypted keys, ssh-agent, certificates, ~/.ssh/config."""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.core.model import Desired, NodeSsh
from reconciler.core.observed import LookError, NodeLook
from reconciler.nodes.loopback import LoopbackFleet, LoopbackNode
from reconciler.nodes.pool import NodePool, PoolSettings
from tests.support.desired import desired_of, node_of, with_node
from tests.support.waiting import until

PASSPHRASE = "a test's own"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LoopbackFleet]:
    with LoopbackFleet(tmp_path / "nodes", 2) as made:
        yield made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of whoever runs the reconciler."""
    (tmp_path / "home/.ssh").mkdir(parents=True, mode=0o700)
    return tmp_path / "home"


def first(fleet: LoopbackFleet) -> LoopbackNode:
    return next(iter(fleet.nodes.values()))


def keygen(*args: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *args], check=True, stdin=subprocess.DEVNULL)


def new_key(path: Path, passphrase: str = "") -> str:
    keygen("-t", "ed25519", "-N", passphrase, "-C", "", "-f", str(path))
    return path.with_name(path.name + ".pub").read_text()


def allow_only(fleet: LoopbackFleet, line: str) -> None:
    (fleet.folder / "authorized_keys").write_text(line)


def by_key(fleet: LoopbackFleet, identity: Path) -> Desired:
    node = node_of(first(fleet))
    ssh = replace(node.ssh, identity_file=str(identity))
    return with_node(desired_of(fleet), replace(node, ssh=ssh))


def look(desired: Desired, fleet: LoopbackFleet, home: Path) -> NodeLook:
    with NodePool(owner="a", settings=PoolSettings(home=home)) as pool:
        return pool.look(desired).nodes[first(fleet).name]


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_an_encrypted_key_is_refused_and_says_what_to_do(
    fleet: LoopbackFleet, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    key = home / ".ssh/locked"
    allow_only(fleet, new_key(key, PASSPHRASE))
    found = look(by_key(fleet, key), fleet, home)
    assert found.error is LookError.AUTH
    assert f"{key} is encrypted: load it with ssh-add" in f"{found.detail} {found.hint}"
    assert PASSPHRASE not in f"{found.detail} {found.hint}"


def test_an_encrypted_key_works_through_ssh_agent(
    fleet: LoopbackFleet, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, sock, ask = home / ".ssh/locked", home / "agent", home / "ask"
    allow_only(fleet, new_key(key, PASSPHRASE))
    ask.write_text(f'#!/bin/sh\necho "{PASSPHRASE}"\n')
    ask.chmod(0o700)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL) as agent:
        try:
            until(sock.exists, "ssh-agent")
            env = {**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
            add = ["ssh-add", "-q", str(key)]
            subprocess.run(add, env=env, check=True, stdin=subprocess.DEVNULL, timeout=20)
            desired, before = by_key(fleet, key), open_descriptors()
            gc.disable()  # a socket that only the garbage collector closes is one left open
            try:
                found = look(desired, fleet, home)
                until(lambda: open_descriptors() <= before, "ssh-agent's connection to be closed")
            finally:
                gc.enable()
        finally:
            agent.kill()
    assert found.answer is not None, found.detail


def test_a_users_certificate_is_used(fleet: LoopbackFleet, home: Path) -> None:
    authority, key = home / "authority", home / ".ssh/certified"
    public = new_key(authority)
    new_key(key)
    allow_only(fleet, "cert-authority " + public)
    without = look(by_key(fleet, key), fleet, home)
    assert without.error is LookError.AUTH
    keygen("-s", str(authority), "-I", "ada", "-n", first(fleet).user, f"{key}.pub")
    found = look(by_key(fleet, key), fleet, home)
    assert found.answer is not None, found.detail


def test_ssh_config_gives_host_port_user_key_and_jump(fleet: LoopbackFleet, home: Path) -> None:
    node, other = fleet.nodes.values()
    (home / ".ssh/known_hosts").write_text(
        "".join(f"[{n.address}]:{n.port} {n.host_key}\n" for n in (node, other))
    )
    (home / ".ssh/config").write_text(
        f"""
Host big-one
  HostName {node.address}
  ProxyJump door
Host door
  HostName {other.address}
Host big-one door
  Port {node.port}
  User {node.user}
  IdentityFile {node.identity_file}
"""
    )
    document = replace(node_of(node), address="big-one", ssh=NodeSsh())
    found = look(with_node(desired_of(fleet), document), fleet, home)
    assert found.answer is not None, found.detail
    assert found.answer.machine_id == node.machine_id
    fleet.stop(other.name)
    assert look(with_node(desired_of(fleet), document), fleet, home).answer is None
