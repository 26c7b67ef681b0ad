"""What is published: an entry enters when it is ready, and leaves on evidence alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.diff import diff
from reconciler.core.endpoints import Endpoint, Endpoints, State, endpoints
from reconciler.core.observed import Labels, LookError, Shard
from tests.core.build_world import FLEET_ID, World

NOW, LATER = "2026-03-01T10:00:00Z", "2026-03-01T10:05:00Z"
LOOK_ERRORS = tuple(LookError)


def fleet(**launches: str) -> World:
    """`chat-0` on gpu-a, `chat-1` on gpu-b, both ready unless said otherwise."""
    world = (
        World()
        .with_nodes("gpu-a", "gpu-b", "gpu-c")
        .profile("llama", engine="vllm", gpus_per_node=1)
        .placement("chat", "llama", replicas=2, weight=30)
    )
    for i, node in enumerate(("gpu-a", "gpu-b")):
        world = world.launch(f"chat-{i}", on=node, state=launches.get(f"chat_{i}", "ready"))
    return world


def published(
    world: World,
    before: Endpoints | None = None,
    *,
    leaving: tuple[str, ...] = (),
    now: str = NOW,
) -> Endpoints:
    judged = diff(world.desired, world.observed)
    return endpoints(world.desired, world.observed, judged, before, leaving=leaving, now=now)


def states(found: Endpoints) -> dict[str, str]:
    return {e.launch: e.state.value for e in found.entries}


BEFORE = published(fleet())
NOTHING_BEFORE = Endpoints(FLEET_ID)


# --- Entering ---------------------------------------------------------------------------------


def test_what_is_ready_is_published_with_all_that_a_balancer_needs() -> None:
    assert BEFORE.entries[0] == Endpoint(
        launch="chat-0-s1",
        rank=0,
        replica="chat-0",
        placement="chat",
        node="gpu-a",
        address="10.0.0.1",
        port=20000,
        names=("llama",),
        engine="vllm",
        metrics_path="/metrics",
        weight=30,
    )
    assert [e.launch for e in BEFORE.entries] == ["chat-0-s1", "chat-1-s1"]


@pytest.mark.parametrize("state", ["starting", "failing", "unsupervised", "stopping", "crashed"])
def test_what_is_not_ready_does_not_enter(state: str) -> None:
    assert states(published(fleet(chat_0=state))) == {"chat-1-s1": "ready"}
    assert states(published(fleet(chat_0=state), NOTHING_BEFORE)) == {"chat-1-s1": "ready"}


def test_a_stale_replica_serves_until_it_is_stopped() -> None:
    assert len(published(fleet().edit("llama", args=("--seed", "1"))).entries) == 2


def test_a_replica_that_nobody_wants_serves_until_it_is_stopped() -> None:
    found = published(fleet().remove_placement("chat"), BEFORE)
    assert states(found) == {"chat-0-s1": "ready", "chat-1-s1": "ready"}
    assert {e.weight for e in found.entries} == {30}


def test_each_served_name_is_told_and_the_record_says_which() -> None:
    world = fleet().model("llama", served_names=("big", "alias"))
    assert BEFORE.entries[0].names == published(world).entries[0].names == ("llama",)
    again = World(nodes=world.nodes, models=world.models, profiles=world.profiles)
    again = again.placement("chat", "llama").launch("chat-0", on="gpu-a")
    assert published(again).entries[0].names == ("alias", "big")


def test_an_engine_that_answers_to_one_name_is_published_under_the_first() -> None:
    world = World().with_nodes("gpu-a").model("m", served_names=("b", "a"))
    world = world.profile("p", model="m", engine="sglang").placement("chat", "p")
    assert published(world.launch("chat-0", on="gpu-a")).entries[0].names == ("b",)


def test_behind_a_sidecar_the_engines_metrics_are_not_at_the_published_port() -> None:
    world = World().with_nodes("gpu-a")
    world = world.profile("p", engine="vllm", ports=("own",), listens="own")
    world = world.placement("chat", "p").launch("chat-0", on="gpu-a")
    assert published(world).entries[0].metrics_path == ""


def test_an_engine_without_known_metrics_has_no_metrics_path() -> None:
    world = World().with_nodes("gpu-a").profile("p", engine="command", command=("serve",))
    world = world.placement("chat", "p").launch("chat-0", on="gpu-a")
    assert published(world).entries[0].metrics_path == ""


def test_only_the_leader_of_several_nodes_serves_and_all_ranks_must_be_ready() -> None:
    world = World().with_nodes("gpu-a", "gpu-b").profile("p", engine="vllm", nodes=2)
    world = world.placement("chat", "p")
    whole = world.launch("chat-0", on=("gpu-a", "gpu-b"))
    assert [(e.rank, e.node) for e in published(whole).entries] == [(0, "gpu-a")]
    half = world.launch("chat-0", on=("gpu-a", "gpu-b"), ranks={1: "crashed"})
    assert published(half).entries == ()


def test_each_rank_that_serves_is_an_entry() -> None:
    world = World().with_nodes("gpu-a", "gpu-b").profile("p", engine="vllm", nodes=2)
    world = world.placement("chat", "p").launch("chat-0", on=("gpu-a", "gpu-b"), serves=True)
    assert [(e.rank, e.node) for e in published(world).entries] == [(0, "gpu-a"), (1, "gpu-b")]


def test_wanted_names_are_told_also_where_nothing_serves_them() -> None:
    world = World().with_nodes("gpu-a").profile("llama", engine="vllm").placement("chat", "llama")
    found = published(world)
    assert (found.entries, found.names) == ((), ("llama",))


# --- Leaving ----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["crashed", "vanished", "rebooted", "stopped", "stopping"])
def test_an_entry_leaves_when_its_end_or_its_stop_is_seen(state: str) -> None:
    assert states(published(fleet(chat_0=state), BEFORE)) == {"chat-1-s1": "ready"}


def test_an_entry_leaves_when_it_refuses_its_own_nodes_question() -> None:
    assert states(published(fleet(chat_0="failing"), BEFORE)) == {"chat-1-s1": "ready"}


def test_an_entry_leaves_before_its_stop_is_sent() -> None:
    found = published(fleet(), BEFORE, leaving=("chat-0-s1",))
    assert states(found) == {"chat-1-s1": "ready"}


def test_an_entry_whose_stop_was_not_sent_comes_back() -> None:
    left = published(fleet(), BEFORE, leaving=("chat-0-s1",))
    assert published(fleet(), left) == BEFORE


def test_an_entry_leaves_when_its_node_answers_whole_without_it() -> None:
    assert states(published(fleet().forget_launch("chat-0-s1"), BEFORE)) == {"chat-1-s1": "ready"}


def test_an_entry_leaves_when_a_person_says_that_its_node_is_lost() -> None:
    world = fleet().edit_node("gpu-a", state="lost", reason="burnt").silent("gpu-a")
    assert states(published(world, BEFORE)) == {"chat-1-s1": "ready"}


def test_an_entry_leaves_when_a_rank_of_it_is_proven_dead() -> None:
    world = World().with_nodes("gpu-a", "gpu-b").profile("p", engine="vllm", nodes=2)
    world = world.placement("chat", "p")
    before = published(world.launch("chat-0", on=("gpu-a", "gpu-b")))
    dead = world.launch("chat-0", on=("gpu-a", "gpu-b"), ranks={1: "crashed"})
    assert len(before.entries) == 1
    assert published(dead, before).entries == ()


# --- Staying ----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", LOOK_ERRORS)
def test_what_is_out_of_sight_stays_and_says_since_when(error: LookError) -> None:
    world = fleet().silent("gpu-a", error=error)
    kept = published(world, BEFORE, now=NOW)
    assert states(kept) == {"chat-0-s1": "unreachable", "chat-1-s1": "ready"}
    assert (kept.entries[0].since, kept.entries[0].why) == (NOW, error.value)
    assert published(world, kept, now=LATER) == kept, "the same state, another file"


def test_what_comes_back_into_sight_is_ready_again() -> None:
    kept = published(fleet().silent("gpu-a"), BEFORE)
    assert published(fleet(), kept, now=LATER) == BEFORE


def test_a_node_that_cannot_list_its_launches_loses_no_entry() -> None:
    world = fleet().forget_launch("chat-0-s1")
    world = world.answers_with("gpu-a", shards_error="input/output error")
    assert states(published(world, BEFORE)) == {"chat-0-s1": "unreachable", "chat-1-s1": "ready"}


def test_a_replica_with_a_silent_worker_stays() -> None:
    world = World().with_nodes("gpu-a", "gpu-b").profile("p", engine="vllm", nodes=2)
    world = world.placement("chat", "p").launch("chat-0", on=("gpu-a", "gpu-b"))
    kept = published(world.silent("gpu-b"), published(world))
    assert states(kept) == {"chat-0-s1": "unreachable"}


def test_what_nobody_asks_any_more_stays_as_unknown() -> None:
    found = published(fleet(chat_0="unsupervised"), BEFORE)
    assert states(found) == {"chat-0-s1": "unknown", "chat-1-s1": "ready"}


def test_what_lives_with_a_damaged_record_stays_as_unknown() -> None:
    world = (
        World()
        .with_nodes("gpu-a", "gpu-b", "gpu-c")
        .profile("llama", engine="vllm", gpus_per_node=1)
        .placement("chat", "llama", replicas=2, weight=30)
        .launch("chat-0", on="gpu-a", record_error="line 3: no JSON")
        .launch("chat-1", on="gpu-b")
    )
    found = published(world, BEFORE)
    assert states(found) == {"chat-0-s1": "unknown", "chat-1-s1": "ready"}
    assert found.entries[0].port == BEFORE.entries[0].port


def test_what_is_ready_with_a_fingerprint_of_a_newer_method_is_published_as_unknown() -> None:
    world = World().with_nodes("gpu-a").profile("p", engine="vllm").placement("chat", "p")
    world = world.launch("chat-0", on="gpu-a", record={"fingerprint": "p9:" + "0" * 64})
    assert states(published(world)) == {"chat-0-s1": "unknown"}


def test_a_renamed_placement_takes_its_entries_along() -> None:
    found = published(fleet().rename_placement("chat", "talk"), BEFORE)
    assert {(e.replica, e.placement, e.launch) for e in found.entries} == {
        ("talk-0", "talk", "chat-0-s1"),
        ("talk-1", "talk", "chat-1-s1"),
    }


def test_a_weight_that_was_edited_is_taken_at_once() -> None:
    found = published(fleet().edit_placement("chat", weight=0).silent("gpu-a"), BEFORE)
    assert {e.weight for e in found.entries} == {0}


# --- Without memory ---------------------------------------------------------------------------


def test_without_memory_the_last_look_tells_what_serves_on_a_silent_node() -> None:
    found = published(fleet().silent("gpu-a", remembered=True))
    assert states(found) == {"chat-0-s1": "unreachable", "chat-1-s1": "ready"}
    assert found.unseen == {}


def test_what_was_taken_out_is_not_brought_back_by_a_last_look() -> None:
    left = published(fleet(), BEFORE, leaving=("chat-0-s1",))
    world = fleet().silent("gpu-a", remembered=True)
    assert states(published(world, left)) == {"chat-1-s1": "ready"}


def test_without_any_memory_silent_nodes_are_named_until_they_answer() -> None:
    found = published(fleet().silent("gpu-a"))
    assert states(found) == {"chat-1-s1": "ready"}
    assert found.unseen == {"gpu-a": "10.0.0.1"}
    assert published(fleet().silent("gpu-a", "gpu-c"), found).unseen == found.unseen
    assert published(fleet(), found).unseen == {}


# --- Properties -------------------------------------------------------------------------------

NODES = ("gpu-a", "gpu-b", "gpu-c")
SEEN = ("ready", "starting", "failing", "unsupervised", "unhealthy", "stopping", "crashed")


@given(
    silent=st.sets(st.sampled_from(NODES)),
    remembered=st.booleans(),
    error=st.sampled_from(LOOK_ERRORS),
    spare=st.booleans(),
)
def test_a_cut_control_network_removes_no_entry(
    silent: set[str], remembered: bool, error: LookError, spare: bool
) -> None:
    world = fleet()
    if spare:
        world = world.edit("llama", args=("--seed", "2"))
    cut = world.silent(*sorted(silent), remembered=remembered, error=error)
    found = published(cut, BEFORE)
    assert {e.launch for e in found.entries} == {e.launch for e in BEFORE.entries}
    for entry in found.entries:
        assert (entry.state is State.READY) == (entry.node not in silent)


@given(
    first=st.tuples(st.sampled_from(SEEN), st.sampled_from(SEEN)),
    second=st.tuples(st.sampled_from(SEEN), st.sampled_from(SEEN)),
    silent=st.sets(st.sampled_from(NODES)),
    blind=st.sets(st.sampled_from(NODES)),
)
def test_an_entry_leaves_only_where_its_node_answered(
    first: tuple[str, str], second: tuple[str, str], silent: set[str], blind: set[str]
) -> None:
    before = published(fleet(chat_0=first[0], chat_1=first[1]).silent(*sorted(blind)), BEFORE)
    world = fleet(chat_0=second[0], chat_1=second[1]).silent(*sorted(silent))
    left = {e.node for e in before.entries} - {e.node for e in published(world, before).entries}
    assert not left & silent


@given(state=st.tuples(st.sampled_from(SEEN), st.sampled_from(SEEN)), cut=st.booleans())
def test_the_same_look_twice_publishes_the_same(state: tuple[str, str], cut: bool) -> None:
    world = fleet(chat_0=state[0], chat_1=state[1])
    world = world.silent("gpu-b") if cut else world
    once = published(world, BEFORE, now=NOW)
    assert published(world, once, now=LATER) == once


def test_another_fleets_launch_is_never_published() -> None:
    world = fleet()
    shard = world.observed.nodes["gpu-a"].answer.shards[0]  # type: ignore[union-attr]
    assert isinstance(shard, Shard)
    assert shard.record is not None
    strange = replace(shard, record=replace(shard.record, fleet="other"), labels=Labels())
    world = world.forget_launch("chat-0-s1").answers_with("gpu-a", shards=(strange,))
    assert states(published(world, NOTHING_BEFORE)) == {"chat-1-s1": "ready"}
