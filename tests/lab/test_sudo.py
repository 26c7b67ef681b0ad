"""A login that becomes another user by sudo without a terminal, and each way that it may not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.core.observed import LookError, Phase
from reconciler.errors import NodeError
from tests.lab.test_faults import records, wipe
from tests.lab.world import World
from tools.labfleet import LabFleet

pytestmark = pytest.mark.lab

RULES = "/etc/sudoers.d/lab"
LOGIND = "/etc/systemd/logind.conf.d/lab.conf"
RESTART = (
    "systemctl reset-failed systemd-logind;"
    " systemctl restart systemd-logind && loginctl list-sessions"
)
"""Five in ten seconds would be refused, and a login without logind is in no session."""
PASSES = "op ALL=(ALL) NOPASSWD: ALL"


def as_operator(world: World, node: str, sudo: str, mode: str = "plain") -> World:
    """Log in as `op` and become `sudo`."""
    old = world.desired.nodes[node]
    ssh = replace(old.ssh, user="op", sudo=sudo)
    nodes = {**world.desired.nodes, node: replace(old, ssh=ssh, mode=mode)}
    world.desired = replace(world.desired, nodes=nodes)
    return world


@pytest.fixture
def node(lab: LabFleet) -> Iterator[str]:
    """A node with a user `infer`; what it says of sudo and logind is as before afterwards."""
    name = lab.names[2]
    made = lab.ssh(name, "id infer >/dev/null 2>&1 || useradd --create-home infer")
    assert made.returncode == 0, made.stderr
    yield name
    lab.ssh(name, f"echo '{PASSES}' > {RULES}; rm -f {LOGIND}; {RESTART}")
    lab.ssh(name, "rm -rf /home/*/.local/state/reconcile")
    if records(lab, name).exists():
        lab.power_cut(name)
        wipe(records(lab, name))
        lab.start(name)


@pytest.fixture
def world(lab: LabFleet, tmp_path: Path) -> Iterator[World]:
    world = World(lab, tmp_path)
    yield world
    world.close()


def owner_of(lab: LabFleet, node: str, pid: int) -> str:
    return lab.ssh(node, f"stat -c %U /proc/{pid}").stdout.strip()


def test_an_operator_who_becomes_root_may_use_mode_system(
    world: World, lab: LabFleet, node: str
) -> None:
    as_operator(world, node, "root", "system")
    assert (world.answer(node).user, world.answer(node).no_system) == ("root", "")
    launch = world.start(node, "chat")
    (pid,) = world.until_ready(node, launch).pids
    assert owner_of(lab, node, pid) == "root"
    assert lab.ssh(node, f"systemctl is-active reconcile-{launch}.service").stdout == "active\n"
    world.stop(node, launch)
    world.until(node, launch, lambda s: s.phase is Phase.ENDED and not s.alive)
    assert world.marked(node) == []


def test_an_operator_may_become_a_user_who_may_not_log_in(
    world: World, lab: LabFleet, node: str
) -> None:
    as_operator(world, node, "infer")
    answer = world.answer(node)
    assert (answer.user, answer.root) == ("infer", "/home/infer/.local/state/reconcile")
    launch = world.start(node, "chat")
    (pid,) = world.until_ready(node, launch).pids
    assert owner_of(lab, node, pid) == "infer"
    world.pool.close()
    world = as_operator(World(lab, Path("/nonexistent")), node, "infer")
    after = world.until_ready(node, launch)
    assert (after.pids, after.restarts) == ((pid,), 0), "it must outlive the login"
    world.stop(node, launch)
    world.until(node, launch, lambda s: s.phase is Phase.ENDED and not s.alive)
    assert world.marked(node) == []
    world.close()


@pytest.mark.parametrize(
    ("rules", "sudo", "said", "hint"),
    [
        (
            "op ALL=(ALL) ALL",
            "root",
            "sudo asks 'op' for a password to become 'root'",
            "`op ALL=(root) NOPASSWD: ALL`",
        ),
        (
            f"Defaults:op requiretty\n{PASSES}",
            "root",
            "sudo wants a terminal of 'op' (requiretty), and there is none",
            "`Defaults:op !requiretty`",
        ),
        ("", "root", "sudo", "`op ALL=(root) NOPASSWD: ALL`"),
        (
            "op ALL=(infer) NOPASSWD: ALL",
            "root",
            "sudo",
            "`op ALL=(root) NOPASSWD: ALL`",
        ),
        (PASSES, "nobody-such", "there is no user 'nobody-such' to become", "correct ssh.sudo"),
    ],
    ids=["password", "requiretty", "not a sudoer", "another target", "no such user"],
)
def test_what_sudo_refuses_is_told_with_what_to_write_there(
    world: World, lab: LabFleet, node: str, rules: str, sudo: str, said: str, hint: str
) -> None:
    assert lab.ssh(node, f"printf '%b\\n' '{rules}' > {RULES}").returncode == 0
    look = as_operator(world, node, sudo).look(node)
    assert (look.answer, look.error) == (None, LookError.UNSUITABLE)
    assert look.detail.startswith(said)
    assert hint in look.hint


def test_a_node_without_sudo_says_so(world: World, lab: LabFleet, node: str) -> None:
    lab.ssh(node, "mv /usr/bin/sudo /usr/bin/sudo.away")
    try:
        look = as_operator(world, node, "root").look(node)
    finally:
        lab.ssh(node, "mv /usr/bin/sudo.away /usr/bin/sudo")
    assert look.error is LookError.UNSUITABLE
    assert look.detail.startswith("sudo is not installed")


@pytest.mark.parametrize("sudo", ["", "root", "infer"])
def test_where_logind_ends_the_operators_session_plain_mode_is_refused_whoever_it_becomes(
    world: World, lab: LabFleet, node: str, sudo: str
) -> None:
    text = "[Login]\\nKillUserProcesses=yes\\n"
    lab.ssh(node, f"mkdir -p $(dirname {LOGIND}); printf '{text}' > {LOGIND}")
    assert lab.ssh(node, RESTART).returncode == 0
    as_operator(world, node, sudo)
    launch, fields = world.spec(node, "chat")
    with pytest.raises(NodeError, match="logind ends the processes of op at logout"):
        world.ask(node, "start", **world.fence(node), **fields)
    assert world.shard(node, launch) is None
