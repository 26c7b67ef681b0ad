"""Finds and ends the processes of loopback nodes, and nothing else's.

Several nodes share this machine's kernel, so a process belongs to a node only by what its
environment says (the mark with the node's machine id, or its identity folder) or by descent from
the node's sshd. A name or a pattern would hit a stranger's.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

PROC = Path("/proc")
SWEEP_S = 10.0
"""A tree that keeps forking is swept until it is empty; longer than this is a bug to be told."""


def pids() -> Iterator[int]:
    """All processes but this one."""
    own = os.getpid()
    for name in os.listdir(PROC):
        if name.isdigit() and int(name) != own:
            yield int(name)


def state(pid: int) -> tuple[str, int] | None:
    """(state letter, parent's pid), or None where the process is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text("latin-1")
    except OSError:
        return None
    letter, parent = text[text.rindex(")") + 2 :].split()[:2]
    return letter, int(parent)


def alive(pid: int) -> bool:
    """Whether it still runs (a zombie does not)."""
    seen = state(pid)
    return seen is not None and seen[0] not in "ZX"


def descendants(root: int) -> list[int]:
    """Children of `root` and theirs, parents first."""
    children: dict[int, list[int]] = {}
    for pid in pids():
        seen = state(pid)
        if seen is not None and seen[0] not in "ZX":
            children.setdefault(seen[1], []).append(pid)
    found = list(children.get(root, ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def by_environment(belongs: Callable[[bytes], bool]) -> list[int]:
    """Processes of which one variable (`NAME=value`) belongs."""
    found = []
    for pid in pids():
        try:
            variables = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(belongs(variable) for variable in variables) and alive(pid):
            found.append(pid)
    return found


def send(targets: Iterable[int], number: signal.Signals) -> None:
    """`number` to each that is still there."""
    for pid in targets:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def wait_gone(find: Callable[[], list[int]], within_s: float) -> list[int]:
    """Polls until `find` finds nothing; what is left at the end."""
    deadline = time.monotonic() + within_s
    left = find()
    while left and time.monotonic() < deadline:
        time.sleep(0.01)
        left = find()
    return left


def sweep(find: Callable[[], list[int]], within_s: float = SWEEP_S) -> None:
    """SIGKILL to what `find` finds, again and again until it finds nothing.

    Raises TimeoutError with the pids that would not end.
    """

    def kill_and_look() -> list[int]:
        targets = find()
        send(targets, signal.SIGKILL)
        return targets

    left = wait_gone(kill_and_look, within_s)
    if left:
        raise TimeoutError(f"processes {left} do not end within {within_s:g} s of SIGKILL")
