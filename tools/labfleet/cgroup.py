"""One cgroup per lab and node: it *is* the record of which processes are ours.

Freezing, killing and counting go through it, so nothing is ever signalled that the lab did not
start, also after a crash that lost every pid. Without one of its own per node, two nspawn
machines started from one cgroup would share theirs, and one node's cgroup.kill would hit both.
"""

from __future__ import annotations

from pathlib import Path

from tools.labfleet.host import LabError, cgroup_root, wait_for

TOP = "reconcile-lab"


def group(*names: str) -> Path:
    """The folder of a lab's or node's cgroup; it need not exist."""
    root = cgroup_root()
    if root is None:
        raise LabError("lab", "no cgroup v2 hierarchy is mounted")
    return root.joinpath(TOP, *names)


def make(path: Path) -> None:
    """Make a cgroup and hand it the controllers that its parents have, as far as ours go."""
    path.mkdir(parents=True, exist_ok=True)
    ours = [p for p in reversed(path.parents) if TOP in p.parts]
    for parent in ours:
        for controller in (parent / "cgroup.controllers").read_text().split():
            try:
                (parent / "cgroup.subtree_control").write_text(f"+{controller}")
            except OSError:
                # A controller that the machine cannot delegate here: the node does without it.
                continue


def populated(path: Path) -> bool:
    """Whether a process lives in it or below it."""
    try:
        return "populated 1" in (path / "cgroup.events").read_text()
    except FileNotFoundError:
        return False


def pids(path: Path) -> list[int]:
    """The processes in it, not below it."""
    try:
        return [int(pid) for pid in (path / "cgroup.procs").read_text().split()]
    except FileNotFoundError:
        return []


def freeze(path: Path, frozen: bool) -> None:
    """Stop (or go on with) all processes in and below it, at one instant."""
    (path / "cgroup.freeze").write_text("1" if frozen else "0")
    want = f"frozen {int(frozen)}"
    wait_for(f"{want} in {path}", lambda: want in (path / "cgroup.events").read_text(), timeout_s=5)


def frozen(path: Path) -> bool:
    """Whether it has been told to freeze."""
    try:
        return (path / "cgroup.freeze").read_text().strip() == "1"
    except FileNotFoundError:
        return False


def kill(path: Path, *, timeout_s: float = 10) -> None:
    """Kill all processes in and below it at once, and wait until none is left."""
    if not path.exists():
        return
    (path / "cgroup.kill").write_text("1")
    wait_for(f"no process in {path}", lambda: not populated(path), timeout_s=timeout_s)


def remove(path: Path) -> None:
    """Remove the empty cgroup and all below it."""
    if not path.exists():
        return
    for child in sorted(path.rglob("*"), key=lambda p: len(p.parts), reverse=True):
        if child.is_dir():
            child.rmdir()
    path.rmdir()


def remove_top() -> None:
    """Remove what all labs share, if this was the last one."""
    top = group()
    if top.exists() and not any(child.is_dir() for child in top.iterdir()):
        try:
            top.rmdir()
        except OSError:
            return  # another lab, of another checkout, has just come
