"""What this node is: its clock, identity and root. Asked once, then passed on as a value.

The only module that reads RECONCILE_IDENTITY_DIR and RECONCILE_ROOT, through `env` as given.
"""

from __future__ import annotations

import os
import time
from typing import Iterable, List, Mapping, NamedTuple, Optional, Tuple

FORMAT = "1.0"
"""Of records and answers: within a major, fields are only added."""

REFUSED_FILESYSTEMS = {
    "network": (
        "nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "lustre", "glusterfs",
        "fuse.glusterfs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "beegfs", "gpfs", "9p",
        "ocfs2", "gfs2", "orangefs", "fuse.juicefs", "wekafs",
    ),
    "memory": ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs"),
}  # fmt: skip
"""flock over a network does not always hold, and memory forgets what a reboot must be told by."""


class Identity(NamedTuple):
    """Which machine, and which boot of it."""

    machine_id: str
    boot_id: str


class Node(NamedTuple):
    """All that does not change while the agent runs."""

    identity: Identity
    root: str
    agent: str
    """The agent's file, named by its content hash."""
    runs_from: str
    """Where it is run from: `agent`, its copy that is compiled for this node's Python, or a copy in
    memory on a node that cannot store it."""
    previous: Tuple[str, ...] = ()
    """Former roots: launches live on there and are stopped there; none is started there."""
    kernel_log: str = "/dev/kmsg"

    @property
    def roots(self) -> Tuple[str, ...]:
        """The root, then the former ones."""
        return (self.root, *self.previous)

    @property
    def launches(self) -> str:
        """Folder of all launches that are started from now on."""
        return os.path.join(self.root, "launches")

    def launch_dir(self, launch: str) -> str:
        """Folder of one launch in the root; `records.folder_of` has where it really lies."""
        return os.path.join(self.launches, launch)

    @property
    def acting_locks(self) -> Tuple[str, ...]:
        """Held while a record or an intent is written: the root's, then those of former roots."""
        return tuple(acting_lock(root) for root in self.roots)


def acting_lock(root: str) -> str:
    """The lock of whoever acts on the launches in `root`."""
    return os.path.join(root, "acting.lock")


def distinct_roots(root: str, previous: Iterable[str]) -> Tuple[str, ...]:
    """The former roots that are other folders than the root: a former root may be a link to it."""
    known, found = {os.path.realpath(root)}, []
    for path in previous:
        real = os.path.realpath(path)
        if real not in known:
            known.add(real)
            found.append(os.path.normpath(path))
    return tuple(found)


def boottime() -> float:
    """Seconds since boot, suspend included; no clock that people or NTP can set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def identity(env: Mapping[str, str]) -> Identity:
    """Machine and boot id. OSError where one cannot be read: then nothing may be told of it."""
    folder = env.get("RECONCILE_IDENTITY_DIR", "")
    if folder:
        machine = _first_line([os.path.join(folder, "machine-id")])
        return Identity(machine, _first_line([os.path.join(folder, "boot_id")]))
    machine = _first_line(["/etc/machine-id", "/var/lib/dbus/machine-id"])
    return Identity(machine, _first_line(["/proc/sys/kernel/random/boot_id"]))


def kernel_log(env: Mapping[str, str]) -> str:
    """Where the kernel's log is read. Nodes that share one kernel have one of their own each."""
    folder = env.get("RECONCILE_IDENTITY_DIR", "")
    return os.path.join(folder, "kmsg") if folder else "/dev/kmsg"


def _first_line(paths: List[str]) -> str:
    for path in paths:
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                text = file.readline(256).strip()
        except OSError:
            continue
        if text:
            return text
    raise OSError("%s: absent or empty" % " and ".join(paths))


def unsuitable_root(root: str, env: Mapping[str, str]) -> str:
    """Why records must not lie under `root`; empty where they may.

    A root that RECONCILE_ROOT names may lie in memory: several test nodes share one machine so.
    """
    kind = filesystem_of(root)
    for why, names in REFUSED_FILESYSTEMS.items():
        if kind in names and not (why == "memory" and env.get("RECONCILE_ROOT")):
            return "root %s lies on a %s file system (%s); set root to a local disk" % (
                root,
                why,
                kind,
            )
    return ""


def filesystem_of(path: str) -> str:
    """The file system's type by the kernel's mount table; empty where it cannot be told."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [_mount(line) for line in file]
    except OSError:
        return ""
    real = os.path.realpath(path)
    best: Tuple[int, str] = (-1, "")
    for mount in mounts:
        inside = mount and (real == mount[0] or real.startswith(mount[0].rstrip("/") + "/"))
        # `>=`: of two mounts on one folder the later one is what is seen.
        if mount and inside and len(mount[0]) >= best[0]:
            best = (len(mount[0]), mount[1])
    return best[1]


def _mount(line: str) -> Optional[Tuple[str, str]]:
    before, _, after = line.partition(" - ")
    fields = before.split()
    if len(fields) < 5 or not after:
        return None
    point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
    return point, after.split()[0]
