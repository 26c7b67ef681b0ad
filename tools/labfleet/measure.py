"""How long a lab's steps take here: the figures of docs/lab.md, and what test limits lean on."""

from __future__ import annotations

import time
from collections.abc import Callable

from tools.labfleet.fleet import LabFleet


def measure(name: str, count: int = 3, repeats: int = 5) -> list[tuple[str, float, float]]:
    """(step, median, longest) in seconds, on a lab of its own that is gone afterwards."""
    times: dict[str, list[float]] = {}

    def timed(step: str, act: Callable[[], object]) -> None:
        begin = time.monotonic()
        act()
        times.setdefault(step, []).append(time.monotonic() - begin)

    begin = time.monotonic()
    lab = LabFleet.create(count, name=name)
    times[f"{count} nodes made, SSH login on all"] = [time.monotonic() - begin]
    with lab:
        node = lab.names[0]
        for _ in range(repeats):
            timed("SSH login", lambda: lab.ssh(node, "true"))
            timed("systemd-run of a delegated unit", lambda: lab.ssh(node, DELEGATED))
            timed("reboot, SSH login", lambda: lab.reboot(node))
            timed("power cut", lambda: lab.power_cut(node))
            timed("power on, SSH login", lambda: lab.start(node))
            timed("freeze", lambda: lab.freeze(node))
            timed("thaw", lambda: lab.thaw(node))
            timed("SSH login after thaw", lambda: lab.wait_ssh(node))
            timed("cut", lambda: lab.cut(node))
            timed("join", lambda: lab.join(node))
            timed("SSH login after join", lambda: lab.wait_ssh(node))
            timed("orderly stop", lambda: lab.stop(node))
            lab.start(node)
        timed(f"down with {count} nodes", lab.close)
    return [(step, sorted(all_)[len(all_) // 2], max(all_)) for step, all_ in times.items()]


DELEGATED = "systemd-run --quiet --wait -p Delegate=yes true"
