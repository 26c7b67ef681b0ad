"""The fleet that a story begins with, and how its engines do."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from reconciler.core.model import (
    AdapterPort,
    Desired,
    Fleet,
    GpuInventory,
    Limit,
    Model,
    Node,
    NodeFabric,
    Placement,
    Profile,
    Revision,
    Rollout,
)
from reconciler.simulate.engine import Behaviour, of_sim_engine

FLEET_ID = "5f0c2f0e-0000-4000-8000-0000000000aa"


def behave(spec: Mapping[str, Any]) -> Behaviour:
    """As its flags say; every other launch takes longer to stop than a pass takes, and its
    requests take longer than some profiles drain."""
    odd = spec["seq"] % 2
    return replace(
        of_sim_engine(spec), stop_s=12.0 if odd else 2.0, in_flight_s=25.0 if odd else 4.0
    )


def first_revision(rng: random.Random) -> Desired:
    """A small fleet: two pools, one or two fabrics, single-node and two-node profiles."""
    nodes = {}
    for n in range(rng.randint(2, 4)):
        name = f"n{n}"
        adapters = tuple(AdapterPort(f"mlx5_{i}") for i in range(rng.choice([1, 1, 2])))
        fabrics = {"ib-a": NodeFabric(kind="ib", adapters=adapters, interface="ib0")}
        count = rng.choice([2, 3, 4])
        source = rng.choice(["nvml", "declared"])
        nodes[name] = Node(
            name=name,
            address=f"10.0.0.{n + 1}",
            pool="a",
            gpus=GpuInventory(
                klass=rng.choice(["h100", "h100", "l40s"]), count=count, source=source
            ),
            fabrics=fabrics,
        )
    profiles, placements = {}, {}
    models = {m: Model(name=m, path=f"/models/{m}") for m in ("llama", "qwen")}
    for n in range(rng.randint(1, 3)):
        wide = rng.random() < 0.3
        profiles[f"f{n}"] = Profile(
            name=f"f{n}",
            model=rng.choice(sorted(models)),
            engine="sim",
            gpus_per_node=rng.choice([1, 1, 2]),
            nodes=2 if wide else 1,
            args=("--load-time", "20"),
            start_timeout_s=120,
            stop_grace_s=20,
            drain_s=rng.choice([0, 15, 40]),
        )
        placements[f"c{n}"] = Placement(
            name=f"c{n}",
            profile=f"f{n}",
            replicas=rng.randint(1, 3),
            pool="a",
            fabric="ib-a" if wide and rng.random() < 0.7 else "",
            spread=rng.random() < 0.5,
            rollout=Rollout(max_unavailable=rng.choice([1, 1, 2]), max_surge=rng.choice([0, 1])),
        )
    fleet = Fleet(
        name="sim",
        id=FLEET_ID,
        max_parallel=Limit(percent=rng.choice([10, 50])),
        unhealthy_after_s=60,
    )
    return Desired(
        revision=Revision(commit="0" * 40, ref="main", root_commit="f" * 40),
        fleet=fleet,
        nodes=nodes,
        models=models,
        profiles=profiles,
        placements=placements,
    )


def skews(rng: random.Random, desired: Desired) -> dict[str, tuple[float, float]]:
    """Node → how far off its clock is, and how fast it runs: no two nodes agree on the time."""
    return {
        name: (rng.choice([0.0, 5_000.0, 900_000.0]), rng.choice([1.0, 0.99, 1.01]))
        for name in sorted(desired.nodes)
    }


LINKS: tuple[tuple[int | None, ...], ...] = (
    (None, None, None, None),
    (0, 1, 2, 3),
    (0, 0, 0, 0),
    (0, 0, 1, 1),
    (0, 1, 0, 1),
    (0, 1, 1, 0),
)


def links(rng: random.Random, desired: Desired) -> dict[str, tuple[int | None, ...]]:
    """Node → which of its GPUs NVLink joins: not known, none, all, or two and two, neighbours or
    not."""
    return {name: rng.choice(LINKS) for name in sorted(desired.nodes)}
