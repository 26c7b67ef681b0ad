"""The files of a new fleet repo: one that validates without a word, and examples to copy.

An example is a file that is not read (`.yaml.example`): one that is read and holds no document is
how a file that was cut off looks, and validation warns of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from reconciler.fleet import schemas
from reconciler.fleet.scaffold import SCHEMA_LINE

SCHEMA_FOLDER = "schema"

FLEET = """\
{schema}
# The fleet's identity and what holds for all of it.
kind: Fleet
name: {name}
version: 1
# Every launch carries this id. Two repositories with one id would fight: never copy it.
id: {id}
# How nodes are logged in to, unless a Node says otherwise; empty: as `ssh` of this account would.
# ssh: {{user: ops}}
"""

_NODE = """\
# A GPU machine; a file of its own in this folder, or several in one, with --- between them.
kind: Node
name: gpu-a
address: 10.0.0.1
pool: h100
gpus: {class: h100-80gb, count: 8}
ssh:
  user: ops
  # The machine's own /etc/ssh/ssh_host_ed25519_key.pub; it is never learnt by itself.
  # host_key: ssh-ed25519 AAAA...
"""

_CATALOG = """\
# Weights, and one way to run them on one class of GPUs.
kind: Model
name: llama-8b
path: /models/llama-8b # on the nodes
served_names: [llama-8b]
---
kind: Profile
name: llama-8b-h100
model: llama-8b
engine: vllm
gpu_class: h100-80gb
gpus_per_node: 1
args: [--max-model-len, 16384] # reach the engine untouched; port and host are the reconciler's
"""

_PLACEMENT = """\
# Which profile runs, how often and where.
kind: Placement
name: chat
profile: llama-8b-h100
replicas: 2
pool: h100
"""

EXAMPLES = {
    "nodes/gpu-a.yaml.example": _NODE,
    "catalog/llama-8b.yaml.example": _CATALOG,
    "placements/chat.yaml.example": _PLACEMENT,
}

_READMES = {
    "nodes": "One document per GPU machine (kind: Node).",
    "catalog": "What can run: weights (kind: Model) and how they run (kind: Profile).",
    "placements": "What does run, how often and where (kind: Placement).",
    SCHEMA_FOLDER: (
        "For editors alone: copies of the JSON Schemas of the reconciler that made this repo. It"
        " reads its own, and `reconcile validate` is what counts; copy them anew after an upgrade."
    ),
}


def schema_line(path: str) -> str:
    """The first line of the file at `path`, by which an editor finds the schema in the repo."""
    return SCHEMA_LINE.format("../" * path.count("/") + SCHEMA_FOLDER)


def files(name: str, id: str) -> Mapping[str, str]:
    """Path → text of everything that a new fleet repo begins with. Reads our own schemas."""
    found = {"fleet.yaml": FLEET.format(schema=schema_line("fleet.yaml"), name=name, id=id)}
    found |= {path: f"{schema_line(path)}\n{text}" for path, text in EXAMPLES.items()}
    found |= {f"{folder}/README.md": f"{text}\n" for folder, text in _READMES.items()}
    for kind in ("document", *(kind.lower() for kind in schemas.KINDS)):
        file = f"{kind}.v1.json"
        text = (schemas.FOLDER / file).read_text(encoding="utf-8")
        found[f"{SCHEMA_FOLDER}/{file}"] = text
    return found


def name_problem(kind: str, field: str, text: str) -> str:
    """Why `text` cannot be `field` of a document of `kind`; empty: it can."""
    rule = schemas.schema(kind)["properties"][field]
    match = schemas.compiled_pattern(rule["pattern"]).match
    if schemas.fits_pattern(match, text, rule["maxLength"]):
        return ""
    return f"allowed are {rule['x-pattern-says']}, {rule['maxLength']} at most"
