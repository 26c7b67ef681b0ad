"""Many sick at once is a cause outside; a node where starts fail that succeed elsewhere is one."""

from __future__ import annotations

import dataclasses

import pytest

from reconciler.core import observed as seen
from reconciler.core.verdict import Brake, Quarantine
from tests.core.ask_diff import judged, verdict
from tests.core.ask_plan import planned
from tests.core.build_world import World, gpu_ids, gpus_part

NODES = ("gpu-a", "gpu-b", "gpu-c", "gpu-d", "gpu-e", "gpu-f")
FLEET = World().with_nodes(*NODES).profile("llama").placement("chat", "llama", replicas=6)


def sick(failing_s: float) -> seen.Health:
    return seen.Health(ok=False, age_s=1.0, failing_for_s=failing_s)


def serving(*failing: float, fleet: World = FLEET) -> World:
    """Six replicas, one a node; those with a number fail for so long."""
    world = fleet
    for i, node in enumerate(NODES):
        if i < len(failing) and failing[i]:
            health = sick(failing[i])
            world = world.launch(f"chat-{i}", on=node, state="unhealthy", health=health)
        else:
            world = world.launch(f"chat-{i}", on=node)
    return world


def brakes(world: World) -> dict[str, Brake]:
    return {b.scope: b for b in judged(world).brakes}


# --- many sick at once ----------------------------------------------------------------------------


def test_two_and_a_third_of_a_model_within_unhealthy_after_is_a_brake() -> None:
    [found] = judged(serving(400.0, 350.0)).brakes
    assert found.scope == "model llama"
    assert (found.sick, found.total) == (2, 6)
    assert verdict(serving(400.0, 350.0), "chat-0-s1") == "unhealthy"


def test_one_sick_replica_is_no_brake() -> None:
    assert judged(serving(400.0)).brakes == ()
    alone = World().with_nodes("gpu-a").profile("llama").placement("chat", "llama", replicas=1)
    assert judged(alone.launch("chat-0", on="gpu-a", state="unhealthy")).brakes == ()


def test_less_than_a_third_is_no_brake() -> None:
    fleet = FLEET.edit_placement("chat", replicas=7)
    assert judged(serving(400.0, 350.0, fleet=fleet)).brakes == ()


def test_failures_far_apart_are_no_brake() -> None:
    assert judged(serving(4000.0, 350.0)).brakes == ()


def test_one_that_only_begins_to_fail_counts_so_that_the_first_is_not_restarted_alone() -> None:
    assert set(brakes(serving(310.0, 50.0))) == {"model llama"}


def test_one_that_crashed_after_serving_counts() -> None:
    world = serving(400.0)
    world = world.forget_launch("chat-1-s1").launch(
        "chat-1", on="gpu-b", state="crashed", ever_ready=True
    )
    assert set(brakes(world)) == {"model llama"}


def test_a_brake_holds_for_as_long_as_they_are_sick() -> None:
    assert set(brakes(serving(90_000.0, 89_900.0))) == {"model llama"}


def test_the_replicas_of_all_placements_of_a_model_count() -> None:
    world = serving(400.0).placement("more", "llama", replicas=1)
    world = world.launch("more-0", on="gpu-a", state="unhealthy")
    assert judged(world).brakes == ()
    world = world.placement("more", "llama", replicas=2).launch(
        "more-1", on="gpu-b", state="unhealthy"
    )
    assert brakes(world)["model llama"].total == 8


def on_one_node(count: int, ill: int) -> World:
    world = World().with_nodes(*NODES)
    for i in range(count):
        world = world.profile(f"m{i}").placement(f"p{i}", f"m{i}", replicas=1)
        world = world.launch(f"p{i}-0", on="gpu-a", state="unhealthy" if i < ill else "ready")
    return world


def test_a_third_of_a_node_with_three_or_more_is_a_brake() -> None:
    assert set(brakes(on_one_node(3, 2))) == {"node gpu-a"}
    assert set(brakes(on_one_node(2, 2))) == set()
    assert set(brakes(on_one_node(7, 2))) == set()


def test_one_probe_per_model_each_half_hour() -> None:
    assert brakes(serving(400.0, 350.0))["model llama"].probe == "chat-0"
    young = serving(400.0, 350.0).change_launch("chat-5-s1", started_age_s=600.0)
    assert brakes(young)["model llama"].probe == ""
    older = serving(400.0, 350.0).change_launch("chat-5-s1", started_age_s=1801.0)
    assert brakes(older)["model llama"].probe == "chat-0"


def test_a_brake_ends_when_they_recover() -> None:
    assert judged(serving()).brakes == ()


# --- quarantine: starts that fail here and succeed elsewhere --------------------------------------


def quarantines(world: World) -> list[Quarantine]:
    return list(judged(world).quarantines)


def failing(node: str, times: int = 2, **over: object) -> World:
    world = FLEET.launch("chat-0", on="gpu-b")
    for _ in range(times):
        world = world.launch("chat-1", on=node, state="crashed", **over)  # type: ignore[arg-type]
    return world


def test_a_node_where_starts_fail_that_succeed_elsewhere_is_quarantined() -> None:
    [found] = quarantines(failing("gpu-a"))
    assert (found.node, found.gpus) == ("gpu-a", ())
    assert "2 starts failed on gpu-a that succeed on gpu-b" in found.reason


def test_one_failed_start_may_be_chance() -> None:
    assert quarantines(failing("gpu-a", 1)) == []


def test_a_profile_that_succeeds_nowhere_blames_no_node() -> None:
    world = FLEET.launch("chat-1", on="gpu-a", state="crashed")
    assert quarantines(world.launch("chat-1", on="gpu-a", state="crashed")) == []


def test_a_node_where_it_also_succeeds_is_not_quarantined() -> None:
    assert quarantines(failing("gpu-b")) == []


def test_what_served_before_it_crashed_is_no_failed_start() -> None:
    assert quarantines(failing("gpu-a", ever_ready=True)) == []


def test_only_the_gpus_are_quarantined_where_the_node_serves_well_on_others() -> None:
    world = failing("gpu-a", gpus=("GPU-gpu-a-7",)).profile("qwen")
    world = world.placement("q", "qwen", replicas=1).launch("q-0", on="gpu-a")
    [found] = quarantines(world)
    assert (found.node, found.gpus) == ("gpu-a", ("GPU-gpu-a-7",))


def test_a_reboot_lifts_it() -> None:
    assert quarantines(failing("gpu-a").answers_with("gpu-a", boot_id="after")) == []


def test_a_retry_lifts_it() -> None:
    assert quarantines(failing("gpu-a").retry("chat-1", 2)) == []


def test_where_several_ranks_failed_no_node_is_blamed() -> None:
    world = FLEET.edit("llama", nodes=2).launch("chat-0", on=("gpu-c", "gpu-d"))
    for _ in range(2):
        world = world.launch("chat-1", on=("gpu-a", "gpu-b"), state="crashed")
    assert quarantines(world) == []


# --- quarantine: lost GPUs and stuck processes ----------------------------------------------------


def without(*uuids: str, error: str = "") -> World:
    part = gpus_part("gpu-a", FLEET.nodes["gpu-a"])
    if error:
        items = tuple(
            seen.GpuSeen(uuid=g.uuid, index=g.index, error=error) if g.uuid in uuids else g
            for g in part.items
        )
    else:
        items = tuple(g for g in part.items if g.uuid not in uuids)
    return FLEET.answers_with("gpu-a", gpus=seen.GpusPart(items=items, driver="550"))


def test_a_gpu_in_error_is_quarantined_alone() -> None:
    [found] = quarantines(without("GPU-gpu-a-3", error="lost"))
    assert (found.node, found.gpus) == ("gpu-a", ("GPU-gpu-a-3",))
    assert "7 of 8 GPUs work: lost" in found.reason


def test_a_gpu_that_is_missing_against_the_inventory_is_named_where_a_record_names_it() -> None:
    world = without("GPU-gpu-a-0")
    [found] = quarantines(world)
    assert found.gpus == ("(1 not seen)",)
    assert "7 of 8 GPUs are seen" in found.reason
    [found] = quarantines(world.launch("chat-0", on="gpu-a"))
    assert found.gpus == ("GPU-gpu-a-0",)


def test_a_gpu_that_is_missing_is_named_by_the_inventory_where_that_lists_uuids() -> None:
    listed = dataclasses.replace(FLEET.nodes["gpu-a"].gpus, ids=gpu_ids("gpu-a"))
    world = without("GPU-gpu-a-5").edit_node("gpu-a", gpus=listed)
    [found] = quarantines(world)
    assert (found.gpus, found.reason) == (("GPU-gpu-a-5",), "7 of 8 GPUs are seen")
    assert planned(world).warnings == ("node gpu-a: degraded, 7 of 8 GPUs: GPU-gpu-a-5 (not seen)",)


def test_a_gpu_without_a_handle_is_named_by_what_is_missing() -> None:
    part = gpus_part("gpu-a", FLEET.nodes["gpu-a"])
    items = tuple(
        seen.GpuSeen(uuid="", index=0, error="lost") if g.index == 0 else g for g in part.items
    )
    world = FLEET.answers_with("gpu-a", gpus=seen.GpusPart(items=items))
    [found] = quarantines(world)
    assert found.gpus == ("(1 not seen)",)
    [found] = quarantines(world.launch("chat-0", on="gpu-a"))
    assert (found.gpus, found.reason) == (("GPU-gpu-a-0",), "7 of 8 GPUs work: lost")
    # One more that is not listed at all: two of them, and still not the whole node.
    fewer = FLEET.answers_with("gpu-a", gpus=seen.GpusPart(items=items[:-1]))
    [found] = quarantines(fewer)
    assert found.gpus == ("(1 not seen)",)
    assert "7 of 8 GPUs are seen" in found.reason


def test_gpus_that_could_not_be_read_and_a_node_without_driver_are_no_loss() -> None:
    hung = FLEET.answers_with("gpu-a", gpus=seen.GpusPart(error="NVML hangs"))
    none = FLEET.answers_with("gpu-a", gpus=seen.GpusPart())
    assert quarantines(hung) == quarantines(none) == []


def test_a_stuck_process_quarantines_its_gpus() -> None:
    world = FLEET.launch("chat-0", on="gpu-a", state="stuck")
    [found] = quarantines(world)
    assert (found.node, found.gpus) == ("gpu-a", gpu_ids("gpu-a")[:1])
    assert "chat-0-s1 is stuck" in found.reason


@pytest.mark.parametrize("state", ["stopping", "ready"])
def test_nothing_else_is_quarantined(state: str) -> None:
    assert quarantines(FLEET.launch("chat-0", on="gpu-a", state=state)) == []


def test_a_node_has_at_most_one_entry_for_itself_and_one_for_its_gpus() -> None:
    world = without("GPU-gpu-a-3", error="lost").launch(
        "chat-0", on="gpu-a", state="stuck", gpus=("GPU-gpu-a-1",)
    )
    [found] = quarantines(world)
    assert found.gpus == ("GPU-gpu-a-1", "GPU-gpu-a-3")
