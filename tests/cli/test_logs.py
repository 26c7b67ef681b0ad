"""Whose log `logs REPLICA` shows: never an old launch's in place of one that is out of sight."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.cli.logs import doubt_of, spot_of
from reconciler.core.observed import LookError, NodeLook, Observed, Place, Shard
from reconciler.errors import SettingsError
from tests.cli.fakes import answer, desired, ready_shard

STATE = desired()


def launch(on: str, seq: int, *, alive: bool = True) -> Shard:
    shard = ready_shard(STATE, "chat-0", on, suffix=f"s{seq}")
    assert shard.record
    return replace(shard, alive=alive, record=replace(shard.record, seq=seq))


def seen(name: str, *shards: Shard) -> NodeLook:
    return NodeLook(name, answer=answer(name, *shards))


def silent(name: str, *last: Shard, known: bool = False) -> NodeLook:
    held = answer(name, *last) if known else None
    return NodeLook(name, error=LookError.UNREACHABLE, detail="refused", last=held)


def of(*looks: NodeLook) -> Observed:
    return Observed("me", {look.node: look for look in looks})


def asked(observed: Observed, name: str = "chat-0") -> tuple[str, str]:
    spot = spot_of(observed, name, 0)
    return spot.launch, doubt_of(observed, name, spot)


OLD = launch("a", 1, alive=False)


def test_the_newest_launch_is_shown_and_nothing_is_in_doubt() -> None:
    assert asked(of(seen("a", OLD), seen("b", launch("b", 2)))) == ("chat-0-s2", "")


def test_an_ended_launch_is_no_stand_in_for_one_whose_node_is_silent() -> None:
    found, doubt = asked(of(seen("a", OLD), silent("b")))
    assert (found, doubt) == ("chat-0-s1", "chat-0 perhaps runs on b, which does not answer")


def test_the_launch_that_a_silent_node_was_last_seen_with_is_named() -> None:
    known = silent("b", launch("b", 2), known=True)
    _, doubt = asked(of(seen("a", OLD), known))
    assert doubt == "the current launch chat-0-s2 is on b, which does not answer"


def test_a_silent_node_that_was_seen_without_the_replica_casts_no_doubt() -> None:
    assert asked(of(seen("a", OLD), silent("b", known=True)))[1] == ""


def test_what_runs_and_answers_is_not_in_doubt_whoever_is_silent() -> None:
    assert asked(of(seen("a", launch("a", 1)), silent("b")))[1] == ""


def test_a_launch_that_was_named_itself_is_what_was_asked_for() -> None:
    assert asked(of(seen("a", OLD), silent("b")), "chat-0-s1")[1] == ""


def test_a_replica_that_nobody_shows_is_told_with_who_is_silent() -> None:
    with pytest.raises(SettingsError, match=r"\(b did not answer\)"):
        spot_of(of(seen("a"), silent("b")), "chat-0", 0)


def test_a_rank_on_a_silent_node_is_not_said_to_be_none() -> None:
    shard = launch("a", 1)
    assert shard.record
    there = Place(1, "b", "machine-b", ("b-gpu-0",), {})
    whole = replace(shard.record, places=(*shard.record.places, there))
    with pytest.raises(SettingsError, match="rank 1 runs on b, which did not answer"):
        spot_of(of(seen("a", replace(shard, record=whole)), silent("b")), "chat-0", 1)
    with pytest.raises(SettingsError, match="has no rank 2"):
        spot_of(of(seen("a", replace(shard, record=whole)), silent("b")), "chat-0", 2)
