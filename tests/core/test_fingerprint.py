"""The fingerprint covers what people wrote and what needs a restart, and never moves by itself."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.base import Parallelism, RenderedFile, RoleOverride, Runtime, Sidecar
from reconciler.core.codec import from_json, to_json
from reconciler.core.fingerprint import explain, fingerprint
from reconciler.core.model import HealthCheck, Model, ModelFacts, Needs, Profile, ResolvedProfile

PLAIN = ResolvedProfile(Profile("p", model="m", engine="sim"), Model("m", path="/models/m"))

RICH = ResolvedProfile(
    Profile(
        "llama-h100",
        model="llama",
        engine="vllm",
        engine_version="0.17.0",
        gpu_class="h100-80gb",
        runtime=Runtime(kind="container", image="vllm/vllm-openai:v0.17.0", mounts=("/m:/m:ro",)),
        executor="ray",
        parallel=Parallelism(tp=8, pp=2),
        gpus_per_node=8,
        nodes=2,
        args=("--max-model-len", "8192", "--quantization", "fp8"),
        env={"NCCL_DEBUG": "WARN", "A": "ä"},
        leader=RoleOverride(args=("--x",)),
        worker=RoleOverride(env={"B": "1"}),
        sidecars=(Sidecar("exporter", ("exporter", "--port", "9000"), ranks="leader"),),
        files=(RenderedFile("engine.yaml", "a: 1\n"),),
    ),
    Model("llama", path="/models/llama", served_names=("llama", "chat"), paths={"l40s": "/m"}),
)


def of(profile: dict[str, Any] | None = None, model: dict[str, Any] | None = None) -> str:
    return fingerprint(
        ResolvedProfile(
            dataclasses.replace(PLAIN.profile, **(profile or {})),
            dataclasses.replace(PLAIN.model, **(model or {})),
        )
    )


# --- It never changes by itself -------------------------------------------------------------------


def test_literal_fingerprints_are_pinned_so_that_an_upgrade_cannot_make_a_fleet_stale() -> None:
    assert (
        fingerprint(PLAIN) == "p1:156cc46f95b732f79b01a4bdfa51962857e44674e3f9645c76e6fbdf64438cb4"
    )
    assert (
        fingerprint(RICH) == "p1:fbcc28287d17167bcae0bd16ba6bfda71d8ec9e6e8d952befe0b22b66cc99ed1"
    )
    assert (
        fingerprint(ResolvedProfile(Profile("x"), Model("y")))
        == "p1:db38fbdb8baa707a9f7bbcfc35ab27c0fdddcb7a98686b1800f16f2603542dd4"
    )


def test_a_record_that_went_through_json_has_the_same_fingerprint() -> None:
    for compact in (False, True):
        text = json.dumps(to_json(RICH, compact=compact))
        assert fingerprint(from_json(ResolvedProfile, json.loads(text))) == fingerprint(RICH)


def test_a_default_spelled_out_is_the_same_as_one_left_out() -> None:
    spelled = {"parallel": Parallelism(tp=1, ep=False), "env": {}, "args": (), "nodes": 1}
    assert of(spelled) == of()
    assert of({"sidecars": (Sidecar("a", ("b",), env={}, ranks="all"),)}) == of(
        {"sidecars": (Sidecar("a", ("b",)),)}
    )


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), min_size=2, max_size=6))
def test_the_order_of_a_map_never_matters(env: dict[str, str]) -> None:
    turned = dict(reversed(env.items()))
    assert of({"env": env}) == of({"env": turned})


@given(st.lists(st.text(max_size=5), min_size=2, max_size=6))
def test_the_order_of_args_matters(args: list[str]) -> None:
    turned = args[::-1]
    assert (of({"args": tuple(args)}) == of({"args": tuple(turned)})) == (args == turned)


# --- What is in it, what is not -------------------------------------------------------------------

CHANGED: dict[str, Any] = {
    "engine": "vllm",
    "engine_version": "1.0",
    "gpu_class": "h100",
    "runtime": Runtime(path="/x"),
    "executor": "ray",
    "parallel": Parallelism(tp=2),
    "gpus_per_node": 2,
    "nodes": 2,
    "args": ("--x",),
    "env": {"A": "b"},
    "secrets": {"HF_TOKEN": "/run/secrets/hf"},
    "health": HealthCheck(path="/ready"),
    "listens": "engine",
    "leader": RoleOverride(args=("x",)),
    "worker": RoleOverride(args=("x",)),
    "sidecars": (Sidecar("a", ("b",)),),
    "files": (RenderedFile("a", "b"),),
    "command": ("x",),
    "ports": ("x",),
    "serves": "all",
    "bootstrap": "fabric",
    "path": "/other",
    "paths": {"a": "/b"},
    "served_names": ("other",),
    "needs": Needs(ram_gib=1),
    "start_timeout_s": 1,
    "stop_grace_s": 1,
    "drain_s": 1,
    "labels": {"a": "b"},
    "owner": "me",
    "facts": ModelFacts(experts=2),
}


def marked(cls: type) -> dict[str, bool]:
    return {f.name: bool(f.metadata.get("restart")) for f in dataclasses.fields(cls)}


def test_every_field_of_profile_and_model_but_names_is_tried_here() -> None:
    fields = set(marked(Profile)) | set(marked(Model)) - {"files"}
    assert fields - set(CHANGED) == {"name", "model"}


@pytest.mark.parametrize("name", [n for n in marked(Profile) if n in CHANGED])
def test_exactly_the_profile_fields_marked_restart_are_in_it(name: str) -> None:
    assert (of({name: CHANGED[name]}) != of()) == marked(Profile)[name]


@pytest.mark.parametrize("name", [n for n in marked(Model) if n in CHANGED and n != "files"])
def test_exactly_the_model_fields_marked_restart_are_in_it(name: str) -> None:
    assert (of(model={name: CHANGED[name]}) != of()) == marked(Model)[name]


def test_model_files_are_in_it() -> None:
    assert of(model={"files": ("tokenizer.json",)}) != of()


def test_the_profiles_name_is_not_in_it() -> None:
    assert of({"name": "renamed"}) == of()


def test_a_models_name_is_in_it_only_where_clients_ask_for_it() -> None:
    named = {"served_names": ("m",)}
    assert of(model=named) == of(), "the default spelled out"
    assert of(model={"name": "n"}) != of(), "clients would ask for n, the server knows m"
    assert of({"model": "n"}, {"name": "n", **named}) == of(model=named)


def test_the_content_of_rendered_files_is_in_it() -> None:
    assert of({"files": (RenderedFile("a", "b"),)}) != of({"files": (RenderedFile("a", "c"),)})


# --- explain --------------------------------------------------------------------------------------


def paths(before: ResolvedProfile, after: ResolvedProfile) -> list[tuple[str, str, str]]:
    return [(c.path, c.before, c.after) for c in explain(before, after)]


def changed(**over: Any) -> ResolvedProfile:
    return dataclasses.replace(RICH, profile=dataclasses.replace(RICH.profile, **over))


def test_explain_names_the_argument_and_both_values() -> None:
    after = changed(args=("--max-model-len", "16384", "--quantization", "fp8"))
    assert paths(RICH, after) == [("profile.args[1]", "8192", "16384")]


def test_explain_names_nested_fields_map_keys_and_model_fields() -> None:
    after = dataclasses.replace(
        changed(parallel=Parallelism(tp=4, pp=2), env={"A": "ä", "NEW": "1"}),
        model=dataclasses.replace(RICH.model, path="/models/other"),
    )
    assert paths(RICH, after) == [
        ("model.path", "/models/llama", "/models/other"),
        ("profile.env.NCCL_DEBUG", "WARN", ""),
        ("profile.env.NEW", "", "1"),
        ("profile.parallel.tp", "8", "4"),
    ]


def test_explain_shows_defaults_as_values() -> None:
    assert paths(PLAIN, dataclasses.replace(PLAIN, profile=Profile("p", "m", "sim", nodes=2))) == [
        ("profile.nodes", "1", "2")
    ]


def test_explain_cuts_long_values() -> None:
    after = changed(files=(RenderedFile("engine.yaml", "x" * 5000),))
    [(path, _, text)] = paths(RICH, after)
    assert path == "profile.files[0].content"
    assert len(text) == 120


def test_explain_says_nothing_of_fields_that_need_no_restart() -> None:
    assert paths(RICH, changed(start_timeout_s=5, owner="me", name="other")) == []
