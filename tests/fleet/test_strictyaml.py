"""Strict YAML: what is read, what is refused, and that limits come before any walk of the data."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.fleet.limits import Limits
from reconciler.fleet.strictyaml import parse, parse_with_positions

LIMITS = Limits()


def data(text: str) -> object:
    """The one document of a text, which must be without findings."""
    parsed = parse("a.yaml", text.encode(), LIMITS)
    assert parsed.findings == []
    (document,) = parsed.documents
    assert document.odd == ()
    return document.data


def refusal(text: str | bytes, limits: Limits = LIMITS) -> str:
    """The first finding of a text."""
    raw = text.encode() if isinstance(text, str) else text
    return str(parse("a.yaml", raw, limits).findings[0])


def odd(text: str) -> str:
    """The sort of the one odd scalar of a text."""
    (document,) = parse("a.yaml", text.encode(), LIMITS).documents
    (found,) = document.odd
    return found.sort


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a", "a"),
        ("'1'", "1"),
        ('"no"', "no"),
        ("1", 1),
        ("-7", -7),
        ("0", 0),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("0.20.2", "0.20.2"),
        ("v1", "v1"),
        ("1a", "1a"),
        ("=mlx5_1:1,mlx5_2:1", "=mlx5_1:1,mlx5_2:1"),
        ("--flag", "--flag"),
        ("-ot", "-ot"),
        ("25921e05x", "25921e05x"),
        ("blk.(0|1).ffn.=CUDA0", "blk.(0|1).ffn.=CUDA0"),
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::1"),
        ("y", "y"),
        ("n", "n"),
        ("nope", "nope"),
        ("/models/x", "/models/x"),
        ("h100-80gb", "h100-80gb"),
    ],
)
def test_a_scalar_is_what_every_reader_takes_it_for(text: str, value: object) -> None:
    found = data(f"k: {text}\n")
    assert found == {"k": value}
    assert type(found["k"]) is type(value)  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "sort"),
    [
        ("yes", "switch"),
        ("No", "switch"),
        ("ON", "switch"),
        ("off", "switch"),
        ("010", "number"),
        ("0o17", "number"),
        ("0x1F", "number"),
        ("0b11", "number"),
        ("1_000", "number"),
        ("+1", "number"),
        ("-0", "number"),
        ("22:22", "number"),
        ("1234567890123456789", "number"),
        ("1.10", "float"),
        ("8.0", "float"),
        ("1e3", "float"),
        ("1.0e+3", "float"),
        (".5", "float"),
        ("1.", "float"),
        (".inf", "float"),
        ("-.INF", "float"),
        (".nan", "float"),
        ("190:20:30.15", "float"),
        ("2026-12-01", "date"),
        ("2026-12-01T10:30:00Z", "date"),
        ("2026-12-01 10:30:00", "date"),
        ("=", "equals"),
    ],
)
def test_a_scalar_that_readers_disagree_on_is_odd(text: str, sort: str) -> None:
    assert odd(f"k: {text}\n") == sort


@given(
    st.text(
        st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":#,[]{}&*!|>'\"%@`"),
        min_size=1,
        max_size=24,
    )
)
@settings(max_examples=400)
def test_what_we_take_for_text_is_text_to_pyyaml_too(word: str) -> None:
    """Whatever the YAML 1.1 resolver turns into something else is odd, or one of our own values."""
    try:
        theirs = yaml.safe_load(f"k: {word}\n")
    except (yaml.YAMLError, ValueError):
        return
    parsed = parse("a.yaml", f"k: {word}\n".encode(), LIMITS)
    for document in parsed.documents:
        if document.odd or parsed.findings:
            return
        assert document.data == theirs, f"{word!r} means two things"


def test_merge_keys_are_read_own_keys_win_and_the_earlier_of_a_list() -> None:
    assert data("a: &a {x: 1, y: 1}\nb: {<<: *a, y: 2}\n") == {
        "a": {"x": 1, "y": 1},
        "b": {"x": 1, "y": 2},
    }
    found = data("a: &a {x: 1}\nb: &b {x: 2, z: 2}\nc: {<<: [*a, *b]}\n")
    assert found["c"] == {"x": 1, "z": 2}  # type: ignore[index]
    assert data("a: &a {x: 1}\nb:\n  y: 2\n  <<: *a\n")["b"] == {"y": 2, "x": 1}  # type: ignore[index]


def test_a_merge_replaces_whole_values_and_goes_one_level_deep() -> None:
    """As YAML 1.1's merge type says: the earlier of a list wins, nothing below a key is mixed."""
    text = "a: &a {x: 1, n: {p: 1}}\nb: &b {<<: *a, n: {q: 2}}\nc: {<<: [*b, *a], x: 3}\n"
    found = data(text)
    assert found["c"] == {"x": 3, "n": {"q": 2}}  # type: ignore[index]


def test_documents_of_a_file_are_told_apart_and_empty_ones_left_out() -> None:
    parsed = parse("a.yaml", b"---\na: 1\n---\n---\n# nothing\n---\nb: 2\n...\n", LIMITS)
    assert [d.data for d in parsed.documents] == [{"a": 1}, {"b": 2}]
    assert [d.line for d in parsed.documents] == [2, 7]


def test_a_byte_order_mark_at_the_start_is_no_mistake() -> None:
    assert data("\ufeffa: 1\n") == {"a": 1}


def test_crlf_is_a_line_end_like_any_other() -> None:
    assert data("a: 1\r\nb: x\r\n") == {"a": 1, "b": "x"}


def test_positions_point_at_values_and_keys() -> None:
    parsed = parse_with_positions("a.yaml", "a: 1\nb:\n  - x\n  - {c: y}\n", LIMITS)
    positions = parsed.documents[0].positions
    assert positions is not None
    assert positions[("a",)] == (1, 4)
    assert positions[("b", 1, "c")] == (4, 9)
    assert positions[("b", "\0key")] == (2, 1)


def test_positions_count_characters_not_bytes() -> None:
    parsed = parse("a.yaml", "é: {b: 1, b: 2}\n".encode(), LIMITS)
    assert (parsed.findings[0].line, parsed.findings[0].column) == (1, 11)


def test_the_key_path_of_a_quoted_key_cannot_be_taken_for_a_position() -> None:
    parsed = parse("a.yaml", b'"\\0key": 1\n', LIMITS)
    assert "control characters" in str(parsed.findings[0])


@pytest.mark.parametrize(
    ("limit", "text", "said"),
    [
        ({"file_bytes": 10}, "a: " + "x" * 20, "more than the 10 that a file may have"),
        ({"documents": 2}, "a: 1\n---\nb: 1\n---\nc: 1\n", "more than 2 documents"),
        ({"depth": 3}, "a: {b: {c: {d: 1}}}", "nested deeper than 3"),
        ({"values": 9}, "a: [1,2,3,4,5,6,7,8,9,10]", "more than 9 values"),
        ({"values": 30}, "a: &a [1,2,3,4,5,6,7,8]\nb: [*a, *a, *a]", "more than 30 values"),
        ({"values": 30}, "a: &a {b: 1, c: 2, d: 3}\nx: {<<: [*a,*a,*a,*a]}", "more than 30 values"),
    ],
)
def test_every_limit_is_told(limit: dict[str, int], text: str, said: str) -> None:
    assert said in refusal(text, replace(LIMITS, **limit))


def test_reading_of_a_file_ends_at_the_limit_of_findings() -> None:
    text = "".join(f"a{i}: {{b: 1, b: 2}}\n" for i in range(50))
    parsed = parse("a.yaml", text.encode(), replace(LIMITS, findings=10))
    assert len(parsed.findings) == 10
    assert not parsed.complete


ALIAS_LEVELS = "".join(
    f"{c}: &{c} [{','.join(['*' + p] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
)

HOSTILE = {
    "alias bomb": "a: &a [x,x,x,x,x,x,x,x,x]\n" + ALIAS_LEVELS,
    "alias of itself": "a: &a [*a]",
    "alias of itself by a mapping": "a: &a {b: {c: *a}}",
    "many brackets": "[" * 100_000,
    "many braces": "{" * 100_000,
    "nested block sequences": "- " * 50_000 + "x",
    "nested block mappings": "".join(" " * i + "a:\n" for i in range(1500)),
    "question marks": "? " * 50_000,
    "many anchors": "".join(f"- &a{i} x\n" for i in range(19_000)),
    "one anchor again and again": "".join("- &a x\n- *a\n" for _ in range(9000)),
    "long plain scalar": "a: " + "x" * 4_000_000,
    "long key": "x" * 3_000_000 + ": a",
    "long number": "a: " + "1" * 3_000_000,
    "long sexagesimal": "a: 1" + ":11" * 100_000,
    "almost a float": "a: " + "1" * 200 + "_" * 50 + "x",
    "many escapes": 'a: "' + "\\x41" * 900_000 + '"',
    "many documents": "--- a\n" * 30_000,
    "many comments": "# a\n" * 900_000,
    "many directives": "%TAG ! !x\n" * 100_000 + "--- a",
    "long tag": "a: !<" + "x" * 1_000_000 + "> b",
    "many quotes": "a: [" + "'a'," * 600_000 + "]",
    "folded lines": "a: >\n" + "  x\n" * 900_000,
    "empty flow entries": "a: [" + "," * 1_000_000,
    "colons": ":" * 1_000_000,
    "dashes": "-" * 3_000_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_makes_reading_slow(name: str) -> None:
    """Time of the process, so that a busy machine does not matter; each took under 1 s alone."""
    start = time.process_time()
    parse("a.yaml", HOSTILE[name].encode(), LIMITS)
    assert time.process_time() - start < 6
