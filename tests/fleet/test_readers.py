"""The fast readers and jsonschema accept and refuse the same documents, and convert rightly."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.core.model import Limit, NodeState
from reconciler.fleet import schemas
from reconciler.fleet.explain import _validator, explain
from reconciler.fleet.strictyaml import Document

VALID: Mapping[str, dict[str, Any]] = {
    "Fleet": {
        "kind": "Fleet",
        "version": 1,
        "name": "prod",
        "id": "7f3c1f0e-5a35-4c8e-9d0a-2b8f6a1c4d21",
        "ssh": {"user": "ops", "jump": "ops@bastion:22"},
        "guard": {"max_removed": "30%", "max_replaced": 3},
        "max_parallel": 4,
        "ports": {"first": 20000},
        "engines": {"vllm": {"path": "/opt/vllm"}},
        "freeze": {"reason": "x"},
    },
    "Node": {
        "kind": "Node",
        "name": "gpu-a",
        "address": "2001:db8::1",
        "pool": "h100",
        "gpus": {"class": "h100-80gb", "count": 8, "ids": ["a", "b"]},
        "labels": {"rack": "r1"},
        "fabrics": {"ib": {"kind": "roce", "gid_index": 3, "adapters": [{"name": "mlx5_0"}]}},
        "state": "lost",
        "reason": "off",
    },
    "Model": {
        "kind": "Model",
        "name": "Qwen/Qwen3-8B",
        "paths": {"h100": "/models/x"},
        "served_names": ["a", "b"],
        "facts": {"experts": 8},
    },
    "Profile": {
        "kind": "Profile",
        "name": "p",
        "extends": "q",
        "abstract": True,
        "args": ["--a", 1],
        "env": {"A": 1, "B": "x"},
        "parallel": {"tp": 8, "ep": True},
        "sidecars": [{"name": "s", "argv": ["x"], "env": {"A": "b"}}],
        "files": [{"path": "a/b.json", "content": "{}\n"}],
        "needs": {"memlock": "unlimited"},
        "x-notes": {"any": ["thing"]},
    },
    "Placement": {
        "kind": "Placement",
        "name": "chat",
        "profile": "p",
        "replicas": "per-node",
        "selector": {"zone": "east"},
        "nodes": ["gpu-a"],
        "rollout": {"max_surge": 0},
    },
}

WORDS = st.sampled_from(
    (
        *("", "a", "A", "a b", "a\n", "-", "/x", "/x\n", "x" * 70, "10%", "101%", "per-node"),
        *("ib", "1.2.3", "é", "\x00", "../x", "a/b", "a:b", "[::1]", "unlimited", "9.0"),
    )
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 100_001), st.floats(-2, 9), WORDS, st.text(max_size=5)
)
KEYS = st.one_of(WORDS, st.text(max_size=4))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path in plain data."""
    found = [path]
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        found += spots(inner, (*path, key))
    return found


@st.composite
def edited(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """A valid document with one to three values replaced, added or taken away."""
    document = copy.deepcopy(VALID[kind])
    names = sorted(schemas.schema(kind)["properties"])
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(spots(document)))
        if not path:
            document[draw(st.one_of(st.sampled_from(names), st.text(max_size=3)))] = draw(VALUES)
            continue
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        if draw(st.booleans()) and isinstance(parent, dict):
            del parent[path[-1]]
        else:
            parent[path[-1]] = draw(VALUES)
    return document


def accepts(kind: str, document: object) -> bool:
    try:
        schemas.reader(kind)(document)
    except schemas.Misfit:
        return False
    return True


@pytest.mark.parametrize("kind", sorted(VALID))
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_a_reader_and_jsonschema_agree_on_every_document(kind: str, data: st.DataObject) -> None:
    document = data.draw(edited(kind))
    assert accepts(kind, document) == _validator(kind).is_valid(document)


@pytest.mark.parametrize("kind", sorted(VALID))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_whatever_a_reader_refuses_is_explained(kind: str, data: st.DataObject) -> None:
    document = data.draw(edited(kind))
    if not accepts(kind, document):
        said = explain(kind, kind.lower(), Document("a.yaml", 0, 1, 1, document, positions={}))
        assert said
        assert all(f.message and f.line for f in said)


@pytest.mark.parametrize("kind", sorted(VALID))
def test_the_valid_documents_are_valid(kind: str) -> None:
    assert accepts(kind, VALID[kind])


def test_text_becomes_the_models_own_types() -> None:
    fleet = schemas.reader("Fleet")(VALID["Fleet"])
    assert fleet.guard.max_removed == Limit(percent=30)
    assert fleet.guard.max_replaced == Limit(count=3)
    assert fleet.max_parallel == Limit(count=4)
    assert fleet.ports.last == 29999
    node = schemas.reader("Node")(VALID["Node"])
    assert node.gpus.klass == "h100-80gb"
    assert node.state is NodeState.LOST
    assert node.fabrics["ib"].adapters[0].port == 1
    profile = schemas.reader("Profile")(VALID["Profile"])
    assert profile.args == ("--a", "1")
    assert profile.env == {"A": "1", "B": "x"}
    assert profile.files[0].content == "{}\n"


@pytest.mark.parametrize("name", ["chat\n", "chat\n\n", "\nchat"])
def test_a_line_feed_never_slips_through_a_pattern(name: str) -> None:
    """Python's `$` matches before a last line feed; JSON Schema's does not."""
    document = {**VALID["Placement"], "name": name}
    assert not accepts("Placement", document)
    assert not _validator("Placement").is_valid(document)


@pytest.mark.parametrize("number", [8.0, 1000.0, True])
def test_neither_a_fraction_nor_a_switch_is_a_whole_number(number: object) -> None:
    document = {**VALID["Placement"], "replicas": number}
    assert not accepts("Placement", document)
    assert not _validator("Placement").is_valid(document)
