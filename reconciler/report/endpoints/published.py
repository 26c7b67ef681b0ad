"""endpoints.json, and back: what is published is also what is remembered (docs/endpoints.md)."""

from __future__ import annotations

import json
from typing import Any

from reconciler.core.codec import DecodeError, from_json, to_json
from reconciler.core.endpoints import Endpoint, Endpoints

FORMAT_VERSION = "1.0"
MAJOR = FORMAT_VERSION.partition(".")[0]


class NewerFormat(ValueError):
    """It was written by a newer build: to write over it would lose what that one knows."""


def published(endpoints: Endpoints) -> str:
    """Entries by served name; a name that is wanted and has none now is an empty list."""
    models: dict[str, list[Any]] = {name: [] for name in endpoints.names}
    for entry in endpoints.entries:
        for name in entry.names:
            models.setdefault(name, []).append(_entry(entry))
    data = {
        "format_version": FORMAT_VERSION,
        "fleet": endpoints.fleet,
        "models": dict(sorted(models.items())),
        "unseen": dict(sorted(endpoints.unseen.items())),
    }
    return json.dumps(data, indent=2, ensure_ascii=True) + "\n"


def read_published(text: str) -> Endpoints:
    """The endpoints in what `published` wrote. ValueError where it is something else."""
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise ValueError("nests too deep") from error
    if not isinstance(data, dict) or not isinstance(data.get("models"), dict):
        raise ValueError("is no list of endpoints")
    version = str(data.get("format_version", ""))
    if version.partition(".")[0] != MAJOR:
        raise NewerFormat(f"has format {version[:20] or 'none'}, this build reads {MAJOR}.x")
    names: dict[tuple[str, str], tuple[dict[str, Any], list[str]]] = {}
    for name, entries in data["models"].items():
        for entry in entries if isinstance(entries, list) else [None]:
            if not isinstance(entry, dict):
                raise ValueError(f"models.{name} is no list of objects")
            key = (str(entry.get("launch")), str(entry.get("rank")))
            names.setdefault(key, (entry, []))[1].append(name)
    try:
        found = tuple(
            from_json(Endpoint, {**entry, "names": sorted(own)}, "models")
            for entry, own in names.values()
        )
        unseen = from_json(dict[str, str], data.get("unseen", {}), "unseen")
    except DecodeError as error:
        raise ValueError(str(error)) from error
    return Endpoints(str(data.get("fleet", "")), found, unseen=unseen)


def url(endpoint: Endpoint) -> str:
    """`http://address:port`."""
    host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
    return f"http://{host}:{endpoint.port}"


def _entry(endpoint: Endpoint) -> dict[str, Any]:
    data = to_json(endpoint)
    del data["names"]
    return {**data, "url": url(endpoint)}
