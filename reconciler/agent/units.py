"""System mode: the supervisor as a transient systemd unit, out of the login session's reach.

A unit of its own survives logout and has a cgroup that we may divide (`Delegate=yes`) and limits of
its own. systemd starts and shows it; ending the shard stays the supervisor's work.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
from typing import Dict, List

from .spec import Spec

NO_ANSWER = "systemd did not start the supervisor in time"
START_S = 15.0
STOP_MARGIN_S = 60.0
DEFAULT_NOFILE = 1048576


def unavailable() -> str:
    """Why system mode is not possible here; empty where it is."""
    if not os.path.isdir("/run/systemd/system"):
        return "mode system: this machine does not run systemd; use mode plain"
    if os.getuid() != 0:
        return "mode system: needs root; set ssh.sudo to root, or use mode plain"
    if shutil.which("systemd-run") is None:
        return "mode system: systemd-run is not in PATH"
    return ""


def properties(spec: Spec) -> Dict[str, str]:
    """What the unit is given, on purpose, each of it."""
    memlock = str(spec.needs.get("memlock") or "infinity")
    return {
        "Type": "exec",
        "Delegate": "yes",
        # The supervisor's end must not be the engine's: `adopt` takes over what is left.
        "KillMode": "process",
        "Restart": "no",
        # One process that runs out of memory ends alone; its supervisor last of all.
        "OOMPolicy": "continue",
        "OOMScoreAdjust": "-900",
        "TasksMax": "infinity",
        # RDMA pins memory: with the default of 8 MiB NCCL falls back or fails.
        "LimitMEMLOCK": "infinity" if memlock == "unlimited" else _kib(memlock),
        "LimitNOFILE": str(max(DEFAULT_NOFILE, int(spec.needs.get("nofile") or 0))),
        "TimeoutStopSec": str(int(spec.drain_s + spec.stop_grace_s + STOP_MARGIN_S)),
    }


def _kib(memlock: str) -> str:
    return memlock + "K" if memlock.isdigit() else memlock


def start(
    unit: str, command: List[str], folder: str, env: Dict[str, str], settings: Dict[str, str]
) -> str:
    """Run `command` as the unit and wait until it says `ready`; else why not."""
    fifo = os.path.join(folder, "ready.%d" % os.getpid())
    try:
        os.mkfifo(fifo, 0o600)
        # Read-write: it opens without a writer, and does not read as closed between writers.
        reader = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    except OSError as error:
        return "%s: %s" % (fifo, error.strerror)
    try:
        why = _systemd_run(unit, [*command, "--ready-path", fifo], folder, env, settings)
        return why or _wait(reader)
    finally:
        os.close(reader)
        os.unlink(fifo)


def _systemd_run(
    unit: str, command: List[str], folder: str, env: Dict[str, str], settings: Dict[str, str]
) -> str:
    call = ["systemd-run", "--quiet", "--collect", "--unit=" + unit]
    call += ["--description=reconcile " + os.path.basename(folder)]
    call += ["--property=%s=%s" % item for item in sorted(settings.items())]
    call += ["--property=StandardError=append:%s" % os.path.join(folder, "supervisor.log")]
    call += ["--setenv=%s=%s" % item for item in sorted(env.items())]
    try:
        done = subprocess.run(
            [*call, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=START_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return NO_ANSWER
    except OSError as error:
        return "systemd-run: %s" % error.strerror
    told = done.stderr.decode("utf-8", "replace").strip()
    return "" if done.returncode == 0 else "systemd-run: %s" % (told or done.returncode)


def _wait(reader: int) -> str:
    if not select.select([reader], [], [], START_S)[0]:
        return NO_ANSWER
    word = os.read(reader, 4096).split(b"\n")[0].decode("utf-8", "replace")
    return "" if word == "ready" else word
