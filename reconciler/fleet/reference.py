"""docs/reference.md out of the schemas: every field, its type, default, and what an edit does.

`python -m reconciler.fleet.reference docs/reference.md` writes it; a test holds it current, so what
people read, what editors show and what is checked are one text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engines.references import NAMES
from reconciler.fleet import schemas

INTRO = """\
# Reference of the fleet repo

Generated from `schema/` by `python -m reconciler.fleet.reference docs/reference.md`.

Read are `fleet.yaml`, and every `*.yaml` and `*.yml` under `nodes/`, `catalog/` and `placements/`,
at any depth. A file holds one document or several, split by `---`; each says its `kind` and `name`.

*Restarts* tells what an edit of the field does to what runs: **yes** means that running replicas
become *stale* and are replaced within the limits; no means that it is taken over in place. (Of a
Placement, an edit of where it may run can make replicas *misplaced*, and these move.)

How YAML is read here:

- Plain `true` and `false` are switches, plain decimal whole numbers are numbers. What YAML readers
  disagree on (`yes`, `on`, `010`, `1_000`, `1.10`, dates) is refused: quote what is text.
  Fractions have no place but in text: `"0.92"`.
- In `args`, `argv`, `command` and `env` a whole number becomes the text as written.
- Keys that are given twice, tags, keys that are no text, aliases that expand without measure, byte
  order marks inside a file, control characters, Unicode line separators and direction marks are
  refused. Merge keys are allowed: `<<: *base` or `<<: [*a, *b]`; own keys win, then the earlier.
- A top-level key that starts with `x-` is ignored: a place for anchors and notes.
- Symbolic links, submodules, Git LFS pointers and paths that differ only by case are refused.
- `extends` of a Profile: maps merge key by key, at every depth; everything else, lists too,
  replaces what the base says. `name`, `extends` and `abstract` are never inherited.
- Values of `args`, `env`, `command`, `sidecars` and `files` may use references such as
  `$(node.address)`, `$(leader.address)`, `$(port.http)`, `$(model.path)`: all of them stand at the
  end of this page. `$$(` is a literal `$(`.

For editors, a file's first line may be
`# yaml-language-server: $schema=PATH/schema/document.v1.json`.
"""


def reference() -> str:
    """The whole page."""
    parts = [INTRO]
    for kind in schemas.KINDS:
        root = schemas.schema(kind)
        parts += [f"## {kind}\n", root["description"] + "\n", _table(root, root, top=True)]
        for name, node in _tables(root):
            parts += [f"### {kind}: {name}\n", node["description"] + "\n", _table(node, root)]
    parts.append(_references())
    return "\n".join(parts).rstrip() + "\n"


def _references() -> str:
    families = {
        "port.NAME": "number of a port of the launch",
        "members.NAME": "that port of all ranks in order, `host:port` with commas",
        "address.NODE": "address of the node of that name, bare: for what is pinned there",
        "host.NODE": "the same, with brackets where it is IPv6",
    }
    rows = [f"| `$({name})` | {what} |" for name, what in (*NAMES.items(), *families.items())]
    head = "## References\n\nIn values of a profile; each rank gets its own.\n\n| | |\n|---|---|\n"
    return head + "\n".join(rows) + "\n"


def _tables(root: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The nested objects of a kind, by the paths at which they stand, each once."""
    places: dict[str, list[str]] = {}
    pending = [("", root)]
    while pending:
        path, node = pending.pop(0)
        for name, sub in node["properties"].items():
            where = f"{path}.{name}".lstrip(".")
            for suffix, target in (("", sub), ("[]", sub.get("items")), (".*", _values(sub))):
                reference_to = target.get("$ref") if isinstance(target, dict) else None
                resolved = schemas.resolve(target, root) if reference_to else {}
                if "properties" in resolved:
                    key = str(reference_to).rsplit("/", 1)[-1]
                    if key not in places:
                        pending.append((where + suffix, resolved))
                    places.setdefault(key, []).append(where + suffix)
    for key, paths in places.items():
        yield ", ".join(f"`{path}`" for path in paths), root["$defs"][key]


def _values(node: Mapping[str, Any]) -> Any:
    return node.get("additionalProperties")


def _table(node: Mapping[str, Any], root: Mapping[str, Any], *, top: bool = False) -> str:
    required = set(node.get("required", ()))
    head = "| field | type | default | restarts | |\n|---|---|---|---|---|\n"
    if not top:
        head = "| field | type | default | |\n|---|---|---|---|\n"
    rows = []
    for name, sub in node["properties"].items():
        cells = [
            f"`{name}`" + (" **required**" if name in required else ""),
            _type(sub, root),
            _default(sub),
        ]
        if top:
            cells.append(_restarts(sub))
        rows.append("| " + " | ".join([*cells, _words(sub)]) + " |")
    return head + "\n".join(rows) + "\n"


def _restarts(sub: Mapping[str, Any]) -> str:
    if "x-restart" not in sub:
        return ""
    return "**yes**" if sub["x-restart"] else "no"


def _default(sub: Mapping[str, Any]) -> str:
    if "default" not in sub or sub["default"] in ("", [], {}):
        return ""
    return f"`{json.dumps(sub['default'])}`".replace('"', "")


def _type(sub: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    node = schemas.resolve(sub, root)
    if "const" in node:
        return f"`{node['const']}`"
    if "enum" in node:
        return ", ".join(f"`{value}`" if value else "empty" for value in node["enum"])
    if "anyOf" in node:
        return " or ".join(_type(option, root) for option in node["anyOf"])
    match node.get("type"):
        case "array":
            return f"list of {_type(node['items'], root)}"
        case "object":
            more = node.get("additionalProperties")
            return f"map of {_type(more, root)}" if isinstance(more, dict) else "object"
        case "integer":
            return _range(node)
        case ["string", "integer"]:
            return "text"
        case "boolean":
            return "true or false"
        case _:
            return "share" if str(node.get("pattern", "")).endswith("%$") else "text"


def _range(node: Mapping[str, Any]) -> str:
    low, high = node.get("minimum", 0), node.get("maximum")
    return f"{low} to {high}" if high is not None else f"{low} or more"


def _words(sub: Mapping[str, Any]) -> str:
    text = str(sub.get("description", ""))
    says = sub.get("x-pattern-says")
    if says and not says.startswith("one line of text"):
        text += f" Allowed: {says}."
    if sub.get("examples"):
        text += f" Example: `{_example(sub['examples'][0])}`."
    return text.replace("|", "\\|").replace("\n", " ")


def _example(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
