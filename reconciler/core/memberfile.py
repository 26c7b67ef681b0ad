"""The text of a members file (`core/members.py` decides what is in it)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from engines import addresses
from engines.base import RenderedFile
from reconciler.core.endpoints import Endpoint, State
from reconciler.core.model import Placement

MEMBERS_FILE = "members.json"
FORMAT = "1.0"


def file_at_start(placement: Placement) -> tuple[RenderedFile, ...]:
    """The file as the record has it: without members, so that the same start is the same spec.
    What the labels say is written over it before the first process runs."""
    if not placement.members:
        return ()
    return (RenderedFile(MEMBERS_FILE, render(placement.members, ())),)


def render(
    members: Collection[str],
    found: Collection[Endpoint],
    ports: Mapping[tuple[str, int], Mapping[str, int]] | None = None,
) -> str:
    """JSON: placement → its endpoints, also those of which none is ready now."""
    listed: dict[str, list[dict[str, Any]]] = {name: [] for name in sorted(members)}
    for one in found:
        listed[one.placement].append(
            {
                "replica": one.replica,
                "launch": one.launch,
                "rank": one.rank,
                "node": one.node,
                "address": one.address,
                "port": one.port,
                "url": f"http://{addresses.host_port(one.address, one.port)}",
                "ports": dict((ports or {}).get((one.launch, one.rank), {"http": one.port})),
                "state": one.state.value,
            }
        )
    return json.dumps({"format": FORMAT, "members": listed}, indent=1, sort_keys=True) + "\n"


def read(text: str) -> Iterator[Endpoint]:
    """What a file said. One that cannot be read said nothing: only less is kept for it."""
    try:
        for placement, entries in json.loads(text)["members"].items():
            for entry in entries:
                yield Endpoint(
                    launch=str(entry["launch"]),
                    rank=int(entry["rank"]),
                    replica=str(entry["replica"]),
                    placement=str(placement),
                    node=str(entry["node"]),
                    address=str(entry["address"]),
                    port=int(entry["port"]),
                    state=State(entry["state"]),
                )
    except (ValueError, KeyError, TypeError, AttributeError):
        return
