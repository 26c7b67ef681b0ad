"""The published files: exact bytes, the same for the same endpoints, and readable back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.endpoints import Endpoint, Endpoints, State
from reconciler.report.endpoints import FILES, rendered
from reconciler.report.endpoints.published import NewerFormat, published, read_published

GOLDEN = Path(__file__).parent / "golden" / "endpoints"

FOUND = Endpoints(
    fleet="7d1d1f7e-8f0b-4a36-9a0e-4f4b7b4d2c11",
    entries=(
        Endpoint(
            "chat-0-k3f9a", 0, "chat-0", "chat", "gpu-a", "10.0.0.1", 20000,
            names=("alias", "llama"), engine="vllm", metrics_path="/metrics",
        ),
        Endpoint(
            "chat-1-p2m4q", 0, "chat-1", "chat", "gpu-b", "fd00::2", 20010,
            names=("alias", "llama"), engine="vllm", metrics_path="/metrics", weight=30,
            state=State.UNREACHABLE, since="2026-03-01T10:00:00Z", why="NodeUnreachable",
        ),
        Endpoint(
            "rank-0-aaaaa", 0, "rank-0", "rank", "gpu-c", "10.0.0.3", 20020,
            names=("reranker",), engine="command",
        ),
    ),
    names=("alias", "llama", "nothing-yet", "reranker"),
    unseen={"gpu-d": "10.0.0.4"},
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(FILES))
def test_the_files_are_those_of_the_golden(name: str) -> None:
    """Write them anew by `python -m tests.report.test_endpoint_files`, and read the difference."""
    assert rendered(FOUND)[name] == (GOLDEN / name).read_text(encoding="utf-8")


def test_the_main_file_is_written_last() -> None:
    assert list(rendered(FOUND))[-1] == "endpoints.json"


def test_what_was_published_reads_back_as_memory() -> None:
    again = read_published(published(FOUND))
    assert set(again.entries) == set(FOUND.entries)
    assert (again.fleet, again.unseen) == (FOUND.fleet, FOUND.unseen)


def test_a_name_without_endpoints_is_an_empty_list() -> None:
    assert json.loads(published(FOUND))["models"]["nothing-yet"] == []


def test_prometheus_gets_targets_without_brackets_lost_and_without_what_has_no_metrics() -> None:
    groups = json.loads(rendered(FOUND)["prometheus-sd.json"])
    assert [g["targets"] for g in groups] == [["10.0.0.1:20000"], ["[fd00::2]:20010"]]


def test_litellm_gets_one_deployment_a_name_with_ids_that_differ() -> None:
    found = yaml.safe_load(rendered(FOUND)["litellm.yaml"])["model_list"]
    assert len({d["model_info"]["id"] for d in found}) == len(found) == 5
    assert found[1]["litellm_params"]["api_base"] == "http://[fd00::2]:20010/v1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format_version": "1.0"}',
        '{"format_version": "1.0", "models": {"a": {}}}',
        '{"format_version": "1.0", "models": {"a": [1]}}',
        '{"format_version": "1.0", "models": {"a": [{"launch": "x", "rank": {}}]}}',
        '{"format_version": "1.0", "models": {}, "unseen": []}',
        "[" * 100_000,
    ],
)
def test_what_is_damaged_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_published(text)


def test_a_newer_format_is_told_apart_from_damage() -> None:
    with pytest.raises(NewerFormat, match=r"has format 2\.0"):
        read_published('{"format_version": "2.0", "models": {}}')


def test_fields_that_a_newer_minor_adds_are_passed_over() -> None:
    data = json.loads(published(FOUND))
    data["models"]["llama"][0]["colour"] = "blue"
    assert len(read_published(json.dumps(data)).entries) == 3


@given(st.permutations(FOUND.entries))
def test_reading_back_does_not_depend_on_the_order(entries: list[Endpoint]) -> None:
    again = read_published(published(Endpoints(FOUND.fleet, tuple(entries))))
    assert set(again.entries) == set(entries)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for file_name, text in rendered(FOUND).items():
        (GOLDEN / file_name).write_text(text, encoding="utf-8")
