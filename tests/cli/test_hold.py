"""Which launch `hold` means: a name that no launch has would be kept, and hold nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.cli.hold import cleared, launch_to_hold
from reconciler.core.observed import NodeAnswer, NodeHold, Shard
from reconciler.errors import SettingsError
from tests.cli.fakes import answer, desired, ready_shard

STATE = desired()


def node_with(*shards: Shard, hold: NodeHold | None = None) -> NodeAnswer:
    return replace(answer("a", *shards), hold=hold)


RUNS = ready_shard(STATE, "chat-0", "a", suffix="cxfdj")
ENDED = replace(ready_shard(STATE, "chat-0", "a", suffix="older"), alive=False)
ONE = node_with(RUNS, ENDED)


def test_a_launch_that_lives_there_is_held_by_its_name() -> None:
    assert launch_to_hold("a", ONE, "chat-0-cxfdj") == "chat-0-cxfdj"


def test_without_a_launch_the_whole_node_is_meant() -> None:
    assert launch_to_hold("a", ONE, "") == ""


def test_a_replica_means_its_only_living_launch_there() -> None:
    assert launch_to_hold("a", ONE, "chat-0") == "chat-0-cxfdj"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("chat-1", "no launch of that name lives on a; there are: chat-0-cxfdj"),
        ("chat-0-older", "no launch of that name lives on a; did you mean 'chat-0-cxfdj'?"),
        ("zzz", "there are: chat-0-cxfdj"),
    ],
)
def test_a_name_that_nothing_living_has_is_refused_with_what_there_is(name: str, told: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        launch_to_hold("a", ONE, name)
    assert told in str(refusal.value)


def test_a_replica_with_two_living_launches_must_be_told_apart() -> None:
    two = node_with(RUNS, ready_shard(STATE, "chat-0", "a", gpu=1, suffix="other"))
    with pytest.raises(SettingsError, match="name one: chat-0-cxfdj, chat-0-other"):
        launch_to_hold("a", two, "chat-0")


@pytest.mark.parametrize("held", ["", "chat-7-abcde"])
def test_another_persons_hold_is_not_taken_the_place_of(held: str) -> None:
    busy = node_with(RUNS, hold=NodeHold("kim", "a fan", launch=held))
    with pytest.raises(SettingsError, match="kim"):
        launch_to_hold("a", busy, "chat-0")


def test_a_hold_of_the_same_launch_may_be_renewed() -> None:
    mine = node_with(RUNS, hold=NodeHold("kim", "a fan", launch="chat-0-cxfdj"))
    assert launch_to_hold("a", mine, "chat-0") == "chat-0-cxfdj"


def test_a_clear_names_what_it_frees() -> None:
    of_launch = NodeHold("kim", "a fan", launch="chat-0-cxfdj")
    assert cleared("a", of_launch, "chat-0-cxfdj") == "chat-0-cxfdj on a"
    assert cleared("a", of_launch, "") == "chat-0-cxfdj on a"
    assert cleared("a", NodeHold("kim", "a fan"), "") == "a"


@pytest.mark.parametrize("held", ["", "chat-7-abcde"])
def test_a_clear_of_one_launch_frees_nothing_else(held: str) -> None:
    with pytest.raises(SettingsError, match="is not what is held"):
        cleared("a", NodeHold("kim", "a fan", launch=held), "chat-0-cxfdj")
