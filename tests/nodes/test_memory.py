"""What a silent node held is known only under an unbroken lease; to forget is always safe."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.core.observed import Labels, Lease, NodeAnswer, Shard
from reconciler.nodes.memory import Memory

ANSWER = NodeAnswer("1.0", "machine", "boot", shards=(Shard("chat-0-a", alive=True),))


def held(owner: str = "me", left: float = 60.0) -> NodeAnswer:
    return replace(ANSWER, lease=Lease("fleet", owner, 3, left))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def memory(path: Path | None = None, clock: Clock | None = None, **changes: str) -> Memory:
    given = {"owner": "me", "boot": "this-boot", **changes}
    return Memory(given["owner"], path, clock or Clock(), lambda: given["boot"])


def test_an_answer_under_our_own_lease_is_kept() -> None:
    known = memory()
    known.see("gpu-a", held())
    assert known.last("gpu-a") == held()


@pytest.mark.parametrize("answer", [ANSWER, held("other"), held(left=0.0)])
def test_an_answer_under_no_living_lease_of_ours_drops_what_was_kept(answer: NodeAnswer) -> None:
    known = memory()
    known.see("gpu-a", held())
    known.see("gpu-a", answer)
    assert known.last("gpu-a") is None
    assert known.machine_id("gpu-a") == "machine"


SPEC = {
    "format": "1.0", "fleet": "fleet", "launch": "chat-1-b", "replica": "chat-1", "seq": 1,
    "rank": 0, "places": [{"rank": 0, "node": "gpu-a", "machine_id": "machine", "gpus": ["GPU-1"],
                           "ports": {"http": 20000}}],
}  # fmt: skip


def test_what_was_started_after_the_look_is_held_too() -> None:
    known = memory()
    known.see("gpu-a", held())
    known.started("gpu-a", SPEC, Labels(placement="chat", ordinal=1))
    last = known.last("gpu-a")
    assert last is not None
    old, new = last.shards
    assert (old.launch, new.launch, new.alive) == ("chat-0-a", "chat-1-b", True)
    assert new.record is not None
    assert new.record.places[0].gpus == ("GPU-1",)


def test_a_start_that_cannot_be_read_is_not_guessed_at() -> None:
    known = memory()
    known.see("gpu-a", held())
    known.started("gpu-a", {"launch": "chat-1-b"}, Labels())
    assert known.last("gpu-a") is None


def test_the_cache_file_is_taken_over_by_the_same_owner(tmp_path: Path) -> None:
    path, clock = tmp_path / "cache" / "seen.json", Clock()
    first = memory(path, clock)
    first.see("gpu-a", held())
    first.save()
    assert path.stat().st_mode & 0o077 == 0
    clock.now += 59
    assert memory(path, clock).last("gpu-a") == held()


def test_the_cache_of_another_owner_boot_or_time_is_not_relied_on(tmp_path: Path) -> None:
    path, clock = tmp_path / "seen.json", Clock()
    first = memory(path, clock)
    first.see("gpu-a", held())
    first.save()
    assert memory(path, clock, owner="other").last("gpu-a") is None
    assert memory(path, clock, owner="other").machine_id("gpu-a") == ""
    rebooted = memory(path, clock, boot="another")
    assert (rebooted.last("gpu-a"), rebooted.machine_id("gpu-a")) == (None, "machine")
    clock.now += 61
    late = memory(path, clock)
    assert (late.last("gpu-a"), late.machine_id("gpu-a")) == (None, "machine")


def test_a_cache_cut_at_any_byte_is_the_same_as_none(tmp_path: Path) -> None:
    path, clock = tmp_path / "seen.json", Clock()
    first = memory(path, clock)
    first.see("gpu-a", held())
    first.save()
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        assert memory(path, clock).last("gpu-a") is None, f"cut after {cut} bytes"
    for wrong in ("[]", "{}", '{"format":1,"owner":"me","machines":[],"kept":{}}', "null"):
        path.write_text(wrong)
        assert memory(path, clock).last("gpu-a") is None


def test_the_file_is_written_only_when_something_has_changed(tmp_path: Path) -> None:
    path, clock = tmp_path / "seen.json", Clock()
    known = memory(path, clock)
    known.see("gpu-a", held())
    known.save()
    before = path.stat().st_mtime_ns
    known.see("gpu-a", replace(held(), uptime_s=7.0))
    known.save()
    assert path.stat().st_mtime_ns == before
    known.see("gpu-a", replace(held(), shards=()))
    known.save()
    assert json.loads(path.read_bytes())["kept"]["gpu-a"].get("shards") is None


def test_a_lease_that_is_renewed_keeps_the_file_good(tmp_path: Path) -> None:
    path, clock = tmp_path / "seen.json", Clock()
    known = memory(path, clock)
    for _ in range(10):
        known.see("gpu-a", held())
        known.save()
        clock.now += 30
    assert memory(path, clock).last("gpu-a") == held()


def test_a_disk_that_takes_no_file_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    known = memory(tmp_path / "file" / "seen.json")
    known.see("gpu-a", held())
    known.save()
    assert known.last("gpu-a") == held()


def test_what_a_person_called_lost_is_forgotten() -> None:
    known = memory()
    known.see("gpu-a", held())
    known.forget(["gpu-a", "gpu-b"])
    assert (known.last("gpu-a"), known.machine_id("gpu-a"), known.known()) == (None, "", set())
