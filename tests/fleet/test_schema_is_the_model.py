"""`schema/` and `core/model` say the same: names, types, defaults, and what an edit restarts."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from reconciler.core import model
from reconciler.core.codec import to_json
from reconciler.fleet import schemas

ROOT = Path(__file__).resolve().parents[2]
KINDS = sorted(schemas.KINDS)
FIELD_OF = schemas.SPELLINGS

Pair = tuple[str, Mapping[str, Any], dataclasses.Field[Any], Any]


def pairs(kind: str) -> Iterator[Pair]:
    """Every property of a kind's schema, at any depth, with the field that it fills."""
    root = schemas.schema(kind)
    yield from _pairs(kind, root, root, schemas.KINDS[kind])


def _pairs(
    path: str, node: Mapping[str, Any], root: Mapping[str, Any], cls: type
) -> Iterator[Pair]:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    for name, sub in node["properties"].items():
        if node is root and name in schemas.SCHEMA_ONLY:
            continue
        field = fields[FIELD_OF.get(name, name)]
        hint = hints[field.name]
        yield f"{path}.{name}", sub, field, hint
        inner = _dataclass_in(hint)
        target = schemas.resolve(sub, root)
        target = schemas.resolve(target.get("items") or target, root)
        more = target.get("additionalProperties")
        target = schemas.resolve(more, root) if isinstance(more, dict) else target
        if inner is not None:
            yield from _pairs(f"{path}.{name}", target, root, inner)


def _dataclass_in(hint: Any) -> type | None:
    """The dataclass that a type is, or is a collection of."""
    if hint is model.Limit:
        return None
    if dataclasses.is_dataclass(hint):
        return typing.cast(type, hint)
    found = [_dataclass_in(argument) for argument in typing.get_args(hint)]
    return next((cls for cls in found if cls is not None), None)


def test_every_field_is_in_the_schema_and_every_property_is_a_field() -> None:
    for kind, cls in schemas.KINDS.items():
        root = schemas.schema(kind)
        seen: dict[str, tuple[set[str], set[str]]] = {}
        for path, node, owner in [(kind, root, cls), *_objects(kind, root, cls)]:
            named = {FIELD_OF.get(n, n) for n in node["properties"]}
            named -= schemas.SCHEMA_ONLY if node is root else set()
            seen[path] = (named, {f.name for f in dataclasses.fields(owner)})
        assert {p: n for p, (n, f) in seen.items() if n != f} == {}, "schema and model differ"


def _objects(kind: str, root: Mapping[str, Any], cls: type) -> Iterator[tuple[str, Any, type]]:
    for path, sub, _, hint in pairs(kind):
        inner = _dataclass_in(hint)
        if inner is not None:
            node = schemas.resolve(sub, root)
            node = schemas.resolve(node.get("items") or node, root)
            more = node.get("additionalProperties")
            yield path, schemas.resolve(more, root) if isinstance(more, dict) else node, inner


@pytest.mark.parametrize("kind", KINDS)
def test_every_default_is_the_models(kind: str) -> None:
    wrong = {}
    for path, sub, field, hint in pairs(kind):
        if field.default is not dataclasses.MISSING:
            expected: Any = field.default
        elif field.default_factory is not dataclasses.MISSING:
            expected = field.default_factory()
        else:
            expected = None
        shown = _as_yaml(expected, hint)
        if sub.get("default") != shown:
            wrong[path] = (sub.get("default"), shown)
    assert wrong == {}


def _as_yaml(value: Any, hint: Any) -> Any:
    if isinstance(value, model.Limit):
        return value.count if value.percent is None else f"{value.percent}%"
    if dataclasses.is_dataclass(value):
        return {}
    if isinstance(value, Enum):
        return value.value
    return to_json(value)


@pytest.mark.parametrize("kind", KINDS)
def test_required_is_what_has_no_default(kind: str) -> None:
    root = schemas.schema(kind)
    for path, node, owner in [(kind, root, schemas.KINDS[kind]), *_objects(kind, root, object)]:
        required = {FIELD_OF.get(n, n) for n in node.get("required", ())}
        # `version` is asked for although it has only one value: a file without it is of no version.
        required -= {"kind", "version"} if node is root else set()
        bare = {
            f.name
            for f in dataclasses.fields(owner)
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        }
        assert required == bare, path


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_is_the_models(kind: str) -> None:
    root = schemas.schema(kind)
    wrong = {
        path: (schemas.resolve(sub, root), hint)
        for path, sub, _, hint in pairs(kind)
        if not _same_type(schemas.resolve(sub, root), root, hint)
    }
    assert wrong == {}


def _same_type(node: Mapping[str, Any], root: Mapping[str, Any], hint: Any) -> bool:
    node = schemas.resolve(node, root)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = [o for o in typing.get_args(hint) if o is not type(None)]
        if len(options) == 1:
            return "default" not in node and _same_type(node, root, options[0])
        return {_json_type(o) for o in options} == {o["type"] for o in node["anyOf"]}
    if hint is model.Limit:
        return {o["type"] for o in node["anyOf"]} == {"integer", "string"}
    if origin is tuple:
        return node["type"] == "array" and _same_type(node["items"], root, typing.get_args(hint)[0])
    if origin is not None and issubclass(origin, Mapping):
        inner = typing.get_args(hint)[1]
        return node["type"] == "object" and _same_type(node["additionalProperties"], root, inner)
    if dataclasses.is_dataclass(hint):
        return node["type"] == "object" and node["additionalProperties"] is False
    if isinstance(hint, type) and issubclass(hint, Enum):
        return node["enum"] == [member.value for member in hint]
    if "const" in node:
        return type(node["const"]) is hint
    # A whole number becomes the text as written: args and env.
    return node["type"] == _json_type(hint) or (
        hint is str and node["type"] == ["string", "integer"]
    )


def _json_type(hint: Any) -> str:
    return {str: "string", int: "integer", bool: "boolean"}[hint]


def test_x_restart_is_the_models_restart() -> None:
    for kind in ("Model", "Profile"):
        root = schemas.schema(kind)
        said = {
            FIELD_OF.get(name, name): sub["x-restart"]
            for name, sub in root["properties"].items()
            if name not in schemas.SCHEMA_ONLY
        }
        fields = dataclasses.fields(schemas.KINDS[kind])
        assert said == {f.name: bool(f.metadata.get("restart")) for f in fields}, kind


def test_every_property_says_whether_an_edit_restarts() -> None:
    for kind in KINDS:
        for name, sub in schemas.schema(kind)["properties"].items():
            if name not in schemas.SCHEMA_ONLY:
                assert isinstance(sub.get("x-restart"), bool), f"{kind}.{name}"
    asks = {n for n, s in schemas.schema("Placement")["properties"].items() if s.get("x-restart")}
    assert asks == {"restart"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_property_has_a_description(kind: str) -> None:
    for path, sub, _, _ in pairs(kind):
        assert len(sub.get("description", "")) > 3, path


@pytest.mark.parametrize("kind", KINDS)
def test_every_pattern_is_said_in_words_and_anchored(kind: str) -> None:
    for node in _nodes(schemas.schema(kind)):
        pattern = node.get("pattern")
        if isinstance(pattern, str):
            assert pattern.startswith("^"), pattern
            assert pattern.endswith("$"), pattern
            in_names = "maxLength" in node and "type" not in node
            assert in_names or node.get("x-pattern-says"), pattern


def _nodes(node: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from _nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from _nodes(value)


def test_every_example_and_default_fits_its_own_schema() -> None:
    for kind in KINDS:
        root = schemas.schema(kind)
        for path, sub, _, _ in pairs(kind):
            values = [*sub.get("examples", ()), *([sub["default"]] if "default" in sub else [])]
            for value in values:
                node = {**sub, "$defs": root["$defs"]}
                problems = list(jsonschema.Draft202012Validator(node).iter_errors(value))
                assert not problems, path


def test_schemas_are_valid_draft_2020_12() -> None:
    files = sorted(schemas.FOLDER.glob("*.json"))
    assert [f.name for f in files] == [
        "document.v1.json",
        "fleet.v1.json",
        "model.v1.json",
        "node.v1.json",
        "placement.v1.json",
        "profile.v1.json",
    ]
    for file in files:
        data = json.loads(file.read_text())
        assert data["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        jsonschema.Draft202012Validator.check_schema(data)


def _check_jsonschema(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_check_jsonschema_accepts_the_schemas_by_their_metaschema() -> None:
    done = _check_jsonschema("--check-metaschema", *sorted(schemas.FOLDER.glob("*.json")))
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_editor_accepts_the_example_and_refuses_a_typo(tmp_path: Path) -> None:
    """The schema that the example's first lines name, as an editor follows it."""
    bad = tmp_path / "bad.yaml"
    bad.write_text("kind: Placement\nname: chat\nprofile: x\nreplica: 2\n")
    good = tmp_path / "good.yaml"
    good.write_text("kind: Placement\nname: chat\nprofile: x\nreplicas: 2\n")
    schema = schemas.FOLDER / "document.v1.json"
    done = _check_jsonschema("--schemafile", schema, good)
    assert done.returncode == 0, done.stdout + done.stderr
    done = _check_jsonschema("--schemafile", schema, bad)
    assert done.returncode == 1
    assert "replica" in done.stdout


def test_an_editor_accepts_every_document_of_the_example_and_of_the_recipes(tmp_path: Path) -> None:
    """By a validator that is not ours: what we take must not be underlined in red."""
    top = Path(__file__).resolve().parents[2]
    folders = [top / "fleet-repo-example", *sorted((top / "tests/fleet/recipes").glob("*/"))]
    wanted = [p for f in folders for p in sorted(f.rglob("*.yaml")) if _is_of_a_fleet(p, f)]
    documents = [d for path in wanted for d in yaml.safe_load_all(path.read_text()) if d]
    for number, document in enumerate(documents):
        (tmp_path / f"{number}.json").write_text(json.dumps(document))
    assert len(documents) > 200
    schema = schemas.FOLDER / "document.v1.json"
    done = _check_jsonschema("--schemafile", schema, *sorted(tmp_path.glob("*.json")))
    assert done.returncode == 0, done.stdout + done.stderr


def _is_of_a_fleet(path: Path, folder: Path) -> bool:
    inside = path.relative_to(folder).parts
    return len(inside) == 1 or inside[0] in ("nodes", "catalog", "placements")


def test_the_enum_of_state_and_the_registry_are_no_second_list_of_engines() -> None:
    """Engines come from the registry, also from other packages: the schema must not name them."""
    assert "enum" not in schemas.schema("Profile")["properties"]["engine"]
