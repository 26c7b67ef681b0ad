"""Where replicas go: every kind of refusal, stickiness, spread and pack, blocks, fabrics."""

from __future__ import annotations

from dataclasses import replace

from reconciler.core.model import AdapterPort, GpuInventory, Needs, NodeFabric
from reconciler.core.observed import (
    AdapterSeen,
    GpuProcess,
    GpuSeen,
    GpusPart,
    Network,
    NodeHold,
    Resources,
)
from tests.core.ask_plan import gpus, hold, lease, planned, started
from tests.core.build_world import World


def wants(count: int = 1, **over: object) -> World:
    """One replica of `count` GPUs; the nodes are the test's."""
    return World().profile("llama", gpus_per_node=count).placement("chat", "llama", **over)


def why(world: World) -> str:
    return hold(planned(world), "replica chat-0").message


def test_every_reason_is_summed_up_in_one_line() -> None:
    world = wants(4, fabric="ib-a")
    for n in ("n1", "n2", "n3"):
        world = world.node(n, gpus=2, fabrics=("ib-a",))
    world = world.node("n4", state="cordoned").node("n5", fabrics=("ib-b",))
    assert why(world) == (
        "0 of 5 nodes fit: 3 have 2 free GPUs of 2, 1 cordoned, 1 has fabric ib-b only;"
        " it needs 4 GPUs"
    )


def test_states_holds_and_silence_refuse_a_node() -> None:
    world = wants().node("n1", state="draining").node("n2", state="cordoned").node("n3")
    world = world.node("n4").silent("n4", remembered=True)
    held = NodeHold(who="alice", reason="new fans")
    world = world.answers_with("n3", hold=held)
    assert why(world).startswith("0 of 4 nodes fit: 1 cordoned, 1 draining, 1 held, 1 unreachable")


def test_a_departed_node_gets_nothing() -> None:
    assert "1 left the repo" in why(wants().node("n1").depart("n1"))


def test_a_lost_node_that_answers_again_gets_nothing() -> None:
    world = wants().node("n1", state="lost", reason="x").answers_with("n1", hostname="n1")
    assert "1 lost" in why(world)


def test_another_reconcilers_node_gets_nothing() -> None:
    world = wants().node("n1").answers_with("n1", lease=lease(owner="somebody"))
    assert "led by another reconciler" in why(world)


def test_pool_selector_and_pins_say_which_nodes_are_meant() -> None:
    world = wants(pool="l40s").node("n1")
    assert why(world) == "no node is meant: pool l40s; it needs 1 GPU"
    world = (
        wants(selector={"zone": "b"})
        .node("n1", labels={"zone": "a"})
        .node("n2", labels={"zone": "b"})
    )
    assert started(planned(world)) == {"chat-0": ("n2",)}
    world = wants(nodes=("n3",)).with_nodes("n1", "n3")
    assert started(planned(world)) == {"chat-0": ("n3",)}


def test_a_gpu_class_is_exact() -> None:
    world = wants().edit("llama", gpu_class="b200").node("n1")
    assert why(world) == "0 of 1 node fits: 1 has GPUs of class h100-80gb; it needs 1 GPU"


def test_memory_that_is_known_to_lack_refuses_and_what_is_not_known_does_not() -> None:
    world = wants().node("n1").edit("llama", needs=Needs(ram_gib=600, shm_gib=1))
    assert "has 500 GiB RAM free of 600" in why(world)
    unknown = world.answers_with("n1", resources=Resources())
    assert started(planned(unknown)) == {"chat-0": ("n1",)}
    world = wants().node("n1").edit("llama", needs=Needs(gpu_memory_gib=100))
    assert "has 0 GPUs of 100 GiB" in why(world)


def test_a_replica_that_is_replaced_in_its_place_is_not_refused_the_memory_that_it_holds() -> None:
    world = wants(8, rollout={"max_surge": 0}).edit("llama", needs=Needs(ram_gib=600)).node("n1")
    world = world.launch("chat-0", on="n1").answers_with("n1", resources=Resources(100 * 1024))
    made = planned(world.edit("llama", args=("--ctx", "2")))
    assert [s.kind for s in made.steps] == ["stop"]
    assert made.holds == ()


def test_a_gpu_is_free_only_when_observed_free() -> None:
    def seen(*items: GpuSeen, error: str = "") -> World:
        return wants().node("n1", gpus=1).answers_with("n1", gpus=GpusPart(items, error))

    stranger = GpuSeen("G0", 0, processes=(GpuProcess(77, name="python3"),))
    assert "has 0 free GPUs of 1 (1 with a stranger's process)" in why(seen(stranger))
    assert "has 0 free GPUs of 1" in why(seen(GpuSeen("G0", 0, error="lost")))
    assert "has 0 free GPUs of 1" in why(seen(GpuSeen("G0", 0, used_mib=30_000)))
    assert "GPUs that could not be read" in why(seen(error="NVML hangs"))
    assert started(planned(seen(GpuSeen("G0", 0, used_mib=500)))) == {"chat-0": ("n1",)}


def test_unreadable_launches_or_ports_make_nothing_free() -> None:
    assert "unknown launches" in why(wants().node("n1").answers_with("n1", shards_error="EIO"))
    network = Network(error="sysfs hangs")
    assert "ports that could not be read" in why(
        wants().node("n1").answers_with("n1", network=network)
    )


def test_a_living_launch_without_a_readable_record_may_hold_any_gpu() -> None:
    world = (
        wants()
        .node("n1", gpus=4)
        .launch("other-0", on="n1", record_error="damaged: not JSON", name="other-0-zz")
    )
    assert "has 0 free GPUs of 4" in why(world)


def test_declared_gpus_are_taken_by_records_alone() -> None:
    inventory = GpuInventory(klass="npu", count=2, source="declared")
    world = wants().node("n1", inventory=inventory)
    world = world.launch("chat-0", on="n1", gpus=("n1-gpu-0",)).edit_placement("chat", replicas=2)
    assert gpus(planned(world), "chat-1") == (("n1-gpu-1",),)


def test_declared_gpus_stay_taken_when_their_node_or_their_list_is_renamed() -> None:
    inventory = GpuInventory(klass="npu", count=2, source="declared")
    world = wants().node("n1", inventory=inventory)
    world = world.launch("chat-0", on="n1", gpus=("n1-gpu-1",)).edit_placement("chat", replicas=2)
    renamed = replace(inventory, ids=("npu-a", "npu-b"))
    assert gpus(planned(world.edit_node("n1", gpus=renamed)), "chat-1") == (("npu-a",),)


def test_a_declared_gpu_that_is_in_the_list_no_more_may_be_any() -> None:
    inventory = GpuInventory(klass="npu", count=2, source="declared", ids=("npu-a", "npu-b"))
    world = wants().node("n1", inventory=inventory)
    world = world.launch("chat-0", on="n1", gpus=("npu-a",)).edit_placement("chat", replicas=2)
    world = world.edit_node("n1", gpus=replace(inventory, ids=("npu-c", "npu-d")))
    assert "has 0 free GPUs of 2" in hold(planned(world), "replica chat-1").message


def test_gpu_types_are_not_mixed_on_a_node_or_over_nodes() -> None:
    items = (GpuSeen("G0", 0, name="H100"), GpuSeen("G1", 1, name="H200"))
    world = wants(2).node("n1", gpus=2).answers_with("n1", gpus=GpusPart(items))
    assert "1 has 2 free GPUs of unlike types" in why(world)
    world = wants(1).edit("llama", nodes=2).node("n1").node("n2", klass="l40s")
    assert "2 fit but have unlike GPUs or adapters" in why(world)


def test_llama_cpp_may_mix_gpu_types() -> None:
    items = (GpuSeen("G0", 0, name="H100"), GpuSeen("G1", 1, name="A100"))
    world = World().profile("gguf", engine="llamacpp", gpus_per_node=2).placement("chat", "gguf")
    world = world.node("n1", gpus=2).answers_with("n1", gpus=GpusPart(items))
    assert gpus(planned(world), "chat-0") == (("G0", "G1"),)


def test_all_ranks_share_one_fabric_and_have_like_adapters() -> None:
    world = wants(1, fabric="ib-a").edit("llama", nodes=2)
    two = NodeFabric(kind="ib", adapters=(AdapterPort("mlx5_0"), AdapterPort("mlx5_1")))
    world = world.node("n1", fabrics=("ib-a",)).node("n2", fabrics={"ib-a": two})
    assert "2 fit but have unlike GPUs or adapters" in why(world)
    world = world.node("n3", fabrics=("ib-a",))
    assert started(planned(world)) == {"chat-0": ("n1", "n3")}


def test_an_adapter_that_is_down_or_gone_refuses_the_node() -> None:
    def with_adapter(*seen: AdapterSeen) -> World:
        world = wants(fabric="ib-a").node("n1", fabrics=("ib-a",))
        return world.answers_with("n1", network=Network(adapters=seen))

    assert "has adapter mlx5_0:1 1: down" in why(
        with_adapter(AdapterSeen("mlx5_0", 1, state="1: DOWN"))
    )
    assert "has no adapter mlx5_0:1" in why(with_adapter(AdapterSeen("mlx5_9", 1)))
    good = with_adapter(AdapterSeen("mlx5_0", 1, state="4: ACTIVE"))
    # A name that NCCL would also find by prefix is the engines' matter, not placement's.
    assert planned(good).steps or "mlx5_0" not in why(good)


def test_ranks_keep_their_nodes_and_gaps_are_filled() -> None:
    world = wants(1).edit("llama", nodes=2).with_nodes("n1", "n2", "n3")
    world = world.launch("chat-0", on=("n3", "n1"), state="rebooted")
    assert started(planned(world)) == {"chat-0": ("n3", "n1")}
    world = world.edit_node("n3", state="cordoned")
    assert started(planned(world)) == {"chat-0": ("n2", "n1")}


def test_spread_and_pack() -> None:
    world = wants(1, replicas=2).with_nodes("n1", "n2")
    assert set(started(planned(world)).values()) == {("n1",), ("n2",)}
    packed = world.edit_placement("chat", spread=False)
    assert set(started(planned(packed)).values()) == {("n1",)}


def test_one_per_node_belongs_to_its_node() -> None:
    world = wants(8, replicas="per-node").with_nodes("n1", "n2")
    world = world.profile("small", gpus_per_node=1).placement("small", "small", nodes=("n1",))
    world = world.launch("small-0", on="n1")
    made = planned(world)
    assert sorted(started(made).values()) == [("n2",)]


def test_starts_that_fail_twice_on_a_node_go_to_another() -> None:
    world = wants().with_nodes("n1", "n2")
    world = world.launch("chat-0", on="n1", state="crashed")
    assert started(planned(world)) == {"chat-0": ("n1",)}
    world = world.launch("chat-0", on="n1", state="crashed")
    assert started(planned(world)) == {"chat-0": ("n2",)}


def test_a_quarantined_node_is_left_and_named_and_its_replica_goes_elsewhere() -> None:
    world = wants(8, replicas=2).with_nodes("n1", "n2", "n3").launch("chat-0", on="n2")
    for _ in range(2):
        world = world.launch("chat-1", on="n1", state="crashed")
    assert started(planned(world)) == {"chat-1": ("n3",)}
    left = world.edit_node("n3", state="cordoned")
    message = hold(planned(left), "replica chat-1").message
    assert "1 quarantined (2 starts failed on n1 that succeed on n2)" in message


def test_replicas_on_one_node_get_gpus_of_their_own_in_whole_nvlink_groups() -> None:
    items = tuple(GpuSeen(f"G{i}", i, nvlink_group=i % 2) for i in range(8))
    world = wants(4, replicas=2).node("n1").answers_with("n1", gpus=GpusPart(items))
    made = planned(world)
    assert gpus(made, "chat-0") == (("G0", "G2", "G4", "G6"),)
    assert gpus(made, "chat-1") == (("G1", "G3", "G5", "G7"),)


def test_a_replica_stays_where_it_is_when_a_better_place_comes_up() -> None:
    world = wants(1, replicas=2).node("n1").launch("chat-0", on="n1").launch("chat-1", on="n1")
    assert planned(world.with_nodes("n2", "n3")).changes == ()


# --- NVLink ---------------------------------------------------------------------------------------


def linked(world: World, node: str, *groups: int | None, busy: tuple[int, ...] = ()) -> World:
    """The NVLink group of each GPU of a node; strangers are on the busy ones."""
    items = tuple(
        GpuSeen(f"{node}{i}", i, nvlink_group=g, processes=(GpuProcess(9),) if i in busy else ())
        for i, g in enumerate(groups)
    )
    world = world if node in world.nodes else world.node(node, gpus=len(groups))
    return world.answers_with(node, gpus=GpusPart(items))


def test_a_node_with_a_whole_group_comes_before_one_where_the_block_would_lie_in_two() -> None:
    world = linked(wants(4), "n1", 0, 0, 0, 0, 1, 1, 1, 1, busy=(0, 4))
    assert started(planned(world)) == {"chat-0": ("n1",)}
    world = linked(world, "n2", 0, 0, 0, 0, 1, 1, 1, 1, busy=(0, 1, 2, 3))
    assert started(planned(world)) == {"chat-0": ("n2",)}
    assert planned(world).warnings == ()
    packed = world.edit_placement("chat", spread=False)
    assert started(planned(packed)) == {"chat-0": ("n2",)}


def test_a_block_in_two_groups_is_taken_where_nothing_else_fits_and_the_plan_says_so() -> None:
    world = linked(wants(4), "n1", 0, 0, 0, 0, 1, 1, 1, 1, busy=(0, 1, 4))
    assert gpus(planned(world), "chat-0") == (("n12", "n15", "n16", "n17"),)
    assert planned(world).warnings == (
        "replica chat-0: its 4 GPUs on n1 lie in 2 NVLink groups, and no node that it may use has"
        " so many free in one",
    )


def test_where_nvlink_joins_nothing_or_is_not_known_nothing_is_said() -> None:
    alone = linked(wants(4), "n1", *range(8))
    unknown = linked(wants(4), "n1", *[None] * 8)
    for world in (alone, unknown):
        assert gpus(planned(world), "chat-0") == (("n10", "n11", "n12", "n13"),)
        assert planned(world).warnings == ()


def test_a_replica_stays_on_its_gpus_though_they_lie_in_two_groups() -> None:
    world = linked(wants(2, rollout={"max_surge": 0}), "n1", 0, 0, 1, 1)
    world = world.launch("chat-0", on="n1", gpus=("n11", "n12")).edit("llama", args=("--ctx", "2"))
    made = planned(world)
    assert [s.gpus for s in made.changes[0].after_seats] == [("n11", "n12")]
    assert made.warnings == ()
