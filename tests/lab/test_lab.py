"""The lab itself: what the fault tests lean on, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.lab.conftest import lab_name
from tools.labfleet import LabError, LabFleet, LabOptions, NodeState, cgroup, cli, host
from tools.labfleet.fleet import CACHE

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]

BOOT_LIMIT_S = 15.0
"""A boot takes 1.3 s on an idle machine of two cores; this is for a busy one."""

Measure = Callable[[str, object], None]


def interfaces() -> set[str]:
    return {link["ifname"] for link in json.loads(host.run(["ip", "-json", "link"]))}


def mounts() -> list[str]:
    return [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]


def until(holds: Callable[[], bool]) -> None:
    host.wait_for("the condition", holds, timeout_s=10)


def test_a_node_is_a_whole_machine_that_accepts_ssh_seconds_after_power_on(
    lab: LabFleet, record_property: Measure
) -> None:
    lab.stop("1")
    assert lab.state("1") is NodeState.OFF
    seconds = lab.start("1")
    record_property("boot_s", round(seconds, 2))
    assert seconds < BOOT_LIMIT_S
    assert lab.ssh("1", "systemctl is-system-running --wait").stdout.strip() == "running"
    assert lab.ssh("1", "python3 -c 'import http.client, ssl, sqlite3'").returncode == 0


def test_every_node_is_another_machine(lab: LabFleet) -> None:
    for ask in ("cat /etc/machine-id", "cat /proc/sys/kernel/random/boot_id", "hostname"):
        assert len({lab.ssh(name, ask).stdout for name in lab.names}) == 3, ask
    assert [lab.ssh(n.name, "cat /etc/machine-id").stdout.strip() for n in lab.nodes] == [
        node.machine_id for node in lab.nodes
    ]
    assert len({node.host_key for node in lab.nodes}) == 3


def test_reboot_gives_another_boot_id_and_the_same_machine_id(
    lab: LabFleet, record_property: Measure
) -> None:
    boot, boots = lab.boot_id("1"), lab.boots("1")
    lab.ssh("1", "echo kept > /root/kept")
    seconds = lab.reboot("1")
    record_property("reboot_s", round(seconds, 2))
    assert lab.boot_id("1") not in ("", boot)
    assert lab.boots("1") == boots + 1
    assert lab.ssh("1", "cat /root/kept /etc/machine-id").stdout.split() == [
        "kept",
        lab.node("1").machine_id,
    ]
    assert seconds < BOOT_LIMIT_S


def test_power_cut_ends_everything_at_once_and_keeps_the_disk(
    lab: LabFleet, record_property: Measure
) -> None:
    boot = lab.boot_id("2")
    lab.ssh("2", "echo kept > /root/kept; systemd-run sh -c 'while :; do date >> /root/t; done'")
    begin = time.monotonic()
    lab.power_cut("2")
    record_property("power_cut_s", round(time.monotonic() - begin, 3))
    assert lab.state("2") is NodeState.OFF
    written = (lab.root("2") / "root/t").read_bytes()
    assert (lab.root("2") / "root/kept").read_text() == "kept\n"
    record_property("boot_s", round(lab.start("2"), 2))
    assert lab.boot_id("2") not in ("", boot)
    assert (lab.root("2") / "root/t").read_bytes() == written, "it wrote on after the power cut"


def test_a_frozen_node_lets_ssh_time_out_and_a_thawed_one_goes_on(lab: LabFleet) -> None:
    boot = lab.boot_id("3")
    lab.freeze("3")
    try:
        assert lab.state("3") is NodeState.FROZEN
        answer = lab.ssh("3", "true", connect_s=1)
        assert (answer.returncode, "timed out" in answer.stderr) == (255, True), answer
    finally:
        lab.thaw("3")
    assert lab.state("3") is NodeState.ON
    assert lab.boot_id("3") == boot


@pytest.mark.parametrize("cable", [False, True], ids=["silent", "cable"])
def test_a_node_that_is_cut_off_runs_on_and_joins_again(lab: LabFleet, cable: bool) -> None:
    watch = "while :; do cat /sys/class/net/host0/carrier; sleep 0.05; done > /run/carrier"
    lab.ssh("3", f"systemd-run -u watch sh -c '{watch}'")
    boot = lab.boot_id("3")
    lab.cut("3", cable=cable)
    try:
        assert lab.is_cut("3")
        assert not lab.reachable("3", within_s=1)
        other = lab.node("3").address
        assert lab.ssh("1", f"timeout 1 bash -c '</dev/tcp/{other}/22'").returncode != 0
    finally:
        lab.join("3")
    lab.wait_ssh("3")
    assert not lab.is_cut("3")
    assert lab.boot_id("3") == boot
    seen = lab.ssh("3", "sort -u /run/carrier; systemctl stop watch").stdout.split()
    assert seen == (["0", "1"] if cable else ["1"])


def test_a_full_disk_refuses_a_byte_and_still_lets_one_in(lab: LabFleet) -> None:
    assert lab.fill("1") > 0
    try:
        answer = lab.ssh("1", "echo x > /root/x")
        assert "No space left on device" in answer.stderr
        assert lab.disk_used_percent("1") == 100
    finally:
        lab.unfill("1")
    assert lab.ssh("1", "echo x > /root/x && sync /root/x").returncode == 0


def test_a_delegated_unit_has_a_cgroup_of_its_own_that_kills_on_this_node_only(
    lab: LabFleet,
) -> None:
    unit = "systemd-run -q -p Delegate=yes -u tree bash -c 'setsid sleep 999 & exec sleep 999'"
    group = "/sys/fs/cgroup/system.slice/tree.service"
    for name in ("1", "2"):
        assert lab.ssh(name, unit).returncode == 0
        until(lambda n=name: len(lab.ssh(n, f"cat {group}/cgroup.procs").stdout.split()) == 2)
    assert lab.ssh("1", f"mkdir {group}/mine && rmdir {group}/mine").returncode == 0
    lab.ssh("1", f"echo 1 > {group}/cgroup.kill")
    until(lambda: lab.ssh("1", "systemctl is-active -q tree").returncode != 0)
    assert len(lab.ssh("2", f"cat {group}/cgroup.procs").stdout.split()) == 2
    lab.ssh("2", "systemctl stop tree")


def test_nodes_reach_each_other_and_nothing_else(lab: LabFleet) -> None:
    other = lab.node("2").address
    assert lab.ssh("1", f"timeout 5 bash -c '</dev/tcp/{other}/22'").returncode == 0
    assert "default" not in lab.ssh("1", "ip route").stdout
    outside = lab.ssh("1", "timeout 2 bash -c '</dev/tcp/192.0.2.1/80'")
    assert "Network is unreachable" in outside.stderr


def test_a_user_beside_root_has_sudo_without_a_password(lab: LabFleet) -> None:
    assert lab.ssh("1", "sudo -n id -u", user="op").stdout == "0\n"


def test_node_documents_fit_the_schema(lab: LabFleet, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--name", lab.folder.name, "nodes"]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    schema = json.loads((ROOT / "schema/node.v1.json").read_text())
    for document in documents:
        jsonschema.Draft202012Validator(schema).validate(document)
    assert [document["name"] for document in documents] == list(lab.names)


def test_a_lab_that_is_closed_leaves_nothing() -> None:
    before = interfaces(), mounts()
    lab = LabFleet.create(2, name=lab_name("c"))
    assert interfaces() > before[0]
    lab.power_cut("2")
    lab.close()
    lab.close()
    assert (interfaces(), mounts()) == before
    assert not lab.folder.exists()
    assert not cgroup.group(lab_name("c")).exists()


def test_a_lab_that_cannot_be_made_leaves_nothing() -> None:
    before = interfaces(), mounts()
    with pytest.raises(LabError, match="absent"):
        LabFleet.create(1, name=lab_name("f"), options=LabOptions(nvml="/absent"))
    assert (interfaces(), mounts()) == before
    assert not (CACHE / lab_name("f")).exists()


def test_the_lab_of_a_killed_process_is_taken_down_by_the_next_one() -> None:
    before = interfaces(), mounts()
    script = (
        "import os, signal, sys\n"
        "from tools.labfleet import LabFleet\n"
        f"LabFleet.create(1, name={lab_name('o')!r})\n"
        "print('up', flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "up\n"
        os.kill(maker.pid, signal.SIGKILL)
    assert cgroup.populated(cgroup.group(lab_name("o"))), "the node should outlive its maker"
    with LabFleet.create(1, name=lab_name("n")):
        assert not cgroup.group(lab_name("o")).exists()
        assert not (CACHE / lab_name("o")).exists()
    assert (interfaces(), mounts()) == before


def test_two_labs_side_by_side_share_nothing(lab: LabFleet) -> None:
    with LabFleet.create(1, name=lab_name("d")) as side:
        assert side.nodes[0].address.rpartition(".")[0] != lab.nodes[0].address.rpartition(".")[0]
        with pytest.raises(LabError, match="is there already"):
            LabFleet.create(1, name=lab_name("d"))
    assert all(lab.state(name) is NodeState.ON for name in lab.names)
