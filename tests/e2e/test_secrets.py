"""A secret of the reconciler's own reaches the engine, and stands nowhere that people look."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.world import World, until

CANARY = "canary-c41f-77"


def folder_of(world: World) -> Path:
    """The default one of the operator's account."""
    world.env.pop("XDG_CONFIG_HOME", None)
    return world.folder / "operator" / ".config" / "reconcile" / "secrets"


def put(folder: Path, name: str, value: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    (folder / name).write_text(value + "\n")
    (folder / name).chmod(0o600)


def files_with(root: Path, value: str) -> Iterator[Path]:
    """Regular files under `root` that hold `value`."""
    for path in root.rglob("*"):
        try:
            if path.is_file() and not path.is_symlink() and value.encode() in path.read_bytes():
                yield path
        except FileNotFoundError:
            continue


def on_nodes(world: World, value: str) -> list[Path]:
    """Files of all nodes that hold `value`, under the folders of launches or not."""
    return [p for node in world.nodes.nodes.values() for p in files_with(node.folder, value)]


def engines_with(world: World, variable: str) -> set[int]:
    """Processes of the nodes that have `variable`; none may have a canary in its command line."""
    found = set()
    for name in world.nodes.nodes:
        for pid in world.nodes.processes(name):
            process = Path("/proc", str(pid))
            assert b"canary" not in (process / "cmdline").read_bytes()
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found


def test_a_reconcilers_secret_reaches_the_engine_and_nothing_else(world: World) -> None:
    folder = folder_of(world)
    world.profile(
        secrets={"TEST_KEY": "reconciler:test_key"},
        files=[{"path": "conf", "content": "key_file: $(launch.dir)/secrets/by-path\n"}],
    )
    world.placement()
    world.commit()

    said = [str(world.reconcile(*words)) for words in (["validate"], ["simulate"])]
    said.append(str(world.reconcile("--dry-run", code=0)))
    shell = world.reconcile("command", "chat", "--shell", code=0).out
    assert "set it to a folder that holds by-path test_key" in shell

    put(folder, "by-path", f"{CANARY}-path")
    told = world.reconcile("--output", "json", code=None)
    assert told.code != 0
    assert f"{folder}/test_key" in str(told)
    assert "by-path" not in str(told), "only what is missing is told"
    assert world.living() == {}, "nothing may start without its secret"
    doctor = world.reconcile("doctor", code=3)
    missing = f"secret test_key ({folder}/test_key): there is no such file"
    assert missing in doctor.out
    for words in (["--dry-run"], ["status"]):
        assert missing in world.reconcile(*words, code=None).out, words

    put(folder, "test_key", CANARY)
    assert f"{folder}/test_key" not in world.reconcile("doctor").out
    plan = world.plan()
    said += [str(plan), str(world.converge()), str(world.observe()), shell, str(doctor)]
    for words in (["status"], ["status", "--output", "json"], ["journal"], ["logs", "chat-0"]):
        said.append(str(world.reconcile(*words)))
    assert engines_with(world, f"TEST_KEY={CANARY}"), "the engine has the value"
    [launch] = world.living()
    [shard] = world.living()[launch]["shards"].values()
    held = shard["folder"]
    assert (held / "files" / "conf").read_text() == f"key_file: {held}/secrets/by-path\n"
    assert sorted(on_nodes(world, CANARY)) == [held / "secrets/by-path", held / "secrets/test_key"]
    for path in (held / "secrets").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    # The folder of the operator: caches, state and the repo with its history.
    kept = {*files_with(world.folder, CANARY)} - {*on_nodes(world, CANARY)}
    assert kept == {folder / "by-path", folder / "test_key"}
    assert all(CANARY not in text for text in said)

    world.placement(suspend=True)
    world.commit("suspend")
    world.reconcile("approve", "--yes", code=0)
    until("the launch ends", lambda: world.converge() and not world.living())
    assert on_nodes(world, CANARY) == []


def test_a_rotated_secret_restarts_nothing_and_reaches_what_starts_next(world: World) -> None:
    folder = world.folder / "elsewhere"
    put(folder, "key", f"{CANARY}-old")
    world.profile(secrets={"TEST_KEY": "reconciler:key"})
    world.placement(replicas=1)
    world.commit()
    world.env["RECONCILE_SECRETS_DIR"] = str(folder)
    world.converge()
    first = world.living()
    put(folder, "key", f"{CANARY}-new")
    assert [c for c in world.plan()["changes"] if c["symbol"] != "="] == []
    world.converge()
    assert world.living().keys() == first.keys()
    assert on_nodes(world, f"{CANARY}-new") == []

    world.env.pop("RECONCILE_SECRETS_DIR")
    world.placement(replicas=2)
    world.commit("one more")
    ran = world.reconcile("--wait", "--timeout", "40", "--secrets", str(folder), timeout_s=60)
    assert ran.code == 0, ran
    assert engines_with(world, f"TEST_KEY={CANARY}-new")
    assert engines_with(world, f"TEST_KEY={CANARY}-old"), "the first one runs on"

    # A new text in `restart` is how the value is taken everywhere.
    world.env["RECONCILE_SECRETS_DIR"] = str(folder)
    world.placement(replicas=2, restart="the key was rotated")
    world.commit("restart")
    until("all have it", lambda: world.converge() and not on_nodes(world, f"{CANARY}-old"))
    assert not engines_with(world, f"TEST_KEY={CANARY}-old")


def test_the_daemon_tells_nobody_and_waits_for_a_missing_secret(world: World) -> None:
    folder = folder_of(world)
    world.profile(secrets={"TEST_KEY": "reconciler:key"})
    world.placement()
    world.commit()
    port = world.nodes.nodes["gpu-a"].port
    listen = f"{world.nodes.nodes['gpu-a'].address}:{port + 1}"
    events = world.folder / "events.jsonl"
    with world.daemon("--listen", listen, "--events", str(events)):
        until("the hold is told", lambda: "there is no such file" in world.daemon_log)
        assert world.living() == {}
        put(folder, "key", CANARY)
        until("it is ready", lambda: world.ready(), 60)
        with urllib.request.urlopen(f"http://{listen}/metrics", timeout=5) as answer:
            assert CANARY not in answer.read().decode()
    assert CANARY not in world.daemon_log
    assert CANARY not in events.read_text()


def test_an_adopted_launch_keeps_its_secret_until_it_ends(world: World) -> None:
    put(folder_of(world), "key", CANARY)
    world.profile(secrets={"TEST_KEY": "reconciler:key"})
    world.placement()
    world.commit()
    world.converge()
    [launch] = world.living()
    [shard] = world.living()[launch]["shards"].values()
    os.kill(shard["status"]["supervisor"]["pid"], signal.SIGKILL)
    world.forget()
    folder_of(world)
    until("it is adopted", lambda: world.converge() and adopted(shard["folder"]))
    assert world.living().keys() == {launch}
    assert (shard["folder"] / "secrets" / "key").read_text() == CANARY


def adopted(folder: Path) -> bool:
    return '"adopted": true' in (folder / "status.json").read_text()
