"""Which records stay at a start: the evidence that the reconciler judges profiles by."""

from __future__ import annotations

from typing import Any

from reconciler.agent.records import Seen
from reconciler.agent.retention import removable

FLEET = "f"


def launch(seq: int, fingerprint: str, kind: str = "exited", *, ready: bool = False) -> Seen:
    spec: dict[str, Any] = {
        "fleet": FLEET, "replica": "chat-0", "seq": seq, "fingerprint": fingerprint,
    }  # fmt: skip
    status = {"phase": "ended", "ever_ready": ready, "exit": {"kind": kind, "boottime": 100.0}}
    return Seen(
        name=f"chat-0-{seq}", folder="", spec=spec, record=spec, spec_error="", labels=None,
        status=status, status_error="", intent=None, supervised=False, pids=(), same_boot=True,
    )  # fmt: skip


def kept(*launches: Seen) -> list[int]:
    gone = {s.name for s in removable(launches, FLEET, "chat-0", 200.0)}
    return [int(s.name.rpartition("-")[2]) for s in launches if s.name not in gone]


def test_the_last_ready_and_the_last_three_that_failed_are_kept() -> None:
    ready = launch(1, "p1:a", "stopped", ready=True)
    assert kept(ready, *(launch(n, "p1:b") for n in range(2, 8))) == [1, 5, 6, 7]


def test_failures_of_a_fallback_do_not_push_out_those_that_it_is_run_for() -> None:
    bad = [launch(n, "p1:b") for n in (2, 3, 4)]
    fallback = [launch(n, "p1:a", ready=True) for n in (5, 6, 7, 8)]
    assert kept(*bad, *fallback) == [2, 3, 4, 6, 7, 8]


def test_of_three_profiles_the_oldest_ones_failures_go() -> None:
    assert kept(launch(1, "p1:a"), launch(2, "p1:b"), launch(3, "p1:c")) == [2, 3]


def test_what_was_stopped_on_request_goes_unless_it_is_the_last_ready() -> None:
    assert kept(launch(1, "p1:a", "stopped"), launch(2, "p1:a", "stopped", ready=True)) == [2]
