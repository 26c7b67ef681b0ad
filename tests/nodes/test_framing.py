"""Bytes to answers: noise does no harm, and what cannot be trusted is damaged, never empty."""

from __future__ import annotations

import json

import pytest

from reconciler.nodes.framing import (
    MAX_ANSWER,
    MAX_DEPTH,
    NOISE_KEPT,
    Damaged,
    Frame,
    FrameReader,
    parse,
    too_deep,
)

MARKER = "a1b2"


def framed(data: object, marker: str = MARKER) -> bytes:
    text = json.dumps(data)
    return f"\x1eRECONCILE {marker} {len(text)} {text}\n".encode()


STREAM = b"Welcome!\n" + framed({"id": 1}) + b"\n>>> " + framed({"id": 2}) + b"bye\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, len(STREAM)])
def test_answers_are_whole_however_the_bytes_arrive(size: int) -> None:
    reader = FrameReader(MARKER)
    pieces = [STREAM[i : i + size] for i in range(0, len(STREAM), size)]
    found = [frame for piece in pieces for frame in reader.feed(piece)]
    assert found == [Frame({"id": 1}, 9), Frame({"id": 2}, 9)]
    assert reader.noise == "Welcome!\n\n>>> bye"


def test_a_prompt_without_a_newline_does_not_hide_an_answer() -> None:
    assert FrameReader(MARKER).feed(b"user@host% " + framed({})) == [Frame({}, 2)]


def test_a_frame_with_another_marker_is_noise() -> None:
    reader = FrameReader(MARKER)
    assert reader.feed(framed({"id": 1}, "ffff")) == []
    assert "ffff" in reader.noise


def test_endless_noise_takes_no_memory() -> None:
    reader = FrameReader(MARKER)
    for _ in range(300):
        assert reader.feed(b"x" * 100_000) == []
    assert len(reader.noise) <= NOISE_KEPT
    assert reader.feed(b"\n" + framed({"id": 1})) == [Frame({"id": 1}, 9)]


def test_an_answer_without_end_is_damaged_and_the_next_one_is_read() -> None:
    reader = FrameReader(MARKER)
    found = reader.feed(b"\x1eRECONCILE a1b2 99999999 ")
    for _ in range(90):
        found += reader.feed(b"x" * 100_000)
    assert len(found) == 1
    assert isinstance(found[0], Damaged)
    assert str(MAX_ANSWER) in found[0].reason
    assert reader.feed(b"\n" + framed({"id": 2})) == [Frame({"id": 2}, 9)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'3 {"a":1}', "says that it has 3"),
        (b'99 {"a":1}', "says that it has 99"),
        (b'x {"a":1}', "length reads"),
        (b"-1 {}", "length reads"),
        (b"9999999999 {}", "more than"),
        (b"2 {]", "no JSON"),
        (b"2 []", "list where an object"),
        (b"4 null", "NoneType where an object"),
        (b"", "length reads"),
        (str(200_000).encode() + b" " + b"[" * 200_000, "no JSON"),
    ],
)
def test_what_does_not_fit_is_damaged(text: bytes, words: str) -> None:
    found = parse(text)
    assert isinstance(found, Damaged)
    assert words in found.reason


def test_every_truncation_of_an_answer_is_damaged_or_told_as_cut() -> None:
    whole = framed({"id": 1, "ok": True, "result": {"a": [1, 2, 3]}})
    start = len(f"\x1eRECONCILE {MARKER} ")
    for cut in range(start, len(whole) - 1):
        reader = FrameReader(MARKER)
        assert reader.feed(whole[:cut]) == []
        assert "into an answer" in reader.rest(), f"cut after {cut} bytes"
        reader = FrameReader(MARKER)
        (found,) = reader.feed(whole[:cut] + b"\n")
        assert isinstance(found, Damaged), f"cut after {cut} bytes and ended by a newline"


def test_depth_is_counted_without_recursion() -> None:
    nest: object = 1
    for _ in range(MAX_DEPTH + 1):
        nest = {"a": nest}
    deep: object = []
    for _ in range(100_000):
        deep = [deep]
    assert not too_deep(nest)
    assert too_deep([nest])
    assert too_deep(deep)
    assert not too_deep({"a": [{"b": 1}] * 1000})
