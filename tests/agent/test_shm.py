"""Shared memory: what the launch left is removed, what anybody else made is not touched.

The node has a /dev/shm of its own: a program of this user elsewhere on the machine that tidies up
names like these (an agent before this rule did) made these tests fail.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import pytest

from reconciler.agent import shm
from tests.agent.harness import Node, Specs, poll

LEAVES = textwrap.dedent(
    """
    import json, os, signal, sys, time, _multiprocessing
    from multiprocessing import resource_tracker, shared_memory
    resource_tracker.register = lambda *_: None
    segment = shared_memory.SharedMemory(create=True, size=4096)
    name = "/mp-" + os.urandom(4).hex()
    lock = _multiprocessing.SemLock(1, 1, 1, name, False)
    with open("names", "w") as file:
        json.dump([segment.name.lstrip("/"), "sem." + name[1:]], file)
    os.rename("names", "named")
    time.sleep(600)
    """
)
"""Uses a segment and a semaphore, and unlinks neither: as a crash leaves them."""


@dataclass(frozen=True)
class Memory:
    """One /dev/shm: how it is seen from here, and how a program comes to use it."""

    folder: Path
    within: tuple[str, ...] = ()

    def there(self, names: Iterable[str]) -> list[str]:
        """Those of the objects that exist."""
        return [name for name in names if (self.folder / name).exists()]


@pytest.fixture(scope="module")
def memory() -> Iterator[Memory]:
    """In a mount namespace of its own; the machine's where the kernel allows no such thing."""
    user = () if os.getuid() == 0 else ("-U",)
    mapped = () if os.getuid() == 0 else ("-r",)
    script = "mount -t tmpfs tmpfs /dev/shm && echo made && exec sleep 3600"
    keeper = subprocess.Popen(
        ["unshare", *mapped, "-m", "sh", "-c", script], stdout=subprocess.PIPE, text=True
    )
    try:
        assert keeper.stdout is not None
        if keeper.stdout.readline() == "made\n":
            enter = ("nsenter", "-t", str(keeper.pid), *user, "-m")
            yield Memory(Path(f"/proc/{keeper.pid}/root/dev/shm"), enter)
        else:
            yield Memory(Path("/dev/shm"))
    finally:
        keeper.kill()
        keeper.communicate()


@pytest.fixture
def node(node: Node, memory: Memory) -> Node:
    """Its agent, and all that comes of it, uses that memory."""
    node.within = memory.within
    return node


@pytest.fixture
def stranger(tmp_path: Path, memory: Memory) -> Iterator[list[str]]:
    """Another program of this user; its objects' names, in use for the whole test."""
    folder = tmp_path / "stranger"
    folder.mkdir()
    argv = [*memory.within, "env", f"--chdir={folder}", sys.executable, "-c", LEAVES]
    with subprocess.Popen(argv) as program:
        try:
            names = read_names(folder)
            yield names
        finally:
            program.kill()
    for name in names:
        (memory.folder / name).unlink(missing_ok=True)


def read_names(folder: Path) -> list[str]:
    """What a program in `folder` made."""
    poll(lambda: (folder / "named").exists(), bool)
    return [str(name) for name in json.loads((folder / "named").read_text())]


def start_leaving(node: Node, specs: Specs, launch: str, memory: Memory) -> list[str]:
    """The names that the launch made, once its supervisor has seen them in use."""
    node.start(specs.shell(launch, [sys.executable, "-c", LEAVES]))
    folder = node.root / "launches" / launch
    names = read_names(folder)
    missing = poll(lambda: set(names) - recorded(folder), lambda left: not memory.there(left))
    assert missing == set(), "another program of this user removed them"
    return names


def recorded(folder: Path) -> set[str]:
    status = json.loads((folder / "status.json").read_text())
    return {str(entry[0]) for entry in status["segments"]}


@pytest.mark.parametrize("how", ["stop", "crash", "adopted"])
def test_what_the_launch_left_is_removed_and_a_strangers_stays(
    node: Node, specs: Specs, stranger: list[str], memory: Memory, how: str
) -> None:
    names = start_leaving(node, specs, "chat-0-left", memory)
    assert memory.there(names + stranger) == names + stranger
    if how == "adopted":
        os.kill(node.supervisor("chat-0-left"), signal.SIGKILL)
        poll(lambda: node.shard("chat-0-left"), lambda s: not s["supervised"])
        node.adopt("chat-0-left")
    if how == "crash":
        os.kill(node.shard("chat-0-left")["pids"][0], signal.SIGKILL)
    else:
        node.stop("chat-0-left", grace_s=0)
    node.ended("chat-0-left")
    poll(lambda: memory.there(names), lambda left: not left)
    assert memory.there(stranger) == stranger


def test_a_strangers_object_that_nobody_has_open_stays(
    node: Node, specs: Specs, memory: Memory
) -> None:
    """A file between two programs: its maker has gone, its reader has not come."""
    kept = memory.folder / f"psm_{node.machine_id[:12]}"
    start_leaving(node, specs, "chat-0-other", memory)
    kept.write_bytes(b"data")
    try:
        node.stop("chat-0-other", grace_s=0)
        node.ended("chat-0-other")
        assert kept.read_bytes() == b"data"
    finally:
        kept.unlink()


def test_what_is_ours_and_still_used_by_another_stays(
    node: Node, specs: Specs, memory: Memory
) -> None:
    names = start_leaving(node, specs, "chat-0-shared", memory)
    with open(memory.folder / names[0], "rb"):
        node.stop("chat-0-shared", grace_s=0)
        node.ended("chat-0-shared")
        poll(lambda: memory.there(names), lambda left: len(left) < 2)
        assert memory.there(names) == names[:1]
    (memory.folder / names[0]).unlink()


def test_a_semaphore_is_known_by_its_inode() -> None:
    """glibc maps it under the temporary name it was made with; the file's name is in no map."""
    semaphore = get_context("spawn").Lock()
    name = semaphore._semlock.name.lstrip("/")  # type: ignore[attr-defined]
    stat = os.stat(f"/dev/shm/sem.{name}")
    assert (stat.st_dev, stat.st_ino) in shm.used_by(os.getpid())


def test_a_name_that_is_used_again_is_another_object(tmp_path: Path) -> None:
    (tmp_path / "psm_a").write_bytes(b"first")
    segments = shm.Segments(0.0, folder=str(tmp_path))
    with open(tmp_path / "psm_a", "rb"):
        segments.look(lambda: [os.getpid()], 0.0)
    assert [segment.name for segment in segments.known] == ["psm_a"]
    (tmp_path / "psm_b").write_bytes(b"second")
    os.rename(tmp_path / "psm_b", tmp_path / "psm_a")
    assert segments.remove() == []
    assert (tmp_path / "psm_a").read_bytes() == b"second"


def test_what_is_older_than_the_record_is_nobodys_of_the_shard(tmp_path: Path) -> None:
    """By the times of files: a wall clock that is set meanwhile changes nothing."""
    old, new = tmp_path / "psm_old", tmp_path / "psm_new"
    old.write_bytes(b"a stranger's")

    def made_ns() -> int:
        new.write_bytes(b"ours")
        return new.stat().st_ctime_ns

    since_ns = poll(made_ns, lambda ns: ns > old.stat().st_ctime_ns)
    segments = shm.Segments(since_ns, folder=str(tmp_path))
    with old.open("rb"), new.open("rb"):
        segments.look(lambda: [os.getpid()], 0.0)
    assert {segment.name for segment in segments.known} == {"psm_new"}


def test_damaged_entries_of_a_record_are_left_out() -> None:
    assert shm.Segment.from_json(["psm_1", 5, 6]) == shm.Segment("psm_1", 5, 6)
    for bad in (["../etc/passwd", 1, 2], ["psm_1", "5", 6], ["psm_1", 5], None, "psm_1"):
        assert shm.Segment.from_json(bad) is None
