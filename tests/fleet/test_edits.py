"""For each field of Model and Profile: whether an edit restarts is what the schema says of it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from reconciler.core.fingerprint import fingerprint
from reconciler.fleet import schemas
from tests.fleet.repos import BASE, desired

MODEL = {
    "path": "/models/other",
    "paths": "{h100: /data/llama}",
    "served_names": "[llama, llama-3]",
    "files": "[chat.jinja]",
    "facts": "{attention_heads: 64}",
    "labels": "{tier: gold}",
    "owner": "team-b",
}
PROFILE = {
    "engine": "sglang",
    "engine_version": '"0.17.0"',
    "gpu_class": "h100-80gb",
    "runtime": "{kind: venv, path: /opt/vllm}",
    "executor": "mp",
    "parallel": "{tp: 4, pp: 2}",
    "gpus_per_node": "4\nparallel: {tp: 4}",
    "nodes": "2\nparallel: {tp: 8, pp: 2}",
    "args": "[--max-model-len, 8192]",
    "env": "{VLLM_LOGGING_LEVEL: DEBUG}",
    "secrets": "{HF_TOKEN: /etc/secrets/hf}",
    "leader": "{env: {A: b}}",
    "worker": "{env: {A: b}}",
    "sidecars": "[{name: exporter, argv: [/usr/bin/exporter]}]",
    "files": "[{path: a.txt, content: hello}]",
    "command": "[serve]\nengine: command\nparallel: {}",
    "ports": "[metrics]",
    "listens": "engine\nports: [engine]",
    "serves": "all\nengine: command\ncommand: [serve]\nparallel: {}",
    "bootstrap": "fabric",
    "needs": "{shm_gib: 4}",
    "health": "{path: /ping}",
    "start_timeout_s": "60",
    "stop_grace_s": "61",
    "drain_s": "5",
    "labels": "{tier: gold}",
    "owner": "team-b",
}
NOT_A_FIELD = {"kind", "name", "extends", "abstract", "model"}
"""`model` is a name: what counts are the fields of the model that it names."""


def edited(kind: str, field: str, value: str) -> Mapping[str, str]:
    """The base repo with one field of the model or profile set."""
    documents = BASE["catalog/all.yaml"].split("---\n")
    index = 0 if kind == "Model" else 1
    lines = [line for line in documents[index].splitlines() if line]
    new = f"{field}: {value}".splitlines()
    keys = {line.split(":")[0] for line in new}
    documents[index] = "\n".join([ln for ln in lines if ln.split(":")[0] not in keys] + new) + "\n"
    files = {**BASE, "catalog/all.yaml": "---\n".join(documents)}
    if field == "bootstrap":
        fabric = "fabrics: {ib: {kind: ib, address: 10.1.0.1, adapters: [{name: mlx5_0}]}}\n"
        files["nodes/all.yaml"] = BASE["nodes/all.yaml"].replace("---", fabric + "---") + fabric
        files["placements/all.yaml"] = BASE["placements/all.yaml"] + "fabric: ib\n"
    return files


def prints(files: Mapping[str, str]) -> str:
    whole = desired(files)
    return fingerprint(whole.resolved(whole.placements["chat"]))


@pytest.mark.parametrize(("kind", "edits"), [("Model", MODEL), ("Profile", PROFILE)])
def test_the_edits_cover_every_field(kind: str, edits: Mapping[str, str]) -> None:
    assert set(edits) == set(schemas.schema(kind)["properties"]) - NOT_A_FIELD


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        *(("Model", f, v) for f, v in MODEL.items()),
        *(("Profile", f, v) for f, v in PROFILE.items()),
    ],
)
def test_an_edit_changes_the_fingerprint_exactly_where_the_schema_says_restart(
    kind: str, field: str, value: str
) -> None:
    restarts = schemas.schema(kind)["properties"][field]["x-restart"]
    changed = prints(edited(kind, field, value)) != prints(BASE)
    assert changed is restarts


def test_writing_a_default_out_changes_no_fingerprint() -> None:
    said = edited("Profile", "serves", "leader\nnodes: 1\nargs: []\nneeds: {}\nexecutor: ''")
    assert prints(said) == prints(BASE)


def test_moving_a_field_into_a_base_changes_no_fingerprint() -> None:
    catalog = """\
kind: Model
name: llama
path: /models/llama
---
kind: Profile
name: base
abstract: true
engine: vllm
parallel: {tp: 8}
---
kind: Profile
name: llama-h100
extends: base
model: llama
gpus_per_node: 8
"""
    assert prints({**BASE, "catalog/all.yaml": catalog}) == prints(BASE)


def test_a_number_and_its_text_in_env_and_args_are_one() -> None:
    number = edited("Profile", "env", "{A: 1}\nargs: [--max-model-len, 8192]")
    text = edited("Profile", "env", "{A: '1'}\nargs: [--max-model-len, '8192']")
    assert prints(number) == prints(text)
    profile = desired(number).profiles["llama-h100"]
    assert profile.env == {"A": "1"}
    assert profile.args == ("--max-model-len", "8192")
