"""The machine that every node starts from: debootstrap once, kept in the cache.

Named by a hash of its recipe, so a change of packages makes a new one and running labs keep
theirs. The mirror is the one that this machine already uses; no host name stands in here.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from tools.labfleet.host import LabError, run

PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "libpam-systemd",
    "openssh-server",
    "python3",
    "iproute2",
    "procps",
    "sudo",
)

MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "systemd-pstore.service",
    "console-getty.service",
    "getty@tty1.service",
)
"""What a node of an hour's life has no use for, and what would make its figures noisy."""

FILES = {
    "etc/ssh/sshd_config.d/lab.conf": (
        "HostKey /etc/ssh/ssh_host_ed25519_key\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nUseDNS no\n"
    ),
    "etc/sudoers.d/lab": "op ALL=(ALL) NOPASSWD: ALL\n",
}

OPERATOR = "op"
"""A user beside root, with passwordless sudo."""

LEAST_FREE_MIB = 1024
DEBOOTSTRAP_TIMEOUT_S = 900


def path(cache: Path, suite: str, extra: Sequence[str]) -> Path:
    """Where the image of this recipe lies, or would."""
    recipe = repr((suite, PACKAGES, sorted(extra), MASKED, sorted(FILES.items()), OPERATOR, 1))
    return cache / f"image-{suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def ensure(cache: Path, suite: str, extra: Sequence[str] = ()) -> Path:
    """The image's folder, made if absent (about 45 s and 220 MB, once)."""
    image = path(cache, suite, extra)
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not image.exists():
            free_mib = shutil.disk_usage(cache).free >> 20
            if free_mib < LEAST_FREE_MIB:
                raise LabError(f"{cache}", f"{free_mib} MiB are free, {LEAST_FREE_MIB} are needed")
            part = image.with_suffix(".part")
            if part.exists():
                shutil.rmtree(part)
            _debootstrap(part, suite, [*PACKAGES, *extra])
            _finish(part)
            part.rename(image)
    return image


def _debootstrap(target: Path, suite: str, packages: Sequence[str]) -> None:
    env = dict(os.environ)
    proxy = run(["apt-config", "shell", "P", "Acquire::http::Proxy"]).partition("'")[2]
    if proxy:
        env.setdefault("http_proxy", proxy.rstrip("'\n"))
    argv = ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}"]
    argv += [suite, str(target), mirror()]
    if not Path("/usr/share/debootstrap/scripts", suite).exists():
        argv.append("sid")
    run(argv, timeout_s=DEBOOTSTRAP_TIMEOUT_S, env=env)


def mirror(etc: Path = Path("/etc/apt")) -> str:
    """The Debian mirror that this machine uses; LabError where /etc/apt names none."""
    lists = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]
    for file in lists:
        if file.is_file():
            found = re.search(
                r"^(?:URIs:|deb )[^#\n]*?(https?://\S+/debian/?)(?=\s|$)", file.read_text(), re.M
            )
            if found:
                return found[1]
    raise LabError(f"{etc}", "names no Debian mirror", "the lab needs a Debian machine")


def _finish(root: Path) -> None:
    for leftover in ("var/cache/apt/archives", "var/lib/apt/lists"):
        for file in (root / leftover).glob("*"):
            if file.is_file():
                file.unlink()
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    # Each node gets its own; an image with one would make all nodes the same machine.
    (root / "etc/machine-id").write_text("")
    for name, content in FILES.items():
        (root / name).write_text(content)
    (root / "etc/sudoers.d/lab").chmod(0o440)
    run(["chroot", str(root), "useradd", "--create-home", "--shell", "/bin/bash", OPERATOR])
    systemctl = ["systemctl", f"--root={root}"]
    run([*systemctl, "enable", "systemd-networkd.service"])
    run([*systemctl, "disable", "systemd-networkd-wait-online.service"])
    run([*systemctl, "mask", *MASKED])
