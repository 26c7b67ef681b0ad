"""How long a failed replica waits, read from the records of its launches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.core import observed as seen
from reconciler.core.verdict import Backoff
from tests.core.ask_diff import replica
from tests.core.build_world import World

FLEET = (
    World()
    .with_nodes("gpu-a", "gpu-b")
    .profile("llama", args=("--ctx", "1"))
    .placement("chat", "llama", replicas=1)
)


def ended(age_s: float, kind: str = "exited") -> seen.ShardExit:
    return seen.ShardExit(kind=seen.ExitKind(kind), code=1, age_s=age_s)


def failed(*ages: float, first_seq: int = 1) -> World:
    """One failed launch per age, oldest first."""
    world = FLEET
    for i, age in enumerate(ages):
        world = world.launch(
            "chat-0", on="gpu-a", state="crashed", seq=first_seq + i, exit=ended(age)
        )
    return world


def backoff(world: World) -> Backoff:
    return replica(world, "chat-0").backoff


def test_without_a_failure_nothing_waits() -> None:
    assert backoff(FLEET) == Backoff()
    assert backoff(FLEET.launch("chat-0", on="gpu-a")) == Backoff()
    assert backoff(FLEET.launch("chat-0", on="gpu-a", state="stopped")) == Backoff()


def test_the_first_failure_waits_ten_seconds_from_its_end() -> None:
    assert backoff(failed(4.0)) == Backoff(1, 6.0)
    assert backoff(failed(11.0)) == Backoff(1, 0.0)


def test_each_further_failure_doubles_the_wait() -> None:
    assert backoff(failed(100.0, 0.0)) == Backoff(2, 20.0)
    assert backoff(failed(200.0, 100.0, 0.0)) == Backoff(3, 40.0)


def test_failures_whose_records_are_swept_are_counted_by_seq() -> None:
    assert backoff(failed(200.0, 100.0, 0.0, first_seq=3)) == Backoff(5, 160.0)


def test_the_wait_is_at_most_five_minutes() -> None:
    assert backoff(failed(900.0, 600.0, 0.0, first_seq=400)) == Backoff(402, 300.0)


def test_failures_before_the_last_good_launch_do_not_count() -> None:
    world = FLEET.launch("chat-0", on="gpu-a", state="stopped", seq=9)
    for seq in (10, 11, 12):
        world = world.launch("chat-0", on="gpu-a", state="crashed", seq=seq, exit=ended(0.0))
    assert backoff(world).failures == 3


def test_the_wait_is_per_replica() -> None:
    world = failed(0.0).edit_placement("chat", replicas=2)
    assert replica(world, "chat-1").backoff == Backoff()


def test_an_edit_clears_it() -> None:
    assert backoff(failed(100.0, 0.0).edit("llama", args=("--ctx", "2"))) == Backoff()


def test_a_retry_clears_it_up_to_its_seq() -> None:
    assert backoff(failed(100.0, 0.0).retry("chat-0", 2)) == Backoff()
    assert backoff(failed(100.0, 0.0).retry("chat-0", 1)) == Backoff(1, 10.0)


def test_a_reboot_clears_it_also_for_what_had_failed_before() -> None:
    rebooted = failed(100.0, 50.0).launch("chat-0", on="gpu-a", state="rebooted")
    assert backoff(rebooted) == Backoff()
    assert backoff(failed(100.0, 0.0).answers_with("gpu-a", boot_id="another")) == Backoff()


def test_a_ready_launch_clears_it() -> None:
    assert backoff(failed(100.0, 0.0).launch("chat-0", on="gpu-b")) == Backoff()


def test_a_long_service_starts_the_count_anew() -> None:
    world = failed(9000.0, 8000.0).launch(
        "chat-0",
        on="gpu-a",
        state="crashed",
        ever_ready=True,
        started_age_s=7000.0,
        exit=ended(0.0),
    )
    assert backoff(world) == Backoff(1, 10.0)


def test_a_crash_loop_of_launches_that_were_ready_for_moments_goes_on_counting() -> None:
    world = FLEET
    for _ in range(3):
        world = world.launch(
            "chat-0",
            on="gpu-a",
            state="crashed",
            ever_ready=True,
            started_age_s=60.0,
            exit=ended(0.0),
        )
    assert backoff(world).failures == 3


@pytest.mark.parametrize("state", ["preflight", "rebooted", "stopped"])
def test_what_executed_nothing_or_did_not_end_by_itself_delays_nothing(state: str) -> None:
    assert backoff(FLEET.launch("chat-0", on="gpu-a", state=state)) == Backoff()


def test_a_failure_of_the_place_delays_without_counting_against_the_profile() -> None:
    world = FLEET.edit("llama", engine="vllm")
    tail = ("OSError: [Errno 98] error while attempting to bind: address already in use",)
    world = world.launch("chat-0", on="gpu-a", state="crashed", exit=ended(0.0), log_tail=tail)
    found = replica(world, "chat-0")
    assert found.backoff == Backoff(1, 10.0)
    assert not found.launches[0].failed


def test_an_incomplete_launch_delays_nothing() -> None:
    world = FLEET.edit("llama", nodes=2)
    world = world.launch("chat-0", on=("gpu-a", "gpu-b"), state="starting", absent=(1,))
    assert backoff(world) == Backoff()


def test_a_rank_whose_start_was_cut_off_tells_no_age_and_holds_up_no_back_off() -> None:
    """Its record reads as ended just now, in every look: the wait would never be over."""
    world = FLEET.edit("llama", nodes=2)
    world = world.launch("chat-0", on=("gpu-a", "gpu-b"), ranks={0: "timed-out", 1: "preflight"})
    (built,) = world.launches
    cut = seen.ShardExit(kind=seen.ExitKind.PREFLIGHT, message="the start was cut off")
    rank = replace(built.shards["gpu-b"], exit=cut)
    world = replace(world, launches=(replace(built, shards={**built.shards, "gpu-b": rank}),))
    assert replica(world, "chat-0").backoff == Backoff(1, 0.0)
