"""Golden cases: a small fleet in YAML beside the commands that it must give, rank by rank.

`input.yaml` has the keys of the fleet repo (profile, model, placement, nodes); what it leaves out
is the same for all cases, so that a case shows what it varies and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from reconciler.core import build
from reconciler.core.changes import Seat, ShardSpec
from reconciler.core.codec import from_json
from reconciler.core.model import (
    Desired,
    Fleet,
    Model,
    Node,
    Placement,
    Profile,
    ResolvedProfile,
    Revision,
)
from reconciler.core.observed import NodeAnswer

GOLDEN = Path(__file__).parent / "golden"
FLEET = "6f1c1f5e-0c3b-4f0e-9a53-7d5f0e0a9d11"
LAUNCH = "chat-0-k3f9a"
FIRST_PORT = 20000


@dataclass(frozen=True)
class Case:
    """One input, as the core's own values."""

    name: str
    desired: Desired
    placement: Placement
    resolved: ResolvedProfile
    answers: Mapping[str, NodeAnswer]
    seats: tuple[Seat, ...]

    @property
    def ports(self) -> dict[str, int]:
        """The launch's block: consecutive numbers."""
        names = build.port_names(self.resolved)
        return {name: FIRST_PORT + n for n, name in enumerate(names)}

    def specs(self) -> tuple[ShardSpec, ...]:
        """What the nodes would be told."""
        return build.build_specs(
            desired=self.desired,
            placement=self.placement,
            resolved=self.resolved,
            seats=self.seats,
            ports=self.ports,
            replica="chat-0",
            ordinal=0,
            launch=LAUNCH,
            seq=1,
            fingerprint="p1:" + "0" * 64,
            answers=self.answers,
        )


def folders() -> list[Path]:
    """Every golden case, in order of engine and name."""
    return sorted(path.parent for path in GOLDEN.glob("*/*/input.yaml"))


def load(folder: Path) -> Case:
    """The case in `folder`."""
    data = yaml.safe_load((folder / "input.yaml").read_text(encoding="utf-8"))
    return make(data, engine=folder.parent.name, name=folder.name)


def make(data: Mapping[str, Any], *, engine: str, name: str = "case") -> Case:
    """A case from plain data; `nodes` is a number or a list of what differs per node."""
    profile = {"name": "chat", "model": "m", "engine": engine, **data.get("profile", {})}
    model = {"name": "m", "path": "/models/m", **data.get("model", {})}
    placement = {"name": "chat", "profile": "chat", **data.get("placement", {})}
    nodes = _nodes(data.get("nodes", profile.get("nodes", 1)))
    resolved = ResolvedProfile(from_json(Profile, profile), from_json(Model, model))
    fleet = from_json(Fleet, {"name": "test", "id": FLEET, **data.get("fleet", {})})
    desired = Desired(
        Revision("0" * 40),
        fleet,
        {node.name: node for node in nodes},
        {"m": resolved.model},
        {"chat": resolved.profile},
        {"chat": from_json(Placement, placement)},
    )
    per_node = resolved.profile.gpus_per_node
    return Case(
        name=name,
        desired=desired,
        placement=desired.placements["chat"],
        resolved=resolved,
        answers={node.name: _answer(node, n, data) for n, node in enumerate(nodes)},
        seats=tuple(Seat(node.name, _gpus(node)[:per_node]) for node in nodes),
    )


def rendered(specs: Sequence[ShardSpec]) -> list[dict[str, Any]]:
    """What a golden holds of each rank: that which an engine decides."""
    kept = ("rank", "commands", "files", "health", "container", "stop_signal", "require_paths")
    return [
        {"node": shard.node} | {key: shard.spec[key] for key in kept if shard.spec[key]}
        for shard in specs
    ]


def dump(value: object) -> str:
    """JSON as goldens have it: one word of a command per line would hide the command's shape."""
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=False) + "\n"


def _nodes(given: int | Sequence[Mapping[str, Any]]) -> list[Node]:
    rows = [{}] * given if isinstance(given, int) else given
    nodes = []
    for number, row in enumerate(rows):
        name = f"gpu-{chr(ord('a') + number)}"
        base = {
            "name": name,
            "address": f"10.0.0.{number + 1}",
            "pool": "h100",
            "gpus": {"klass": "h100-80gb", "count": 8, "capability": "9.0"},
        }
        nodes.append(from_json(Node, {**base, **row}))
    return nodes


def _gpus(node: Node) -> tuple[str, ...]:
    if node.gpus.source == "declared":
        return node.gpus.ids or tuple(f"{node.name}-gpu-{n}" for n in range(node.gpus.count))
    return tuple(f"GPU-{node.name}-{n}" for n in range(node.gpus.count))


def _answer(node: Node, number: int, data: Mapping[str, Any]) -> NodeAnswer:
    answer = {
        "format": "1.0",
        "machine_id": f"{number:032x}",
        "boot_id": f"boot-{number}",
        "agent": "/var/lib/reconcile/agent-0123.pyz",
        "root": "/var/lib/reconcile",
        "python": "/usr/bin/python3",
        "network": data.get("network", {}).get(node.name, {}),
        "gpus": {
            "items": [
                {"uuid": uuid, "index": index, "capability": node.gpus.capability}
                for index, uuid in enumerate(_gpus(node))
            ]
            if node.gpus.source == "nvml"
            else []
        },
    }
    return from_json(NodeAnswer, answer)
