"""One process per node that boots its machine, and boots it again when it reboots.

Run as a program of its own (it imports nothing of ours), so that a node outlives the command that
made it. It ends when its machine is off; the node's cgroup holds it, so whoever takes the node down
ends it too.

    keeper.py STATE-FILE CONSOLE-FILE NODE-CGROUP -- NSPAWN-ARGV...
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

REBOOT = 133
"""systemd-nspawn's exit status when the machine asked for a reboot."""

MIN_UPTIME_S = 0.5
MAX_SHORT_BOOTS = 5
"""A machine that reboots at once, again and again, is given up: it would spin unseen."""

EMPTY_TIMEOUT_S = 10
"""How long leftovers of the boot before may take to vanish."""


def main(argv: list[str]) -> int:
    """Boot until the machine is off; the status is systemd-nspawn's last one."""
    state, console, node = Path(argv[0]), Path(argv[1]), Path(argv[2])
    command = argv[argv.index("--") + 1 :]
    (node / "keeper").mkdir(exist_ok=True)
    (node / "keeper" / "cgroup.procs").write_text(str(os.getpid()))
    boots = _boots(state)

    def boot() -> int:
        nonlocal boots
        boots += 1
        _renew(node / "boot")
        return _boot(command, console, node / "boot", state, boots)

    status = keep(boot, time.monotonic)
    _write(state, {"boots": boots, "status": status})
    return status


def keep(boot: Callable[[], int], now: Callable[[], float]) -> int:
    """Boot again after each reboot; the status with which the machine went off, or was given up."""
    short = 0
    while True:
        begin = now()
        status = boot()
        short = short + 1 if now() - begin < MIN_UPTIME_S else 0
        if status != REBOOT or short == MAX_SHORT_BOOTS:
            return status


def _boot(command: list[str], console: Path, cgroup: Path, state: Path, boots: int) -> int:
    def enter() -> None:
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))

    with console.open("wb") as output:
        machine = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=enter,
        )
    _write(state, {"boots": boots, "pid": machine.pid})
    return machine.wait()


def _renew(cgroup: Path) -> None:
    # nspawn splits its cgroup in two; only a new one takes a process again.
    deadline = time.monotonic() + EMPTY_TIMEOUT_S
    while cgroup.exists() and "populated 1" in (cgroup / "cgroup.events").read_text():
        if time.monotonic() > deadline:
            (cgroup / "cgroup.kill").write_text("1")
        time.sleep(0.01)
    if cgroup.exists():
        for folder in sorted(cgroup.rglob("*"), key=lambda p: len(p.parts), reverse=True):
            if folder.is_dir():
                folder.rmdir()
        cgroup.rmdir()
    cgroup.mkdir()


def _boots(state: Path) -> int:
    try:
        return int(json.loads(state.read_text())["boots"])
    except FileNotFoundError:
        return 0


def _write(state: Path, value: dict[str, int]) -> None:
    part = state.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.replace(state)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
