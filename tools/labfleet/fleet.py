"""The lab: some nodes on one bridge, made, handled and taken down as one.

Everything it makes is found again from its folder alone (record, cgroup, mounts, the bridge's
name), so a lab whose maker was killed is taken down like any other.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any

from tools.labfleet import cgroup, image, login, net, nvml, record
from tools.labfleet.host import LabError, missing, run, start_time, wait_for
from tools.labfleet.machine import Machine
from tools.labfleet.nvml import LabGpu
from tools.labfleet.record import LabNode, LabOptions

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "lab"

NAME = re.compile(r"[a-z][a-z0-9]{0,7}")
"""Short: an interface's name, `vb-<lab>-<n>`, has at most 15 characters."""

MAX_NODES = 200
MIN_DISK_MIB = 16

BOOT_TIMEOUT_S = 60
"""A boot takes half a second; on a machine that does much else, many times that."""


class NodeState(StrEnum):
    """Where a node stands, as its maker sees it."""

    ON = "on"
    OFF = "off"
    FROZEN = "frozen"


class LabFleet:
    """A running lab. `create` makes one, `open` finds one, `close` takes it down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._record = record.load(folder)
        self._keepers: dict[str, subprocess.Popen[bytes]] = {}

    # --- life of a lab ----------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        count: int,
        *,
        name: str = "lab",
        cache: Path = CACHE,
        options: LabOptions | None = None,
        owned: bool = True,
    ) -> LabFleet:
        """Make and boot `count` nodes, and return when each accepts an SSH login.

        `owned`: the lab belongs to this process, and the next `create` of anyone takes it down
        when this process is gone. LabError where the machine lacks something or a step fails;
        then nothing of the lab is left.
        """
        options = options or LabOptions()
        if not NAME.fullmatch(name) or not 1 <= count <= MAX_NODES:
            raise LabError(
                f"lab {name!r} of {count} nodes",
                f"the name must match {NAME.pattern}, the count lie in 1..{MAX_NODES}",
            )
        if options.disk_mib < MIN_DISK_MIB:
            raise LabError(f"disk of {options.disk_mib} MiB", f"{MIN_DISK_MIB} are the least")
        if lacks := missing():
            raise LabError("lab", f"this machine lacks {'; '.join(lacks)}")
        base = image.ensure(cache, options.suite, options.packages)
        with record.locked(cache):
            _reap(cache)
            folder = cache / name
            if (folder / record.FILE).exists():
                raise LabError(f"lab {name}", "is there already", f"tools/lab --name {name} down")
            pid = os.getpid()
            owner = (pid, start_time(pid) or 0) if owned else None
            subnet = str(net.free_subnet())
            uid = uuid.uuid4().hex
            made = record.Record(uid, name, subnet, count, str(base), owner, options)
            folder.mkdir(exist_ok=True)
            record.save(folder, made)
            lab = cls(folder)
            try:
                lab._build()
            except BaseException:
                lab._remove()
                raise
        try:
            lab._await_all()
        except BaseException:
            lab.close()
            raise
        return lab

    @classmethod
    def open(cls, name: str = "lab", *, cache: Path = CACHE) -> LabFleet:
        """The lab of that name, made earlier by anyone."""
        if not NAME.fullmatch(name) or not (cache / name / record.FILE).exists():
            raise LabError(f"lab {name}", "is not there", f"tools/lab --name {name} up")
        return cls(cache / name)

    def close(self) -> None:
        """Take down everything that this lab made. Safe to repeat."""
        with record.locked(self.folder.parent):
            self._remove()

    def __enter__(self) -> LabFleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _build(self) -> None:
        lab, subnet = self._record, ipaddress.IPv4Network(self._record.subnet)
        net.make_bridge(lab.bridge, subnet)
        key = self.folder / "key"
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", lab.name, "-f", str(key)])
        public_key = key.with_suffix(".pub").read_text()
        source = lab.options.nvml
        library = nvml.build(Path(source), self.folder) if source else None
        nodes = []
        for number, name in enumerate(lab.names, 1):
            machine = self._machine(name)
            machine.mount(Path(lab.image), lab.options.disk_mib)
            address = str(subnet[10 + number])
            host_key, machine_id = machine.furnish(
                address=address, prefix=subnet.prefixlen, public_key=public_key
            )
            if library is not None:
                nvml.install(library, machine.root)
                nvml.show(machine.root, nvml.fresh(machine_id))
            nodes.append(LabNode(machine.name, address, host_key, machine_id, str(key)))
        known = "".join(f"{node.address} {node.host_key}\n" for node in nodes)
        (self.folder / "known_hosts").write_text(known)
        self._record = replace(self._record, nodes=tuple(nodes))
        record.save(self.folder, self._record)
        for node in nodes:
            self._keepers[node.name] = self._machine(node.name).boot()

    def _await_all(self) -> None:
        with ThreadPoolExecutor(max_workers=8) as pool:
            for _ in pool.map(self.wait_ssh, self.names):
                pass

    def _remove(self) -> None:
        if not self.folder.exists():
            return
        cgroup.kill(cgroup.group(self._record.name))
        for keeper in self._keepers.values():
            keeper.wait(timeout=10)
        self._keepers.clear()
        for name in self._record.names:
            self._machine(name).remove()
        cgroup.remove(cgroup.group(self._record.name))
        cgroup.remove_top()
        net.remove_bridge(self._record.bridge)
        shutil.rmtree(self.folder)

    # --- what it is -------------------------------------------------------------------------

    @property
    def options(self) -> LabOptions:
        """With what it was made."""
        return self._record.options

    @property
    def nodes(self) -> tuple[LabNode, ...]:
        """The nodes in order of their number."""
        return self._record.nodes

    @property
    def names(self) -> tuple[str, ...]:
        """Their names: `<lab>-1`, `<lab>-2`, …"""
        return tuple(node.name for node in self.nodes)

    @property
    def known_hosts(self) -> Path:
        """A known_hosts file with the nodes' keys."""
        return self.folder / "known_hosts"

    def node(self, name: str) -> LabNode:
        """One node by its name, or by its bare number."""
        for node in self.nodes:
            if name in (node.name, node.name.rpartition("-")[2]):
                return node
        raise LabError(f"node {name}", f"is not in this lab: {', '.join(self.names)}")

    def root(self, name: str) -> Path:
        """The node's file system as seen from here, to look at or to prepare while it is off."""
        return self._machine(self.node(name).name).root

    def state(self, name: str) -> NodeState:
        """Whether the node is on, off or frozen."""
        machine = self._machine(self.node(name).name)
        if not machine.is_on():
            return NodeState.OFF
        return NodeState.FROZEN if cgroup.frozen(machine.payload) else NodeState.ON

    def is_cut(self, name: str) -> bool:
        """Whether the node is cut off from the bridge."""
        return net.is_cut(self._machine(self.node(name).name).port)

    def boots(self, name: str) -> int:
        """How often it has booted."""
        return self._machine(self.node(name).name).boots()

    def disk_used_percent(self, name: str) -> int:
        """How full its disk is."""
        return self._machine(self.node(name).name).disk_used_percent()

    # --- what can be done to it ---------------------------------------------------------------

    def start(self, name: str) -> float:
        """Switch a node on; gives the seconds until it accepted an SSH login."""
        node = self.node(name)
        begin = time.monotonic()
        self._reap_keeper(node.name)
        self._keepers[node.name] = self._machine(node.name).boot()
        self.wait_ssh(node.name)
        return time.monotonic() - begin

    def stop(self, name: str) -> None:
        """Switch a node off in an orderly way."""
        node = self.node(name)
        self._machine(node.name).halt()
        self._reap_keeper(node.name)

    def reboot(self, name: str) -> float:
        """Reboot a node from within; gives the seconds until it accepted an SSH login again."""
        node = self.node(name)
        machine, boots = self._machine(node.name), self.boots(name)
        begin = time.monotonic()
        self.ssh(node.name, "systemctl reboot")
        wait_for(
            f"reboot of {node.name}", lambda: machine.boots() > boots, timeout_s=BOOT_TIMEOUT_S
        )
        self.wait_ssh(node.name)
        return time.monotonic() - begin

    def power_cut(self, name: str) -> None:
        """End everything in a node at one instant. It stays off until `start`; its disk stays."""
        node = self.node(name)
        self._machine(node.name).kill()
        self._reap_keeper(node.name)

    def freeze(self, name: str) -> None:
        """Stop every process of a node at one instant; its kernel still answers TCP."""
        cgroup.freeze(self._running(name).payload, True)

    def thaw(self, name: str) -> None:
        """Go on after `freeze`."""
        cgroup.freeze(self._running(name).payload, False)

    def cut(self, name: str, *, cable: bool = False) -> None:
        """Cut a node off the network: silently, or by its cable (it then sees no carrier)."""
        net.cut(self._running(name).port, cable=cable)

    def join(self, name: str) -> None:
        """Undo `cut`."""
        net.join(self._running(name).port)

    def fill(self, name: str, *, leave_kib: int = 0) -> int:
        """Fill a node's disk but for `leave_kib`; gives the KiB taken."""
        return self._machine(self.node(name).name).fill(leave_kib)

    def unfill(self, name: str) -> None:
        """Give back the space that `fill` took."""
        self._machine(self.node(name).name).unfill()

    def gpus(self, name: str) -> list[LabGpu]:
        """What the node's stand-in NVML library shows, by index."""
        if not self.options.nvml:
            raise LabError(f"node {name}", "has no NVML library", "make the lab with --nvml")
        return nvml.read(self.root(name))

    def set_gpu(self, name: str, index: int, **changes: Any) -> LabGpu:
        """Change what it shows of one GPU: `state`, `pids`, `used_mib` (see `LabGpu`)."""
        gpus = self.gpus(name)
        if not 0 <= index < len(gpus):
            raise LabError(f"GPU {index}", f"node {name} has GPUs 0 to {len(gpus) - 1}")
        gpus[index] = replace(gpus[index], **changes)
        nvml.show(self.root(name), gpus)
        return gpus[index]

    # --- SSH --------------------------------------------------------------------------------

    def ssh_argv(self, name: str, *, user: str = "root", connect_s: int = 5) -> list[str]:
        """The ssh command that reaches a node, up to and without the remote command."""
        return login.argv(self.node(name), self.known_hosts, user=user, connect_s=connect_s)

    def ssh(
        self,
        name: str,
        command: str,
        *,
        user: str = "root",
        timeout_s: float = 30,
        connect_s: int = 5,
    ) -> subprocess.CompletedProcess[str]:
        """Run one command line in a node. Status 255 is ssh's own: not reached, or cut in between.

        LabError only where the command outlives `timeout_s`.
        """
        argv = self.ssh_argv(name, user=user, connect_s=connect_s)
        return login.run([*argv, command], timeout_s)

    def reachable(self, name: str, *, within_s: int = 2) -> bool:
        """Whether an SSH login works within that time."""
        return self.ssh(name, "true", connect_s=within_s).returncode == 0

    def wait_ssh(self, name: str, *, timeout_s: float = BOOT_TIMEOUT_S) -> float:
        """Wait until the node accepts an SSH login; gives the seconds it took."""
        try:
            return wait_for(
                f"SSH login on {name}",
                lambda: login.listens(self.node(name)) and self.reachable(name, within_s=5),
                timeout_s=timeout_s,
                every_s=0.05,
            )
        except LabError as error:
            console = self._machine(self.node(name).name).console()
            raise LabError(error.subject, error.reason, f"its console ends: {console}") from None

    def boot_id(self, name: str) -> str:
        """The node's boot id, by its own account."""
        return self.ssh(name, "cat /proc/sys/kernel/random/boot_id").stdout.strip()

    # --- helpers ------------------------------------------------------------------------------

    def _machine(self, name: str) -> Machine:
        return Machine(self._record.name, name, self.folder / "nodes" / name, self._record.bridge)

    def _running(self, name: str) -> Machine:
        machine = self._machine(self.node(name).name)
        if not machine.is_on():
            raise LabError(f"node {machine.name}", "is off", f"tools/lab start {machine.name}")
        return machine

    def _reap_keeper(self, name: str) -> None:
        keeper = self._keepers.pop(name, None)
        if keeper is not None:
            keeper.wait(timeout=10)


def all_labs(cache: Path = CACHE) -> list[LabFleet]:
    """Every lab in the cache, whoever made it."""
    return [LabFleet(file.parent) for file in sorted(cache.glob(f"*/{record.FILE}"))]


def _reap(cache: Path) -> None:
    """Take down labs whose owner is gone: a test run that was killed."""
    for lab in all_labs(cache):
        owner = lab._record.owner
        if owner is not None and start_time(owner[0]) != owner[1]:
            lab._remove()
