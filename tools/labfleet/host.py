"""What the lab needs of the machine it runs on, and the only place that runs its programs.

Every child process has a deadline: a mount or an apt that hangs must not hang the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from reconciler.errors import ReconcileError

PROGRAMS = {
    "debootstrap": "debootstrap",
    "systemd-nspawn": "systemd-container",
    "ip": "iproute2",
    "bridge": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "mount": "mount",
}
"""Program → the Debian package that has it."""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""A user's PATH often lacks the sbin folders, where half of the programs lie."""


class LabError(ReconcileError):
    """The lab cannot do what was asked: missing privilege or package, or a step that failed."""


def missing() -> list[str]:
    """What this machine lacks, in words, each with what to do; empty: the lab works here."""
    lacks = []
    if cgroup_root() is None:
        lacks.append("a cgroup v2 hierarchy (mount -t cgroup2 none /sys/fs/cgroup/unified)")
    if os.geteuid() != 0:
        lacks.append("root (run it with sudo)")
    elif shutil.which("ip", path=PATH) and not may_mount_and_bridge():
        lacks.append("the right to mount and to make a bridge (a privileged container)")
    packages = missing_packages()
    if packages:
        lacks.append(f"packages (apt-get install {' '.join(packages)})")
    return lacks


def may_mount_and_bridge() -> bool:
    """Whether root may do here what a lab needs; tried in namespaces that end with the trial."""
    try:
        run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"])
        run(["unshare", "--net", "ip", "link", "add", "trial", "type", "bridge"])
    except LabError:
        return False
    return True


def missing_packages() -> list[str]:
    """Debian packages to install, in order of name."""
    absent = {pkg for program, pkg in PROGRAMS.items() if not shutil.which(program, path=PATH)}
    return sorted(absent)


def install_missing() -> None:
    """Install the missing packages where that is possible; LabError says what to do where not."""
    packages = missing_packages()
    if packages and os.geteuid() == 0 and shutil.which("apt-get"):
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "update", "-qq"], timeout_s=300, env=env)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
        run(install, timeout_s=600, env=env)
    lacks = missing()
    if lacks:
        raise LabError("lab", f"this machine lacks {'; '.join(lacks)}")


def cgroup_root() -> Path | None:
    """Where the cgroup v2 hierarchy is mounted: alone, or beside v1 controllers (hybrid)."""
    for path in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        if (path / "cgroup.procs").exists() and (path / "cgroup.controllers").exists():
            return path
    return None


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = 30,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> str:
    """Run a program to its end and give its output; LabError with what it said on failure."""
    env = {**(os.environ if env is None else env), "PATH": PATH, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env=env,
            timeout=timeout_s,
            check=False,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except subprocess.TimeoutExpired:
        raise LabError(argv[0], f"did not end within {timeout_s:g} s: {' '.join(argv)}") from None
    except FileNotFoundError:
        package = PROGRAMS.get(argv[0], argv[0])
        raise LabError(argv[0], "is not installed", f"apt-get install {package}") from None
    if done.returncode:
        said = " / ".join(done.stdout.strip().splitlines()[-4:]) or "nothing"
        code = done.returncode
        raise LabError(argv[0], f"ended with {code} and said: {said} ({' '.join(argv)})")
    return done.stdout


def wait_for(
    what: str, holds: Callable[[], bool], *, timeout_s: float, every_s: float = 0.02
) -> float:
    """Poll until `holds`, and give the seconds it took; LabError names `what` past the deadline."""
    begin = time.monotonic()
    while not holds():
        if time.monotonic() - begin > timeout_s:
            raise LabError(what, f"not so after {timeout_s:g} s")
        time.sleep(every_s)
    return time.monotonic() - begin


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with the pid it names one process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[19])
