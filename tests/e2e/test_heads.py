"""The remote loses what is followed, or the mirror is lost: rule 4 on real nodes.

"A revision that does not validate changes nothing: the one in force stays, repairs go on, and the
failure shows everywhere a success would." So does one that cannot even be found.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

from tests.e2e.world import World, until


def remote(world: World) -> str:
    """A bare repository, to which `main` was pushed; its URL."""
    bare = world.folder / "remote.git"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(bare)], check=True)
    settings = ["git", "-C", str(bare), "config", "receive.denyDeleteCurrent", "ignore"]
    subprocess.run(settings, check=True)
    world.git("remote", "add", "origin", str(bare))
    world.git("push", "-q", "origin", "main")
    return f"file://{bare}"


def kill_one(world: World, replica: str = "chat-0") -> str:
    """Ends the engine of a replica's launch; which. Another each time, or it is a crash loop."""
    living = world.living().items()
    ((victim, entry),) = ((name, entry) for name, entry in living if entry["replica"] == replica)
    (shard,) = entry["shards"].values()
    for process in shard["status"]["processes"]:
        os.kill(process["pid"], signal.SIGKILL)
    return victim


def repaired(world: World, victim: str, count: int = 2) -> bool:
    ready = world.ready()
    return len(ready) == count and victim not in ready


def events(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_branch_that_is_deleted_stops_no_repair_also_after_a_restart_and_is_followed_again(
    world: World,
) -> None:
    world.placement(replicas=2)
    first = world.commit("good")
    url, told = remote(world), world.folder / "events.jsonl"
    following = ("--repo", url, "--ref", "main", "--events", str(told))
    with world.daemon(*following) as daemon:
        until("2 ready", lambda: len(world.ready()) == 2)
        until("in force", lambda: world.commit_in_force() == first)
        world.git("push", "-q", "origin", ":main")
        victim = kill_one(world)
        until("repaired", lambda: repaired(world, victim), 60)
        errors = [e for e in events(told) if e["kind"] == "revision.error"]
        assert "names no commit" in str(errors[0]["causes"])
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(5)

    with world.daemon(*following):
        victim = kill_one(world, "chat-1")
        until("repaired after a restart", lambda: repaired(world, victim), 60)
        assert world.commit_in_force() == first
        world.placement(replicas=3)
        second = world.commit("more")
        world.git("push", "-q", "origin", "main")
        until("the branch that came back is followed", lambda: len(world.ready()) == 3, 60)
        until("in force", lambda: world.commit_in_force() == second)

    # A slip in --ref: the command ends with 1 and says it, and repairs what is broken all the same.
    victim = kill_one(world, "chat-2")
    ran = world.reconcile("--repo", url, "--ref", "mian", "--wait", "--timeout", "30", code=1)
    assert "ref mian" in ran.err.replace("'", "").replace('"', "")
    assert "repairs go on" in ran.err
    assert repaired(world, victim, 3)
    status = world.reconcile("status", "--repo", url, "--ref", "mian").out
    assert "names no commit" in status
    assert "chat" in status


def test_a_mirror_that_is_lost_with_its_remote_costs_no_repair_until_the_restart(
    world: World,
) -> None:
    world.placement(replicas=2)
    world.commit("good")
    url = remote(world)
    with world.daemon("--repo", url, "--ref", "main"):
        until("2 ready", lambda: len(world.ready()) == 2)
        until("in force", lambda: world.commit_in_force() is not None)
        shutil.move(world.folder / "remote.git", world.folder / "away.git")
        for mirror in (world.folder / "operator" / "cache").rglob("*.git"):
            shutil.rmtree(mirror)
        victim = kill_one(world)
        until("repaired", lambda: repaired(world, victim), 60)

    before = kill_one(world, "chat-1")
    ran = world.reconcile("--repo", url, "--ref", "main", code=1)
    assert "nothing is done" in ran.err, ran
    assert len(world.living()) == 1, "something was started"

    shutil.move(world.folder / "away.git", world.folder / "remote.git")
    world.reconcile("--repo", url, "--ref", "main", "--wait", "--timeout", "60", code=0)
    assert repaired(world, before)


def test_a_mirror_that_is_damaged_is_made_anew_by_the_next_pass(world: World) -> None:
    world.placement()
    world.commit("good")
    url = remote(world)
    world.reconcile("--repo", url, "--wait", "--timeout", "60", code=0)
    (mirror,) = (world.folder / "operator" / "cache").rglob("*.git")
    for pack in mirror.glob("objects/pack/*.pack"):
        pack.chmod(0o644)
        old = pack.read_bytes()
        half = len(old) // 2
        pack.write_bytes(old[:half] + bytes(len(old) - half - 20) + old[-20:])
    world.reconcile("--repo", url, code=0)


def test_a_clone_that_is_behind_rolls_nothing_back_until_its_plan_was_reviewed(
    world: World,
) -> None:
    world.placement(replicas=2)
    world.commit("one")
    clone = world.folder / "clone"
    subprocess.run(["git", "clone", "-q", str(world.repo), str(clone)], check=True)
    world.placement(replicas=3)
    newest = world.commit("two")
    world.converge()

    stale = ("--repo", str(clone))
    ran = world.reconcile(*stale, code=1)
    assert "HistoryRewritten" in ran.err
    assert f"{newest[:10]}, the revision in force, is not in this repository" in ran.err
    assert "git pull" in ran.err
    assert len(world.ready()) == 3
    plan = world.plan(*stale)
    assert newest[:10] in plan["warnings"][0]
    subprocess.run(["git", "-C", str(clone), "pull", "-q"], check=True)
    world.reconcile(*stale, code=0)

    subprocess.run(["git", "-C", str(clone), "checkout", "-q", "HEAD~1"], check=True)
    ran = world.reconcile(*stale, "--wait", "--timeout", "60", code=0)
    assert f"is older than {newest[:10]}, the revision in force: it takes back 1 commit" in ran.out
    assert len(world.ready()) == 2, "a commit that was chosen is obeyed"


def test_what_somebody_tried_from_a_branch_is_taken_back_by_the_daemon_with_old_and_new(
    world: World,
) -> None:
    world.placement(replicas=2)
    first = world.commit("one")
    url, told = remote(world), world.folder / "events.jsonl"
    world.git("switch", "-q", "-c", "try")
    world.placement(replicas=3)
    tried = world.commit("a try")
    world.converge()
    with world.daemon("--repo", url, "--ref", "main", "--events", str(told)):
        until("main is followed", lambda: world.commit_in_force() == first, 60)

        def turns() -> list[tuple[object, object]]:
            found = [e for e in events(told) if e["kind"] == "revision.history"]
            return [(e["before"], e["after"]) for e in found]

        # The event comes when the pass is over; the lease names the revision before that.
        assert until("the turn to be told", turns) == [(tried, first)]
        until("2 ready", lambda: len(world.ready()) == 2, 60)
    assert "revision.history" in world.daemon_log


def test_a_remote_that_is_down_stops_no_repair_also_after_a_restart_and_every_page_says_it(
    world: World,
) -> None:
    world.placement(replicas=2)
    world.commit("good")
    url = remote(world)
    world.reconcile("--repo", url, "--wait", "--timeout", "60", code=0)
    shutil.move(world.folder / "remote.git", world.folder / "away.git")

    with socket.create_server(("127.0.0.1", 0)) as free:
        page = f"127.0.0.1:{free.getsockname()[1]}"
    with world.daemon("--repo", url, "--listen", page):
        victim = kill_one(world)
        until("repaired", lambda: repaired(world, victim), 60)
        with urllib.request.urlopen(f"http://{page}/metrics", timeout=10) as answer:
            assert b'reconcile_head_error{reason="FetchFailed"} 1.0' in answer.read()
        with urllib.request.urlopen(f"http://{page}/status", timeout=10) as answer:
            assert json.load(answer)["head_error"]["reason"] == "FetchFailed"
    assert "FetchFailed" in world.reconcile("status", "--repo", url, code=1).out

    shutil.move(world.folder / "away.git", world.folder / "remote.git")
    world.reconcile("status", "--repo", url, code=0)
