"""LoopbackFleet is what the demo and the end-to-end tests stand on, so it has tests of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from reconciler.nodes import processes
from reconciler.nodes.loopback import LoopbackFleet, LoopbackNode
from tests.support.fixtures import StartFleet
from tests.support.waiting import until


def ssh(node: LoopbackNode, command: str) -> str:
    known = node.folder / "known_hosts"
    known.write_text(f"[{node.address}]:{node.port} {node.host_key}\n")
    argv = ["ssh", "-F", "none", "-p", str(node.port), "-i", str(node.identity_file)]
    argv += ["-o", f"UserKnownHostsFile={known}", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]
    argv += [f"{node.user}@{node.address}", command]
    return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True).stdout


def test_each_node_has_its_own_identity_home_and_records(loopback_fleet: LoopbackFleet) -> None:
    seen = set()
    for node in loopback_fleet.nodes.values():
        said = ssh(node, "echo $RECONCILE_IDENTITY_DIR $RECONCILE_ROOT $HOME").split()
        assert said == [str(node.identity), str(node.root), str(node.home)]
        seen |= {node.machine_id, node.boot_id, node.host_key, node.address}
    assert len(seen) == 12


def test_close_ends_what_carries_a_mark_and_nothing_else(start_fleet: StartFleet) -> None:
    fleet = start_fleet(1)
    node = fleet["node-1"]
    mark = f"RECONCILE_MARK=f/l/0@{node.machine_id}"
    # Own session, own environment: what an engine that escaped its supervisor looks like.
    ssh(node, f"env -i {mark} setsid sleep 600 >/dev/null 2>&1 </dev/null &")
    other = subprocess.Popen(["env", "RECONCILE_MARK=f/l/0@another", "sleep", "600"])
    try:
        until(lambda: len(fleet.processes("node-1")) == 1, "the marked process runs")
        fleet.close()
        assert fleet.processes("node-1") == []
        assert other.poll() is None, "a process of another machine id was ended"
    finally:
        other.kill()
        other.wait()


def test_reboot_changes_the_boot_id_only_and_reinstall_everything(start_fleet: StartFleet) -> None:
    fleet = start_fleet(1)
    before = fleet["node-1"]
    machine, boot = before.machine_id, before.boot_id
    fleet.reboot("node-1")
    assert (before.machine_id == machine, before.boot_id == boot) == (True, False)
    after = fleet.reinstall("node-1")
    assert after.machine_id != machine
    assert after.host_key != before.host_key
    assert (after.address, after.port) == (before.address, before.port)


def test_a_frozen_node_accepts_tcp_and_stays_mute(start_fleet: StartFleet) -> None:
    fleet = start_fleet(1)
    node = fleet["node-1"]
    fleet.freeze("node-1")
    with socket.create_connection((node.address, node.port), 5.0) as peer:
        peer.settimeout(0.3)
        try:
            said = peer.recv(4)
        except TimeoutError:
            said = b""
        assert said == b""
        fleet.thaw("node-1")
        peer.settimeout(5.0)
        assert peer.recv(4) == b"SSH-"


def test_two_fleets_share_no_address(start_fleet: StartFleet) -> None:
    first, second = start_fleet(1), start_fleet(1)
    assert first["node-1"].address != second["node-1"].address


def test_servers_end_with_a_killed_parent(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from reconciler.nodes.loopback import LoopbackFleet\n"
        "fleet = LoopbackFleet(Path(sys.argv[1]), 1)\n"
        "print(fleet.pid('node-1'), flush=True); time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", script, str(tmp_path / "fleet")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=os.getcwd()) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert processes.alive(pid)
        parent.kill()
    until(lambda: not processes.alive(pid), "its sshd has ended")
