"""Taking over what has not changed must never change what is read."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.core.codec import DecodeError, from_json
from reconciler.core.observed import NodeAnswer
from reconciler.nodes.decode import decode_answer

BASE: dict[str, Any] = {
    "format": "1.0",
    "machine_id": "m",
    "boot_id": "b",
    "uptime_s": 1.5,
    "shards": [
        {
            "launch": f"chat-{i}-abc",
            "record": {
                "format": "1.0", "fleet": "f", "launch": f"chat-{i}-abc", "replica": f"chat-{i}",
                "seq": 1, "rank": 0, "profile": {"profile": {"args": ["a"]}},
                "places": [{"rank": 0, "node": "n", "machine_id": "m", "gpus": ["g"],
                            "ports": {"http": 1}}],
            },
            "labels": {"placement": "chat", "labels": {"a": "b"}},
            "phase": "running", "health": {"ok": True, "age_s": 1.0}, "pids": [1, 2],
        }
        for i in range(3)
    ],
    "gpus": {"items": [{"uuid": f"g{i}", "index": i} for i in range(4)]},
    "network": {"listening": [["10.0.0.1", 80]], "ephemeral": [1, 2]},
    "lease": {"fleet": "f", "owner": "me", "epoch": 3, "remaining_s": 5},
}  # fmt: skip

# Not `true` beside `1`: they are equal here as they are in Python, and either is what was read.
VALUES = st.sampled_from([0, 7, 2.5, "", "x", "running", "ended", None, [], {}, [7], {"a": 7}])


def paths(data: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(data, dict):
        return found + [p for k, v in data.items() for p in paths(v, (*path, k))]
    if isinstance(data, list):
        return found + [p for i, v in enumerate(data) for p in paths(v, (*path, i))]
    return found


PATHS = paths(BASE)


def edit(data: dict[str, Any], path: tuple[Any, ...], value: object, delete: bool) -> None:
    target: Any = data
    for key in path[:-1]:
        if not isinstance(target, (dict, list)):
            return
        try:
            target = target[key]
        except (KeyError, IndexError, TypeError):
            return
    key = path[-1]
    fits = isinstance(target, dict) if isinstance(key, str) else isinstance(target, list)
    if not fits or (isinstance(target, list) and key >= len(target)):
        return
    if delete:
        target.pop(key, None) if isinstance(target, dict) else target.pop(key)
    else:
        target[key] = copy.deepcopy(value)


def read(data: dict[str, Any]) -> NodeAnswer | None:
    try:
        return from_json(NodeAnswer, data)
    except DecodeError:
        return None


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PATHS), VALUES, st.booleans()), max_size=4))
def test_reading_beside_the_last_answer_gives_what_reading_alone_gives(
    edits: list[tuple[tuple[Any, ...], object, bool]],
) -> None:
    before = copy.deepcopy(BASE)
    data = copy.deepcopy(BASE)
    for path, value, delete in edits:
        edit(data, path, value, delete)
    if str(data.get("format", "")).split(".")[0] != "1":
        return
    try:
        found: NodeAnswer | None = decode_answer(data, (before, from_json(NodeAnswer, before)))
    except DecodeError:
        found = None
    assert found == read(data), f"edits {edits} read otherwise beside the last answer"


def test_what_has_not_changed_is_taken_over() -> None:
    first = decode_answer(BASE, None)
    later = json.loads(json.dumps({**BASE, "uptime_s": 2.5}))
    later["shards"][1]["health"]["age_s"] = 2.0
    second = decode_answer(later, (BASE, first))
    assert second.gpus is first.gpus
    assert second.shards[0] is first.shards[0]
    assert second.shards[1].record is first.shards[1].record
    assert second.shards[1].health.age_s == 2.0


@pytest.mark.parametrize("version", ["2.0", "0.9", "", None, 1])
def test_another_major_format_is_not_read(version: object) -> None:
    with pytest.raises(DecodeError, match="format"):
        decode_answer({**BASE, "format": version}, None)


def test_a_newer_minor_format_is_read() -> None:
    assert decode_answer({**BASE, "format": "1.7", "new": {}}, None).format == "1.7"


def test_a_deep_profile_is_damage() -> None:
    deep: object = 1
    for _ in range(200):
        deep = [deep]
    data = copy.deepcopy(BASE)
    data["shards"][0]["record"]["profile"] = deep
    for before in (None, (BASE, from_json(NodeAnswer, BASE))):
        with pytest.raises(DecodeError, match="deeper"):
            decode_answer(data, before)


@pytest.mark.parametrize("index", [-2, 1024, 10**9])
def test_an_index_that_no_gpu_has_is_damage(index: int) -> None:
    changed = copy.deepcopy(BASE)
    changed["gpus"]["items"][0]["index"] = index
    for before in (None, (BASE, decode_answer(BASE, None))):
        with pytest.raises(DecodeError, match=f"GPU index {index} is not below 1024"):
            decode_answer(changed, before)


@pytest.mark.parametrize(
    "number", ["1" + "0" * 400, "-1" + "0" * 400, "1e999", "-Infinity", "NaN", str(2**63)]
)
@pytest.mark.parametrize(
    "path",
    [("uptime_s",), ("shards", 0, "record", "seq"), ("shards", 0, "health", "age_s"),
     ("shards", 0, "pids", 0), ("lease", "epoch"), ("lease", "remaining_s"),
     ("gpus", "items", 0, "index"), ("network", "listening", 0, 1)],
    ids=str,
)  # fmt: skip
def test_a_number_that_nothing_can_be_is_damage_whoever_reads_it(
    path: tuple[Any, ...], number: str
) -> None:
    data = copy.deepcopy(BASE)
    edit(data, path, json.loads(number), delete=False)
    for before in (None, (BASE, decode_answer(BASE, None))):
        with pytest.raises(DecodeError):
            decode_answer(data, before)


def test_what_is_said_of_damage_is_short_however_much_of_it_there_is() -> None:
    many = "x" * 1_000_000
    for wrong in ({"shards": [{"launch": "a", "phase": many}]}, {"lease": {"retries": {many: ""}}}):
        with pytest.raises(DecodeError) as caught:
            decode_answer({**BASE, **wrong}, None)
        assert len(str(caught.value)) < 1000
