"""Faults by the name under which other people's fleets met them, each against the whole product."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.test_faults import one_per_node, verdicts
from tests.e2e.test_killed import die_at
from tests.e2e.world import FLEET_ID, Ran, World, until


def pinned(world: World, node: str, name: str = "more") -> None:
    world.placement(name, replicas=1, nodes=[node])
    world.commit()


# --- A node was reinstalled: new host key, same address ----------------------------------------


def test_a_reinstalled_node_is_held_its_replica_stays_where_it_is_and_the_others_go_on(
    world: World,
) -> None:
    where = one_per_node(world)
    strange, fine, _ = sorted(where)
    before = world.living()
    world.nodes.reinstall(strange)
    pinned(world, fine)
    for _ in range(2):
        ran = world.reconcile()
        assert ran.code == 3, ran
    until("the new replica elsewhere", lambda: len(world.ready()) == 3)
    kept = {launch: e for launch, e in before.items() if strange not in e["shards"]}
    assert kept.keys() < world.living().keys()
    assert not (world.nodes[strange].root / "launches").exists(), "it is started nowhere"
    seen = verdicts(world)
    assert sorted(v for k, v in seen.items() if k.startswith("chat-")).count("unreachable") == 1


# --- Its file system became read-only ----------------------------------------------------------


@contextmanager
def read_only(root: Path) -> Iterator[None]:
    """What the kernel does after an I/O error: what is open stays so, nothing new is written."""
    command = ["mount", "--bind", str(root), str(root)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    subprocess.run(["mount", "-o", "remount,bind,ro", str(root)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True)


def test_a_read_only_node_is_tried_a_bounded_number_of_times_and_keeps_what_runs(
    world: World,
) -> None:
    where = one_per_node(world)
    bad = sorted(where)[0]
    pinned(world, bad)
    before = world.ready()
    with read_only(world.nodes[bad].root):
        runs = [world.reconcile() for _ in range(10)]
        assert {ran.code for ran in runs} <= {3, 4}, runs[0]
        assert "read-only" in "".join(ran.out + ran.err for ran in runs).lower(), runs[0]
        assert before.keys() <= world.ready().keys()
        assert verdicts(world)[world.launches()[where[bad]]["replica"]] == "matching"
    tried = (world.nodes[bad].root / "launches").glob("more-0-*")
    assert not list(tried)
    world.converge()
    until("four ready", lambda: len(world.ready()) == 4)


# --- A node is rebooted between the starts of two shards ---------------------------------------


def test_a_reboot_between_two_shards_of_a_replica_that_has_moved_meanwhile(world: World) -> None:
    world.profile("wide", nodes=2, gpus_per_node=2)
    world.placement("wide", profile="wide", replicas=1, nodes=["gpu-a", "gpu-b"])
    world.commit()
    boundary = 1
    while not world.living():
        reached = die_at(world, boundary, "after")
        assert reached is not None, "the pass ended without a start"
        boundary += 1
    ((launch, entry),) = world.living().items()
    # Both are asked at once, so the second may have begun when the reconciler died.
    world.nodes.reboot(sorted(entry["shards"])[0])
    world.placement("wide", profile="wide", replicas=1, nodes=["gpu-b", "gpu-c"])
    world.commit()
    world.converge(90)
    ((moved, entry),) = world.living().items()
    assert moved != launch
    assert set(entry["shards"]) == {"gpu-b", "gpu-c"}
    assert moved in world.ready()
    assert not world.nodes.processes("gpu-a"), "what was begun before the reboot is over"
    assert world.plan()["changes"] == []


# --- Two reconcilers -----------------------------------------------------------------------------


def epochs(world: World) -> dict[str, int]:
    return {
        name: json.loads((node.root / f"lease-{FLEET_ID}.json").read_text())["epoch"]
        for name, node in world.nodes.nodes.items()
    }


def test_two_daemons_settle_and_neither_undoes_the_other(world: World, tmp_path: Path) -> None:
    world.fleet(lease_s=5)
    world.placement(replicas=3)
    world.commit()
    with world.daemon():
        until("three ready", lambda: len(world.ready()) == 3)
        # The second one is on another machine: caches and name of its own, and an older branch.
        other = tmp_path / "other"
        other.mkdir()
        first = world.env
        world.env = {**first, "HOME": str(other), "XDG_CACHE_HOME": str(other / "cache")}
        with world.daemon():
            world.env = first
            settled = set(world.launches())
            acted = epochs(world)
            end = time.monotonic() + 8  # longer than a lease: nobody takes it in turns
            while time.monotonic() < end:
                assert set(world.launches()) == settled
                time.sleep(0.2)
            assert max(epochs(world).values()) <= max(acted.values()) + 1
    assert "LeaseHeld" in world.daemon_log


# --- The machine that the reconciler runs on ----------------------------------------------------


def spoil_cache(home: Path) -> None:
    (home / "cache").write_text("a file")


def spoil_owners(home: Path) -> None:
    for path in (home / "cache" / "reconcile" / "owners").glob("*.id"):
        path.write_bytes(b"\xff\xfe")


def spoil_looks(home: Path) -> None:
    for path in (home / "cache" / "reconcile").rglob("*.json"):
        path.write_bytes(os.urandom(2000))


@pytest.mark.parametrize("spoil", [spoil_cache, spoil_owners, spoil_looks])
def test_a_spoilt_cache_of_the_operator_changes_nothing_that_runs(
    world: World, spoil: object
) -> None:
    world.placement(replicas=2)
    world.commit()
    world.converge()
    before = set(world.launches())
    home = world.folder / "operator"
    if spoil is spoil_cache:
        shutil.rmtree(home / "cache")
    spoil(home)  # type: ignore[operator]
    ran = world.reconcile()
    assert "Traceback" not in ran.out + ran.err, ran
    assert ran.code in (0, 1), ran
    if ran.code == 1:
        assert "RECONCILE_CACHE_DIR" in ran.err + ran.out
    assert set(world.launches()) == before


def run(world: World, *argv: str, **env: str) -> Ran:
    before, world.env = world.env, {**world.env, **env}
    try:
        return world.reconcile(*argv)
    finally:
        world.env = before


def test_a_terminal_that_knows_ascii_only_is_written_to(world: World) -> None:
    world.placement(replicas=2)
    world.commit()
    for argv in (["--dry-run"], ["status"], ["validate"]):
        ran = run(world, *argv, PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
        assert "Traceback" not in ran.err, ran


def test_a_reader_that_goes_away_is_no_crash(world: World) -> None:
    world.placement(replicas=2)
    world.commit()
    command = f"{sys.executable} -m reconciler.cli --dry-run --output json | head -c 1"
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=world.repo, env=world.env, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr, done.stderr


# --- Engines that do not behave ------------------------------------------------------------------

SERVER = """
import http.server, sys
kind, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if kind == "redirect":
            self.send_response(302)
            self.send_header("Location", "http://127.0.0.1:1/")
            self.end_headers()
        elif kind == "huge":
            self.send_response(200)
            self.send_header("Content-Length", "1000000000")
            self.end_headers()
            for _ in range(100):
                self.wfile.write(bytes(65536))
        elif kind == "noise":
            self.wfile.write(b"x" * 100000)
        else:
            self.send_response(503 if kind == "busy" else 200)
            self.end_headers()

    def log_message(self, *args):
        pass

port += 500 * (kind == "elsewhere")
http.server.ThreadingHTTPServer((host, port), Handler).serve_forever()
"""
ENDS = {
    "zero": (["/bin/true"], "exited with code 0"),
    "binary": (["/bin/sh", "-c", "head -c 100000 /dev/urandom; exit 3"], "exited with code 3"),
    "escapes": (["/bin/sh", "-c", "printf '\\033[2Jboom\\n'; exit 1"], "\\x1b[2Jboom"),
    "forks": (["/bin/sh", "-c", "(sleep 300 &); exit 0"], "exited with code 0"),
    "absent": (["/nowhere/engine"], "not found or not executable"),
    "text": (["/etc/passwd"], "not found or not executable"),
}
SERVES = {
    "redirect": "/health: 302",
    "busy": "/health: 503",
    "huge": "/health: the answer is longer",
    "noise": "/health: closed before it answered",
    "elsewhere": "/health: refused",
}


def test_engines_that_do_not_behave_are_told_apart_and_never_ready(
    world: World, tmp_path: Path
) -> None:
    server = tmp_path / "server.py"
    server.write_text(SERVER)
    commands = {kind: command for kind, (command, _) in ENDS.items()}
    for kind in (*SERVES, "well"):
        commands[kind] = [sys.executable, str(server), kind, "$(node.address)", "$(port.http)"]
    for kind, command in commands.items():
        world.profile(kind, engine="command", command=command, start_timeout_s=5)
        world.placement(kind, profile=kind)
    world.commit()
    first = world.reconcile()

    def told() -> str | None:
        status = world.reconcile("status").out
        words = [words for _, words in ENDS.values() if "executable" not in words]
        return status if all(w in status for w in (*words, *SERVES.values())) else None

    status = until("all have failed in their own words", told, 60)
    assert first.out.count("not found or not executable") >= 2, first
    assert "\x1b" not in first.out + status, "what an engine says reaches no terminal"
    ready = [e["replica"] for launch, e in world.living().items() if launch in world.ready()]
    assert ready == ["well-0"]
