"""One node: its disk, its files, its boot and its end. The network and the lab are others' work.

A node's disk is a small tmpfs with an overlay over the shared image: full when it is full, kept
over a power cut, gone with the lab. (In the node it reads as an overlay, not as a memory disk.)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from tools.labfleet import cgroup, net
from tools.labfleet.host import PATH, LabError, run, wait_for

KEEPER = Path(__file__).with_name("keeper.py")

BALLAST = "ballast"
"""Fills the disk beside the node's own files, where the node can neither see nor remove it."""

HALT_TIMEOUT_S = 20


@dataclass(frozen=True)
class Machine:
    """Where one node lives here. It holds no state: that is in the kernel and on disk."""

    lab: str
    name: str
    folder: Path
    bridge: str

    @property
    def root(self) -> Path:
        """The node's file system, as seen from here."""
        return self.folder / "root"

    @property
    def disk(self) -> Path:
        """What the node has written."""
        return self.folder / "disk"

    @property
    def port(self) -> str:
        """The node's end of the bridge; systemd-nspawn makes it and names it so."""
        return f"vb-{self.name}"

    @property
    def cgroup(self) -> Path:
        """Everything that runs for or in this node, and nothing else."""
        return cgroup.group(self.lab, self.name)

    @property
    def payload(self) -> Path:
        """Everything that runs in this node."""
        return self.cgroup / "boot" / "payload"

    # --- disk -----------------------------------------------------------------------------

    def mount(self, image: Path, disk_mib: int) -> None:
        """Mount the node's disk and its root."""
        if any(mark in f"{image}{self.folder}" for mark in ":,\\"):
            raise LabError(f"{self.folder}", "an overlay's path cannot have ':', ',' or '\\'")
        for folder in (self.disk, self.root):
            folder.mkdir(parents=True)
        source = f"lab-{self.name}"
        size = f"size={disk_mib}m,mode=755"
        run(["mount", "-t", "tmpfs", "-o", size, source, str(self.disk)])
        for part in ("upper", "work"):
            (self.disk / part).mkdir()
        layers = f"lowerdir={image},upperdir={self.disk}/upper,workdir={self.disk}/work"
        run(["mount", "-t", "overlay", "-o", layers, source, str(self.root)])

    def unmount(self) -> None:
        """Unmount both, whichever are mounted."""
        for folder in (self.root, self.disk):
            if os.path.ismount(folder):
                run(["umount", str(folder)])

    def fill(self, leave_kib: int = 0) -> int:
        """Fill the disk but for `leave_kib`; gives the KiB taken."""
        stat = os.statvfs(self.disk)
        free = stat.f_bavail * stat.f_frsize - leave_kib * 1024
        with (self.disk / BALLAST).open("ab") as ballast:
            if free > 0:
                os.posix_fallocate(ballast.fileno(), ballast.tell(), free)
        return max(0, free) // 1024

    def unfill(self) -> None:
        """Give the space back."""
        (self.disk / BALLAST).unlink(missing_ok=True)

    def disk_used_percent(self) -> int:
        """How full the node's disk is."""
        stat = os.statvfs(self.disk)
        return 100 - 100 * stat.f_bavail // max(1, stat.f_blocks)

    def furnish(self, *, address: str, prefix: int, public_key: str) -> tuple[str, str]:
        """Write what makes this node itself; gives its host key and machine id."""
        machine_id = uuid.uuid4().hex
        self.write("etc/machine-id", machine_id + "\n")
        self.write("etc/hostname", self.name + "\n")
        self.write("etc/hosts", f"127.0.0.1 localhost\n{address} {self.name}\n")
        # A static address that outlives a lost carrier, as on a server with a fixed one.
        self.write(
            "etc/systemd/network/10-host0.network",
            f"[Match]\nName=host0\n[Network]\nAddress={address}/{prefix}\n"
            "LinkLocalAddressing=no\nLLDP=no\nIPv6AcceptRA=no\nIgnoreCarrierLoss=yes\n",
        )
        for home, owner in (("root", 0), ("home/op", (self.root / "home/op").stat().st_uid)):
            self.write(f"{home}/.ssh/authorized_keys", public_key, mode=0o600, owner=owner)
        key = self.root / "etc/ssh/ssh_host_ed25519_key"
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", str(key)])
        return " ".join(key.with_suffix(".pub").read_text().split()[:2]), machine_id

    def write(self, name: str, content: str, *, mode: int = 0o644, owner: int = 0) -> None:
        """Write a file into the node (while it is off)."""
        target = self.root / name
        if not target.parent.exists():
            target.parent.mkdir(mode=0o700 if mode == 0o600 else 0o755, parents=True)
            os.chown(target.parent, owner, owner)
        target.write_text(content)
        target.chmod(mode)
        os.chown(target, owner, owner)

    # --- power ----------------------------------------------------------------------------

    def boot(self) -> subprocess.Popen[bytes]:
        """Switch the node on; gives its keeper, which lives on without us."""
        if cgroup.populated(self.cgroup):
            raise LabError(f"node {self.name}", "is on already", "stop it or cut its power first")
        net.remove_port(self.port, self.bridge)
        cgroup.make(self.cgroup)
        nspawn = [
            "systemd-nspawn",
            f"--directory={self.root}",
            "--boot",
            "--register=no",
            "--keep-unit",
            "--settings=no",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            "--console=pipe",
            f"--network-bridge={self.bridge}",
            f"--machine={self.name}",
            f"--hostname={self.name}",
        ]
        files = [str(self.folder / "keeper.json"), str(self.folder / "console.log")]
        with (self.folder / "keeper.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(KEEPER), *files, str(self.cgroup), "--", *nspawn],
                env={"PATH": PATH, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def halt(self) -> None:
        """Switch the node off in an orderly way, as its power button would."""
        for pid in cgroup.pids(self.cgroup / "boot" / "supervisor"):
            os.kill(pid, 15)  # systemd-nspawn passes it on to the node's init as a halt
        wait_for(f"node {self.name} off", lambda: not self.is_on(), timeout_s=HALT_TIMEOUT_S)

    def kill(self) -> None:
        """Cut the power: all of it ends at one instant, what was written stays."""
        cgroup.kill(self.cgroup)

    def remove(self) -> None:
        """Power off, and remove all but the folder. Safe to repeat, and after a crash."""
        self.kill()
        cgroup.remove(self.cgroup)
        self.unmount()
        # systemd-nspawn leaves this folder where it was killed.
        leftover = Path("/run/systemd/nspawn/propagate", self.name)
        if leftover.exists():
            leftover.rmdir()

    def is_on(self) -> bool:
        """Whether anything runs for or in it."""
        return cgroup.populated(self.cgroup)

    def boots(self) -> int:
        """How often it has been booted since the lab was made."""
        try:
            return int(json.loads((self.folder / "keeper.json").read_text())["boots"])
        except FileNotFoundError:
            return 0

    def console(self, lines: int = 8) -> str:
        """The last lines of its console, for messages."""
        try:
            text = (self.folder / "console.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""
        return " / ".join(text.splitlines()[-lines:])
