"""Findings as people, machines and GitHub get them; nothing of a repo reaches a terminal raw."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.changes import Reason
from reconciler.fleet.findings import (
    MAX_SHOWN,
    Finding,
    as_github,
    as_json,
    as_text,
    errors,
    escape,
    nearest,
    ordered,
    quoted,
    summary,
)

ONE = Finding(
    file="placements/a,b:c.yaml",
    line=3,
    column=5,
    path="replicas",
    subject="placement chat",
    message="100% wrong",
    hint="write\na number",
    reason=Reason.SCHEMA_FAILED,
)
WARNING = Finding("nodes/x.yaml", 0, 0, "", "", "it is odd", "", Reason.INFEASIBLE, warning=True)


def test_text_has_place_thing_path_what_is_wrong_and_what_to_do() -> None:
    said = as_text([ONE, WARNING]).splitlines()
    assert said == [
        "placements/a,b:c.yaml:3:5: placement chat: replicas: 100% wrong; write\\x0aa number",
        "nodes/x.yaml: warning: it is odd",
        "1 error, 1 warning in 2 files",
    ]


def test_github_gets_one_line_a_finding_with_every_separator_escaped() -> None:
    assert as_github([ONE, WARNING]).splitlines() == [
        "::error file=placements/a%2Cb%3Ac.yaml,line=3,col=5,title=SchemaFailed::"
        "placement chat: replicas: 100%25 wrong; write\\x0aa number",
        "::warning file=nodes/x.yaml,title=Infeasible::it is odd",
    ]


def test_json_has_every_field_and_the_counts() -> None:
    said = json.loads(as_json([ONE, WARNING]))
    assert (said["errors"], said["warnings"]) == (1, 1)
    assert said["findings"][0] == {
        "file": "placements/a,b:c.yaml",
        "line": 3,
        "column": 5,
        "path": "replicas",
        "subject": "placement chat",
        "message": "100% wrong",
        "hint": "write\na number",
        "reason": "SchemaFailed",
        "severity": "error",
    }


def test_strict_makes_warnings_errors() -> None:
    assert errors([ONE, WARNING]) == (ONE,)
    assert errors([ONE, WARNING], strict=True) == (ONE, WARNING)


def test_findings_are_sorted_by_place_and_told_once() -> None:
    later = Finding("a.yaml", 10, 1, "", "", "x", "", Reason.INFEASIBLE)
    first = Finding("a.yaml", 9, 1, "", "", "x", "", Reason.INFEASIBLE)
    assert ordered([later, first, later]) == (first, later)


def test_a_value_that_does_not_parse_is_not_told_again_for_its_shape() -> None:
    parse = Finding("a.yaml", 9, 1, "", "", "a tag", "", Reason.PARSE_FAILED)
    shape = Finding("a.yaml", 9, 1, "", "", "a list", "", Reason.SCHEMA_FAILED)
    elsewhere = Finding("a.yaml", 9, 7, "", "", "a list", "", Reason.SCHEMA_FAILED)
    assert ordered([parse, shape, elsewhere]) == (parse, elsewhere)


def test_a_flood_from_one_file_is_cut_and_counted() -> None:
    flood = [Finding("a.yaml", n, 1, "", "", "x", "", Reason.PARSE_FAILED) for n in range(1, 500)]
    said = as_text([*flood, WARNING]).splitlines()
    assert len(said) == MAX_SHOWN + 3
    assert f"a.yaml: {499 - MAX_SHOWN} more findings of this file are not shown" in said
    assert said[-1] == "499 errors, 1 warning in 2 files"


def test_no_findings_says_so() -> None:
    assert summary([]) == "no findings"


@given(st.text(max_size=60))
def test_whatever_a_file_holds_what_is_printed_is_one_printable_line(text: str) -> None:
    finding = Finding(text, 1, 1, text, text, text, text, Reason.PARSE_FAILED)
    for said in (str(finding), as_github([finding]).rstrip("\n"), quoted(text)):
        assert said.isprintable()
        assert "\u200b" not in said
        assert "\u202e" not in said


def test_what_cannot_be_seen_is_shown_by_its_number() -> None:
    assert escape("a\u200bb\u00a0c\x1b[2Kd\u202ee") == "a\\u200bb\\xa0c\\x1b[2Kd\\u202ee"
    assert escape("Größe 漢字") == "Größe 漢字"


def test_the_nearest_name_is_named_where_one_is_near() -> None:
    assert nearest("replica", ["replicas", "pool"]) == "did you mean 'replicas'?"
    assert nearest("Llama-70B", ["llama-70b", "llama-7b"]) == "did you mean 'llama-70b'?"
    assert nearest("max-parallel", ["max_parallel"]) == "did you mean 'max_parallel'?"
    assert nearest("zebra", ["replicas", "pool"]) == ""
    assert nearest("x" * 100_000, ["x" * 100_000]) == "", "difflib is not asked about long words"
