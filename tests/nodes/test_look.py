"""A look over real sshd nodes: everything that can be wrong with one costs only that one."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.core.model import Desired, Node, NodeSsh, NodeState, SshSettings
from reconciler.core.observed import LookError, NodeLook, Observed
from reconciler.nodes.channel import AgentPackage
from reconciler.nodes.loopback import LoopbackFleet, LoopbackNode, write_key
from reconciler.nodes.pool import NodePool
from tests.nodes.conftest import MakePool
from tests.nodes.standin import StandIn, package
from tests.support.desired import desired_of, with_node
from tests.support.fixtures import StartFleet
from tests.support.waiting import until


def errors(observed: Observed) -> dict[str, LookError | None]:
    return {name: look.error for name, look in observed.nodes.items()}


def with_ssh(desired: Desired, name: str, **ssh: object) -> Desired:
    node = desired.nodes[name]
    changed: NodeSsh = replace(node.ssh, **ssh)  # type: ignore[arg-type]
    return with_node(desired, replace(node, ssh=changed))


def only(observed: Observed, name: str = "node-1") -> NodeLook:
    return observed.nodes[name]


OK = {"node-1": None, "node-2": None, "node-3": None}


def test_all_nodes_answer_each_with_its_own_identity(
    loopback_fleet: LoopbackFleet, make_pool: MakePool
) -> None:
    observed = make_pool().look(desired_of(loopback_fleet))
    assert errors(observed) == OK
    for name, node in loopback_fleet.nodes.items():
        answer = observed.answer(name)
        assert answer is not None
        assert (answer.machine_id, answer.boot_id) == (node.machine_id, node.boot_id)


def test_the_agent_is_sent_only_where_it_is_absent(
    start_fleet: StartFleet, make_pool: MakePool
) -> None:
    fleet = start_fleet(1)
    agent = package()
    sent = agent.bootstrap
    assert isinstance(sent, StandIn)
    for _ in range(3):
        with_new_connection = make_pool(agent=agent)
        assert only(with_new_connection.look(desired_of(fleet))).error is None
    assert sent.uploads == 1


def test_a_second_look_uses_the_same_connection(
    start_fleet: StartFleet, make_pool: MakePool
) -> None:
    fleet, pool = start_fleet(1), make_pool()
    desired = desired_of(fleet)
    pool.look(desired)
    sessions = fleet.pids("node-1")
    for _ in range(20):
        assert only(pool.look(desired)).error is None
    assert fleet.pids("node-1") == sessions
    counts = [pool.request(desired, "node-1", "echo")["count"] for _ in range(2)]
    assert counts == [22, 23]


def test_a_hundred_looks_need_one_session(start_fleet: StartFleet, make_pool: MakePool) -> None:
    fleet = start_fleet(1, options={"MaxSessions": "1", "MaxStartups": "1:30:1"})
    pool, desired = make_pool(), desired_of(fleet)
    assert [only(pool.look(desired)).error for _ in range(100)] == [None] * 100


def test_a_node_that_is_lost_is_not_asked(
    loopback_fleet: LoopbackFleet, make_pool: MakePool
) -> None:
    desired = desired_of(loopback_fleet)
    lost = replace(desired.nodes["node-2"], state=NodeState.LOST, reason="burnt")
    observed = make_pool().look(with_node(desired, lost))
    assert errors(observed) == {"node-1": None, "node-3": None}


@pytest.mark.parametrize("warm", [False, True])
def test_a_node_that_never_stops_talking_keeps_no_look(
    loopback_fleet: LoopbackFleet, make_pool: MakePool, warm: bool
) -> None:
    pool, desired = make_pool(), desired_of(loopback_fleet, observe_timeout_s=10)
    if warm:
        assert errors(pool.look(desired)) == OK
    flag = loopback_fleet.nodes["node-2"].root / "flood"
    flag.parent.mkdir(parents=True, exist_ok=True)
    flag.touch()
    took, observed = timed(pool, desired)
    flag.unlink()
    assert errors(observed) == {**OK, "node-2": LookError.DAMAGED}
    assert took < 10, "it is given up before the deadline of the others"


# --- A node that is down, frozen or cut off ---------------------------------------------------


def timed(pool: NodePool, desired: Desired) -> tuple[float, Observed]:
    began = time.monotonic()
    observed = pool.look(desired)
    return time.monotonic() - began, observed


@pytest.mark.parametrize("warm", [False, True])
def test_a_frozen_node_costs_itself_and_is_told_by_the_deadline(
    loopback_fleet: LoopbackFleet, make_pool: MakePool, warm: bool
) -> None:
    pool, desired = make_pool(), desired_of(loopback_fleet, observe_timeout_s=2)
    if warm:
        pool.look(desired)
    loopback_fleet.freeze("node-2")
    took, observed = timed(pool, desired)
    assert errors(observed) == {**OK, "node-2": LookError.UNREACHABLE}
    assert took <= 2.2, "later than the deadline and a tenth"
    others = [observed.nodes[name].look_ms for name in ("node-1", "node-3")]
    assert max(others) < 1500, "a mute node held up the others"
    assert "s" in only(observed, "node-2").detail
    loopback_fleet.thaw("node-2")


def test_a_frozen_node_is_left_alone_until_its_back_off_is_over(
    loopback_fleet: LoopbackFleet, make_pool: MakePool
) -> None:
    pool = make_pool(retry_base_s=60)
    quick = SshSettings(connect_timeout_s=1)
    desired = desired_of(loopback_fleet, observe_timeout_s=1, ssh=quick)
    loopback_fleet.freeze("node-2")
    pool.look(desired)
    until(lambda: not threads("look node-2"), "the thread of the frozen node has ended")
    took, observed = timed(pool, desired)
    assert took < 0.9, "the second look waited for the frozen node again"
    assert "next try in" in only(observed, "node-2").detail
    loopback_fleet.thaw("node-2")


def test_a_mute_node_costs_a_pass_of_two_looks_one_deadline(
    loopback_fleet: LoopbackFleet, make_pool: MakePool
) -> None:
    pool, desired = make_pool(), desired_of(loopback_fleet, observe_timeout_s=2)
    loopback_fleet.freeze("node-2")
    pool.look(desired)
    took, observed = timed(pool, desired)
    assert errors(observed) == {**OK, "node-2": LookError.UNREACHABLE}
    assert took < 1.5, "the second look waited for the mute node again"
    loopback_fleet.thaw("node-2")
    until(lambda: errors(pool.look(desired)) == OK, "the connection that was begun is used")


def threads(prefix: str = "") -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(prefix)]


def test_a_stopped_node_reads_unreachable_and_comes_back(
    loopback_fleet: LoopbackFleet, make_pool: MakePool
) -> None:
    pool, desired = make_pool(retry_base_s=0.01), desired_of(loopback_fleet)
    pool.look(desired)
    loopback_fleet.stop("node-3")
    assert errors(pool.look(desired)) == {**OK, "node-3": LookError.UNREACHABLE}
    loopback_fleet.start("node-3")
    until(lambda: errors(pool.look(desired)) == OK, "node-3 is seen again")


def test_a_connection_that_was_cut_between_looks_says_nothing_about_the_node(
    loopback_fleet: LoopbackFleet, make_pool: MakePool
) -> None:
    pool, desired = make_pool(), desired_of(loopback_fleet)
    pool.look(desired)
    for name in loopback_fleet.nodes:
        loopback_fleet.restart(name)
    assert errors(pool.look(desired)) == OK


def test_an_address_where_nobody_listens_is_unreachable(
    loopback_fleet: LoopbackFleet, make_pool: MakePool
) -> None:
    desired = with_ssh(desired_of(loopback_fleet), "node-1", port=1)
    observed = make_pool().look(desired)
    assert errors(observed) == {**OK, "node-1": LookError.UNREACHABLE}
    assert "refused" in only(observed).detail


def test_startups_above_the_limit_of_sshd_are_tried_again(
    start_fleet: StartFleet, make_pool: MakePool
) -> None:
    fleet = start_fleet(1, options={"MaxStartups": "1:100:1", "LoginGraceTime": "1"})
    node = fleet["node-1"]
    desired = desired_of(fleet)
    squatter = until(lambda: greeted(node), "the only place is free")
    assert squatter is not None
    with squatter:
        # It holds that place until sshd's grace is over, a second later.
        pool = make_pool(retry_base_s=0.01)
        until(lambda: only(pool.look(desired)).error is None, "sshd has a place again")


def greeted(node: LoopbackNode) -> socket.socket | None:
    """A connection that sshd has accepted and greeted."""
    peer = socket.create_connection((node.address, node.port))
    if peer.recv(4) == b"SSH-":
        return peer
    peer.close()
    return None


# --- Who is asked, and as whom ----------------------------------------------------------------


def test_a_reinstalled_machine_is_held_and_the_message_says_what_to_do(
    loopback_fleet: LoopbackFleet, make_pool: MakePool
) -> None:
    pool, desired = make_pool(), desired_of(loopback_fleet)
    pool.look(desired)
    loopback_fleet.reinstall("node-2")
    observed = pool.look(desired)
    assert errors(observed) == {**OK, "node-2": LookError.HOST_KEY}
    look = only(observed, "node-2")
    assert look.detail.count("SHA256:") == 2
    assert "the inventory" in look.detail
    assert "ssh.host_key" in look.hint


def test_another_machine_behind_a_known_key_is_held(
    start_fleet: StartFleet, make_pool: MakePool
) -> None:
    fleet, pool = start_fleet(1), make_pool(retry_base_s=0.01)
    pool.look(desired_of(fleet))
    fleet.reinstall("node-1")
    rotated = desired_of(fleet)  # a person put the new key into the document
    look = only(pool.look(rotated))
    assert look.error is LookError.MACHINE_ID
    assert look.answer is None
    assert "lost" in look.hint
    lost = replace(rotated.nodes["node-1"], state=NodeState.LOST, reason="replaced")
    pool.look(with_node(rotated, lost))
    assert only(pool.look(rotated)).error is None


def test_a_server_with_several_keys_shows_the_one_that_is_known(
    start_fleet: StartFleet, make_pool: MakePool
) -> None:
    fleet = start_fleet(1)
    node = fleet["node-1"]
    second = write_ecdsa(node.folder / "host_key_2")
    config = node.folder / "sshd_config"
    config.write_text(config.read_text() + f"HostKey {node.folder}/host_key_2\n")
    fleet.restart("node-1")
    for key in (node.host_key, second):
        look = only(make_pool().look(with_ssh(desired_of(fleet), "node-1", host_key=key)))
        assert look.error is None, look.detail


def write_ecdsa(path: Path) -> str:
    import paramiko

    key = paramiko.ECDSAKey.generate()
    key.write_private_key_file(str(path))
    return f"{key.get_name()} {key.get_base64()}"


def test_a_server_without_a_key_of_the_known_type_is_held(
    start_fleet: StartFleet, make_pool: MakePool, tmp_path: Path
) -> None:
    known = write_ecdsa(tmp_path / "other")
    fleet = start_fleet(1)
    look = only(make_pool().look(with_ssh(desired_of(fleet), "node-1", host_key=known)))
    assert look.error is LookError.HOST_KEY
    assert "ecdsa-sha2-nistp256" in look.detail


def test_a_host_key_that_nobody_named_is_never_learnt(
    start_fleet: StartFleet, make_pool: MakePool, tmp_path: Path
) -> None:
    fleet = start_fleet(1)
    node = fleet["node-1"]
    known = tmp_path / "known_hosts"
    known.write_text("")
    pool = make_pool(known_hosts=(known,), retry_base_s=0)
    desired = with_ssh(desired_of(fleet), "node-1", host_key="")
    for _ in range(2):
        look = only(pool.look(desired))
        assert look.error is LookError.HOST_KEY
        assert f"[{node.address}]:{node.port}" in look.detail
    assert known.read_text() == ""
    known.write_text(f"[{node.address}]:{node.port} {node.host_key}\n")
    assert only(pool.look(desired)).error is None


@pytest.mark.parametrize("named_by", ["inventory", "known_hosts", "another", "a file of its own"])
def test_a_revoked_host_key_is_refused_whoever_names_it(
    start_fleet: StartFleet, make_pool: MakePool, tmp_path: Path, named_by: str
) -> None:
    fleet = start_fleet(1)
    node = fleet["node-1"]
    standard = tmp_path / ".ssh" / "known_hosts"
    standard.parent.mkdir()
    line = f"[{node.address}]:{node.port} {node.host_key}\n"
    other = write_key(tmp_path / "other")
    desired = with_ssh(desired_of(fleet), "node-1", host_key="")
    if named_by == "inventory":
        desired = desired_of(fleet)
    elif named_by == "known_hosts":
        standard.write_text(line)
    elif named_by == "another":
        standard.write_text(f"[{node.address}]:{node.port} {other}\n")
    else:
        (tmp_path / "own").write_text(line)
        desired = with_ssh(desired, "node-1", known_hosts=str(tmp_path / "own"))
    pool = make_pool(retry_base_s=0)
    before = only(pool.look(desired)).error
    assert before is (LookError.HOST_KEY if named_by == "another" else None)
    pool.close()
    with standard.open("a") as file:
        file.write(f"@revoked somewhere {node.host_key}\n")
    look = only(make_pool(retry_base_s=0).look(desired))
    assert look.error is LookError.HOST_KEY
    assert f"{standard}:" in look.detail
    assert "revokes" in look.detail


def test_an_authority_of_host_certificates_lets_nobody_in(
    start_fleet: StartFleet, make_pool: MakePool, tmp_path: Path
) -> None:
    # The node shows the authority's own key: worse could not be.
    fleet = start_fleet(1)
    node = fleet["node-1"]
    known = tmp_path / "known_hosts"
    known.write_text(f"@cert-authority * {node.host_key}\n")
    desired = with_ssh(desired_of(fleet), "node-1", host_key="")
    look = only(make_pool(known_hosts=(known,)).look(desired))
    assert look.error is LookError.HOST_KEY
    assert f"{known}:1 names an authority of host certificates, which are not" in look.detail


def test_a_key_that_is_not_authorized_says_what_was_tried(
    start_fleet: StartFleet, make_pool: MakePool, tmp_path: Path
) -> None:
    fleet = start_fleet(2)
    write_key(tmp_path / "stranger")
    desired = with_ssh(desired_of(fleet), "node-1", identity_file=str(tmp_path / "stranger"))
    observed = make_pool().look(desired)
    assert errors(observed) == {"node-1": LookError.AUTH, "node-2": None}
    assert str(tmp_path / "stranger") in only(observed).detail
    assert "authorized_keys" in only(observed).hint


def test_a_user_that_does_not_exist_is_an_authentication_failure(
    start_fleet: StartFleet, make_pool: MakePool
) -> None:
    desired = with_ssh(desired_of(start_fleet(1)), "node-1", user="nobody-at-all")
    look = only(make_pool().look(desired))
    assert look.error is LookError.AUTH
    assert "'nobody-at-all'" in look.detail


def test_a_node_behind_a_jump_host_is_reached_through_it(
    start_fleet: StartFleet, make_pool: MakePool, tmp_path: Path
) -> None:
    fleet = start_fleet(3)
    bastion = fleet["node-3"]
    known = tmp_path / "known_hosts"
    known.write_text(f"[{bastion.address}]:{bastion.port} {bastion.host_key}\n")
    desired = desired_of(fleet)
    for name in ("node-1", "node-2"):
        jump = f"{bastion.user}@{bastion.address}:{bastion.port}"
        desired = with_ssh(desired, name, jump=jump, known_hosts=str(known))
    pool = make_pool(retry_base_s=0.01)
    assert errors(pool.look(desired)) == OK
    fleet.stop("node-3")
    observed = pool.look(desired)
    assert set(errors(observed).values()) == {LookError.UNREACHABLE}
    assert f"jump host {bastion.address}" in only(observed).detail
    fleet.start("node-3")
    until(lambda: errors(pool.look(desired)) == OK, "all are seen through the bastion again")


# --- What runs there ---------------------------------------------------------------------------


def noisy_bash(home: Path) -> None:
    (home / ".bashrc").write_text("echo Welcome; printf 'no newline'; echo warning >&2\n")


@pytest.mark.parametrize("shell", ["bash", "dash", "fish", "tcsh"])
def test_any_login_shell_will_do(start_fleet: StartFleet, make_pool: MakePool, shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed: apt install {shell}")
    look = only(make_pool().look(desired_of(start_fleet(1, shell=path))))
    assert look.error is None, look.detail


NOISES: dict[str, Callable[[Path], None]] = {
    "bash": noisy_bash,
    "tcsh": lambda home: _write(home / ".tcshrc", "echo Welcome to the machine\n"),
    "fish": lambda home: _write(home / ".config/fish/config.fish", "echo Welcome\n"),
}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("shell", sorted(NOISES))
def test_a_banner_and_a_noisy_profile_do_no_harm(
    start_fleet: StartFleet, make_pool: MakePool, tmp_path: Path, shell: str
) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed: apt install {shell}")
    (tmp_path / "banner").write_text("AUTHORIZED USE ONLY\n" * 50)
    fleet = start_fleet(1, shell=path, options={"Banner": str(tmp_path / "banner")})
    NOISES[shell](fleet["node-1"].home)
    pool, desired = make_pool(), desired_of(fleet)
    assert only(pool.look(desired)).error is None
    assert pool.request(desired, "node-1", "echo", data="x")["got"] == "x"


def test_a_node_without_python_is_unsuitable_and_told_so(
    start_fleet: StartFleet, make_pool: MakePool
) -> None:
    look = only(make_pool().look(desired_of(start_fleet(1, path="/nowhere"))))
    assert look.error is LookError.UNSUITABLE
    assert "python3 is not on the PATH" in look.detail


class SlowToSpeak(StandIn):
    """Says nothing to the node before what it started there has ended."""

    def __init__(self, ended: Path) -> None:
        super().__init__()
        self.ended = ended

    def line(
        self, marker: str, agent_hash: str, root: str, previous_roots: Sequence[str] = ()
    ) -> str:
        until(self.ended.exists, "python3 to end")
        time.sleep(0.5)  # for the word of it to arrive; too short, and nothing is tried here
        return super().line(marker, agent_hash, root, previous_roots)


def test_a_node_without_python_is_told_so_even_if_that_ended_before_it_was_spoken_to(
    start_fleet: StartFleet, make_pool: MakePool, tmp_path: Path
) -> None:
    tool, ended = tmp_path / "bin" / "python3", tmp_path / "ended"
    _write(tool, f"#!/bin/sh\n/usr/bin/touch {ended}\nexit 127\n")
    tool.chmod(0o755)
    agent = AgentPackage(SlowToSpeak(ended), b"x", "0" * 64)
    look = only(make_pool(agent=agent).look(desired_of(start_fleet(1, path=str(tool.parent)))))
    assert look.error is LookError.UNSUITABLE, look.detail
    assert "python3 is not on the PATH" in look.detail


PROGRAMS: dict[str, tuple[str, str]] = {
    "ends by a signal": ("#!/bin/sh\nkill -SEGV $$\n", "as by a signal"),
    "cannot write a byte": (
        '#!/bin/sh\nulimit -f 0\nexec /usr/bin/python3 "$@"\n',
        "could not start the agent: OSError",
    ),
    "has no interpreter": ("#!/nowhere/python3\n", "on the PATH"),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_python_that_cannot_work_is_told_at_once_and_in_words(
    start_fleet: StartFleet, make_pool: MakePool, tmp_path: Path, what: str
) -> None:
    program, said = PROGRAMS[what]
    tool = tmp_path / "bin" / "python3"
    _write(tool, program)
    tool.chmod(0o755)
    fleet = start_fleet(1, path=f"{tool.parent}:/usr/bin:/bin")
    took, observed = timed(make_pool(agent=None), desired_of(fleet))
    look = only(observed)
    assert look.error is LookError.UNSUITABLE, look.detail
    assert said in look.detail
    assert took < 8, "it was waited for"


@pytest.mark.parametrize(
    ("option", "word"),
    [
        ({"KexAlgorithms": "diffie-hellman-group1-sha1"}, "curve25519-sha256"),
        ({"Ciphers": "chacha20-poly1305@openssh.com"}, "aes128-gcm@openssh.com"),
        ({"MACs": "umac-128@openssh.com", "Ciphers": "aes128-ctr"}, "hmac-sha2-256"),
    ],
)
def test_an_sshd_that_speaks_nothing_of_ours_is_told_what_would_do(
    start_fleet: StartFleet, make_pool: MakePool, option: dict[str, str], word: str
) -> None:
    look = only(make_pool().look(desired_of(start_fleet(1, options=option))))
    assert look.error is LookError.UNREACHABLE
    assert word in look.hint


def test_a_known_hosts_that_is_a_folder_is_none(
    start_fleet: StartFleet, make_pool: MakePool, tmp_path: Path
) -> None:
    (tmp_path / ".ssh" / "known_hosts").mkdir(parents=True)
    look = only(make_pool().look(with_ssh(desired_of(start_fleet(1)), "node-1", host_key="")))
    assert look.error is LookError.HOST_KEY


def test_a_bootstrap_that_calls_the_node_unsuitable_is_quoted(
    start_fleet: StartFleet, make_pool: MakePool
) -> None:
    program = """
import json
text = json.dumps({"bootstrap": "unsuitable", "message": "python3 lacks http.client"})
print("\\x1eRECONCILE %s %d %s" % (marker, len(text), text), flush=True)
"""
    look = only(make_pool(agent=package(program)).look(desired_of(start_fleet(1))))
    assert look.error is LookError.UNSUITABLE
    assert look.detail == "python3 lacks http.client"


def test_sudo_to_another_user_needs_no_terminal(
    start_fleet: StartFleet, make_pool: MakePool
) -> None:
    if shutil.which("sudo") is None:
        pytest.skip("sudo is not installed: apt install sudo")
    fleet = start_fleet(1)
    look = only(make_pool().look(with_ssh(desired_of(fleet), "node-1", sudo="nobody-at-all")))
    assert look.error is LookError.UNSUITABLE
    assert "sudo" in look.detail


def test_sshd_that_allows_no_session_is_told(start_fleet: StartFleet, make_pool: MakePool) -> None:
    look = only(make_pool().look(desired_of(start_fleet(1, options={"MaxSessions": "0"}))))
    assert look.error is LookError.UNREACHABLE
    assert "session" in look.detail


def test_a_node_document_is_enough_to_be_told_of(
    start_fleet: StartFleet, make_pool: MakePool
) -> None:
    """A wrong document is that node's problem, however wrong it is."""
    desired = desired_of(start_fleet(2))
    observed = make_pool().look(with_ssh(desired, "node-1", host_key="nonsense"))
    assert errors(observed) == {"node-1": LookError.HOST_KEY, "node-2": None}
    wrong_jump: Node = with_ssh(desired, "node-1", jump="::1").nodes["node-1"]
    observed = make_pool().look(with_node(desired, wrong_jump))
    assert errors(observed) == {"node-1": LookError.UNREACHABLE, "node-2": None}
