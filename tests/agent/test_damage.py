"""Disk faults: what cannot be read is unknown, what cannot be written is not begun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reconciler.agent import heartbeat, store
from reconciler.core.codec import from_json
from reconciler.core.observed import NodeAnswer
from tests.agent.harness import Json, Node, Refused, Specs, gone, poll

RECORDS = ("spec.json", "labels.json", "status.json", "intent.json")


def damages(data: bytes) -> Iterator[bytes]:
    """Truncated at, and with a bit flipped at, a sample of all bytes; emptied; zeroed."""
    step = max(1, len(data) // 12)
    for at in range(0, len(data) - 2, step):
        yield data[:at]
        yield data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    yield bytes(len(data))


def look(node: Node) -> NodeAnswer:
    return from_json(NodeAnswer, node.ask("observe", parts=["shards"]))


def test_a_flipped_digit_is_damage_and_a_hand_written_record_is_believed() -> None:
    sealed = store.seal({"seq": 3, "a": [1, {"b": "c"}]})
    assert store.parse(sealed, "x") == {"seq": 3, "a": [1, {"b": "c"}]}
    with pytest.raises(store.Damaged, match="check value"):
        store.parse(sealed.replace(b'"seq": 3', b'"seq": 8'), "x")
    assert store.parse(b'{"seq": 8}', "x") == {"seq": 8}


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_damaged_at_any_byte_never_reads_as_absent_or_ended(
    node: Node, specs: Specs, record: str
) -> None:
    node.start(specs.sim("chat-0-aaaaa", stop_grace_s=600))
    node.ready("chat-0-aaaaa")
    path = node.root / "launches" / "chat-0-aaaaa" / record
    if record == "intent.json":
        os.kill(node.supervisor("chat-0-aaaaa"), signal.SIGSTOP)
        node.stop("chat-0-aaaaa")
    whole = path.read_bytes()
    for damaged in damages(whole):
        path.write_bytes(damaged)
        (shard,) = look(node).shards
        assert shard.alive
        assert shard.phase.value != "ended"
        if record == "spec.json":
            assert shard.record is None
            assert "damaged" in shard.record_error
        if record == "intent.json":
            assert shard.stop_asked, "only a stop writes an intent, so a damaged one is a stop"
    path.write_bytes(whole)
    (shard,) = look(node).shards
    assert shard.record is not None


def test_a_damaged_record_holds_its_launch_alone(node: Node, specs: Specs) -> None:
    for number in range(2):
        node.start(specs.sim(f"chat-{number}-aaaaa"))
        node.ready(f"chat-{number}-aaaaa")
    path = node.root / "launches" / "chat-0-aaaaa" / "spec.json"
    spec = json.loads(path.read_text())
    spec.pop("check")
    for change in ({"places": 3}, {"seq": "3"}, {"format": "2.0"}, {"fingerprint": None}):
        path.write_text(json.dumps({**spec, **change}))
        first, second = look(node).shards
        if change != {"fingerprint": None}:
            assert first.record is None
            assert first.record_error
        assert first.alive
        assert second.record is not None
        assert second.health.ok


def test_a_newer_major_format_is_left_alone_and_can_be_stopped(node: Node, specs: Specs) -> None:
    node.start(specs.sim("chat-0-aaaaa"))
    pids = node.ready("chat-0-aaaaa")["pids"]
    path = node.root / "launches" / "chat-0-aaaaa" / "spec.json"
    spec = json.loads(path.read_text())
    spec.pop("check")
    path.write_text(json.dumps({**spec, "format": "2.0"}))
    assert node.shard("chat-0-aaaaa")["record_error"] == "format 2.0: this agent reads 1.x"
    kill = node.supervisor("chat-0-aaaaa")
    os.kill(kill, signal.SIGKILL)
    poll(lambda: gone(kill), bool)
    assert node.stop("chat-0-aaaaa", grace_s=0) == "stopping"
    poll(lambda: [pid for pid in pids if not gone(pid)], lambda left: left == [])


def test_a_live_launch_with_a_damaged_record_blocks_declared_gpus(node: Node, specs: Specs) -> None:
    node.start(specs.sim("chat-0-aaaaa"))
    node.ready("chat-0-aaaaa")
    (node.root / "launches" / "chat-0-aaaaa" / "spec.json").write_text("{")
    spec = specs.shell("b-0-aaaaa", ["sleep", "60"])
    spec["places"][0]["gpus"], spec["gpu_index"] = ["gpu-0"], {"gpu-0": 0}
    with pytest.raises(Refused, match="which GPUs it holds is not known") as refused:
        node.start(spec)
    assert refused.value.code == "gpu-taken"


def test_a_folder_of_launches_that_cannot_be_listed_is_unknown(node: Node, specs: Specs) -> None:
    node.start(specs.shell("job-0-aaaaa", ["sleep", "60"]))
    (node.root / "launches").rename(node.root / "moved")
    (node.root / "launches").write_text("")
    answer = look(node)
    assert answer.shards_error
    (node.root / "launches").unlink()
    (node.root / "moved").rename(node.root / "launches")
    assert look(node).shards[0].alive


def test_a_torn_heartbeat_is_no_heartbeat(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    assert heartbeat.write(fd, {"phase": "running", "boot_id": "a"})
    assert heartbeat.read(str(path)) == {"phase": "running", "boot_id": "a"}
    os.pwrite(fd, b"stopping"[:4], 20)
    assert heartbeat.read(str(path)) is None
    os.close(fd)


def test_records_written_under_kill_are_always_whole(tmp_path: Path) -> None:
    """A writer killed at any moment, again and again: the record is the old one or the new one."""
    path = tmp_path / "record.json"
    script = (
        "import itertools, sys; from reconciler.agent import store\n"
        "for n in itertools.count(int(sys.argv[2])):\n"
        "    store.write(sys.argv[1], {'n': n, 'pad': 'x' * 60000})\n"
        "    print(n, flush=True)\n"
    )
    import sys

    last = 0
    for round_ in range(10):
        command = [sys.executable, "-c", script, str(path), str(last)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        for _ in range(1 + round_ % 5):
            last = int(writer.stdout.readline())
        writer.kill()
        writer.stdout.close()
        writer.wait()
        assert store.read(str(path))["n"] >= last
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == ["record.json"]


# --- A full disk ------------------------------------------------------------------------------


@pytest.fixture
def small(make_node: Callable[[], Node]) -> Iterator[Node]:
    """A node whose root is a tmpfs of 6 MiB; needs root to be mounted."""
    node = make_node()
    node.root.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m,mode=0700", "tmpfs", str(node.root)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield node
    node.close()
    subprocess.run(["umount", "--lazy", str(node.root)], check=True)


def fill(node: Node) -> Path:
    """Leave no byte free."""
    path = node.root / "filler"
    with open(path, "ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            while True:
                try:
                    file.write(b"x" * size)
                except OSError:
                    break
    return path


def test_on_a_full_disk_nothing_is_started_and_what_runs_runs_on(small: Node) -> None:
    specs = Specs(small)
    small.ask("hello")
    small.start(specs.sim("chat-0-aaaaa"))
    pids = small.ready("chat-0-aaaaa")["pids"]
    fence = small.fence()
    filler = fill(small)
    with pytest.raises(Refused) as refused:
        small.ask("start", **fence, spec=specs.sim("chat-1-aaaaa"), labels={})
    assert refused.value.code in ("preflight", "io")
    assert "No space left" in refused.value.message
    assert set(small.shards()) == {"chat-0-aaaaa"}
    with pytest.raises(Refused) as refused:
        small.ask("stop", **fence, launch="chat-0-aaaaa")
    assert refused.value.code == "io"
    shard = small.shard("chat-0-aaaaa")
    assert (shard["pids"], shard["fresh"], shard["health"]["ok"]) == (pids, True, True)
    # A new session, too: what is on the disk already is enough to look.
    small.reconnect()
    assert small.shard("chat-0-aaaaa")["alive"]
    filler.unlink()
    small.stop("chat-0-aaaaa")
    small.ended("chat-0-aaaaa")


def test_an_end_on_a_full_disk_is_told_all_the_same(small: Node) -> None:
    specs = Specs(small)
    small.ask("hello")
    small.start(specs.sim("chat-0-aaaaa"))
    (pid,) = small.ready("chat-0-aaaaa")["pids"]
    filler = fill(small)
    os.kill(pid, signal.SIGKILL)
    shard = small.until("chat-0-aaaaa", lambda s: s["pids"] == [])
    told = json.loads((small.root / "launches/chat-0-aaaaa/status.json").read_text())
    assert told["phase"] != "ended"
    beat = poll(
        lambda: heartbeat.read(str(small.root / "launches/chat-0-aaaaa/lock")),
        lambda found: found is not None and found["phase"] == "ended",
    )
    assert beat["exit"]["signal"] == "KILL"
    filler.unlink()
    shard = small.ended("chat-0-aaaaa")
    assert shard["exit"]["signal"] == "KILL"


def test_an_agent_that_cannot_be_stored_still_looks(small: Node) -> None:
    fill(small)
    session = small.session()
    assert session.uploaded
    answer: Json = session.ask("observe")
    assert answer["machine_id"] == small.machine_id
    assert answer["network"]["error"] == ""
    assert not Path(answer["agent"]).exists()


def test_on_a_read_only_disk_one_can_look_and_nothing_is_begun(small: Node) -> None:
    specs = Specs(small)
    small.ask("hello")
    small.start(specs.sim("chat-0-aaaaa"))
    pids = small.ready("chat-0-aaaaa")["pids"]
    fence = small.fence()
    # What the kernel does after an I/O error; open descriptors keep a plain remount from working.
    command = ["mount", "--bind", str(small.root), str(small.root)]
    subprocess.run(command, check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(small.root)], check=True)
    try:
        small.reconnect()
        shard = small.shard("chat-0-aaaaa")
        assert (shard["pids"], shard["alive"]) == (pids, True)
        for op, fields in (
            ("start", {"spec": specs.sim("chat-1-aaaaa"), "labels": {}}),
            ("stop", {"launch": "chat-0-aaaaa"}),
        ):
            with pytest.raises(Refused, match="Read-only file system"):
                small.ask(op, **fence, **fields)
    finally:
        # The session has its agent's file open.
        subprocess.run(["umount", "--lazy", str(small.root)], check=True)
