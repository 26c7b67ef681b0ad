"""Agent files of other releases go in time, and never while anything was started from them."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from reconciler.agent import package, releases
from tests.agent.harness import FLEET, OWNER, Node, Session, Specs, gone, poll

DAY_S = 24 * 3600.0

Agent = tuple[bytes, str]


def release(number: int) -> Agent:
    """The same program under another hash."""
    data = io.BytesIO(package.build()[0])
    with zipfile.ZipFile(data, "a") as file:
        file.writestr("newer.py", f"RELEASE = {number}\n")
    content = data.getvalue()
    return content, hashlib.sha256(content).hexdigest()


def folder_of(node: Node) -> Path:
    return node.root / "agent"


def kept(node: Node) -> set[str]:
    """Digests of all releases that have a file here."""
    return {path.name.partition(".")[0] for path in folder_of(node).iterdir()}


def unused_for(node: Node, agent: Agent, days: float) -> None:
    at = time.time() - days * DAY_S
    paths = [path for path in folder_of(node).iterdir() if path.name.startswith(agent[1])]
    assert paths
    for path in paths:
        os.utime(path, (at, at))


def left_behind(node: Node, agent: Agent, days: float) -> None:
    """A session of this release was here so long ago."""
    session = node.session(agent)
    session.ask("hello")
    session.ask("hello")
    session.close()
    unused_for(node, agent, days)


def look(node: Node, agent: Agent | None = None) -> Session:
    """A session of today's release; with the second answer it has tidied."""
    session = node.session(agent)
    session.ask("hello")
    session.ask("hello")
    return session


def test_a_release_that_nobody_has_used_for_a_week_goes_with_its_copies(node: Node) -> None:
    older, recent = release(1), release(2)
    left_behind(node, older, days=7.5)
    assert len(list(folder_of(node).glob(f"{older[1]}*"))) == 2, "one of them compiled"
    left_behind(node, recent, days=6.5)
    look(node)
    assert kept(node) == {recent[1], package.build()[1]}


def test_a_release_that_a_session_runs_stays_however_old_and_can_still_start(
    node: Node, specs: Specs
) -> None:
    older = release(1)
    session = look(node, older)
    unused_for(node, older, days=400)
    look(node)
    assert older[1] in kept(node)
    fence = {"fleet": FLEET, "owner": OWNER, "epoch": node.lease()["epoch"]}
    spec = specs.shell("job-0-aaaaa", ["sleep", "60"])
    assert session.ask("start", **fence, spec=spec, labels={})["state"] == "started"


def test_a_release_that_a_supervisor_was_started_from_stays_until_that_ends(
    node: Node, specs: Specs
) -> None:
    older = release(1)
    session = look(node, older)
    fence = {"fleet": FLEET, "owner": OWNER, "epoch": node.lease()["epoch"]}
    session.ask("start", **fence, spec=specs.shell("job-0-aaaaa", ["sleep", "60"]), labels={})
    session.close()
    unused_for(node, older, days=400)
    look(node)
    assert older[1] in kept(node)
    supervisor = node.supervisor("job-0-aaaaa")
    node.stop("job-0-aaaaa", grace_s=0)
    node.ended("job-0-aaaaa")
    poll(lambda: gone(supervisor), bool)
    look(node)
    assert older[1] not in kept(node)


def test_two_reconcilers_of_two_releases_keep_both(node: Node) -> None:
    one, other = release(1), release(2)
    for _ in range(3):
        for agent in (one, other):
            look(node, agent).close()
    assert {one[1], other[1]} <= kept(node)


def test_of_many_releases_of_one_day_the_newest_stay(tmp_path: Path) -> None:
    now = 1_800_000_000.0
    digests = [hashlib.sha256(bytes([n])).hexdigest() for n in range(20)]
    for age, digest in enumerate(digests):
        path = tmp_path / f"{digest}.pyz"
        path.write_bytes(b"")
        os.utime(path, (now - age, now - age))
    own = digests[15]
    went = releases.tidy(str(tmp_path), own, now)
    assert sorted(went) == sorted(d for d in digests[releases.KEPT :] if d != own)
    assert {path.stem for path in tmp_path.iterdir()} == {*digests[: releases.KEPT], own}
    assert releases.tidy(str(tmp_path), own, now) == []


def test_what_a_cut_off_upload_left_goes_and_what_is_not_the_agents_stays(tmp_path: Path) -> None:
    now = time.time()
    old = now - 2 * DAY_S
    digest = "a" * 64
    for name, at in (
        (f"{digest}.pyz.77.part", old),
        (f".{digest}.cpython-311-30b07f0.{digest}.pyz.77.part", old),
        (f"{digest}.pyz.78.part", now),
        ("notes.txt", old - 400 * DAY_S),
        ("deadbeef.pyz", old - 400 * DAY_S),
    ):
        path = tmp_path / name
        path.write_bytes(b"")
        os.utime(path, (at, at))
    assert releases.tidy(str(tmp_path), "b" * 64, now) == []
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"{digest}.pyz.78.part", "notes.txt", "deadbeef.pyz"}


def test_a_file_that_a_session_holds_stays_until_the_session_ends(tmp_path: Path) -> None:
    path = tmp_path / f"{'a' * 64}.pyz"
    path.write_bytes(b"the agent")
    held = releases.hold(str(path))
    os.utime(path, (0, 0))
    assert releases.tidy(str(tmp_path), "", time.time()) == []
    os.close(held)
    assert releases.tidy(str(tmp_path), "", time.time()) == ["a" * 64]
    assert releases.hold(str(path)) == -1


def test_a_file_that_goes_while_a_session_opens_it_is_put_back(tmp_path: Path) -> None:
    path = tmp_path / f"{'a' * 64}.pyz"
    path.write_bytes(b"the agent")

    def opened() -> int:
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum(os.path.lexists(link) and os.readlink(link) == str(path) for link in links)

    with path.open("rb") as remover, ThreadPoolExecutor(1) as pool:
        fcntl.flock(remover, fcntl.LOCK_EX)
        session = pool.submit(releases.hold, str(path))
        poll(opened, lambda count: count == 2)
        path.unlink()
        fcntl.flock(remover, fcntl.LOCK_UN)
        held = session.result(timeout=10)
    assert path.read_bytes() == b"the agent"
    os.close(held)
