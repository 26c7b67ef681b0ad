"""What breaks in a story, on one node at a time."""

from __future__ import annotations

import random
from dataclasses import replace

from reconciler.core.observed import NodeHold
from reconciler.simulate.engine import Shardlet
from reconciler.simulate.fleet import SimFleet
from reconciler.simulate.node import SimNode, own_place

Named = str
"""What happened, for the story's log; empty: nothing did."""


def trouble(rng: random.Random, fleet: SimFleet) -> Named:
    """One mishap on one node."""
    node = fleet.nodes[rng.choice(sorted(fleet.nodes))]
    what = rng.choice(TROUBLES)
    said = what(rng, fleet, node)
    return f"{said} on {node.name}" if said else ""


def _living(node: SimNode) -> list[Shardlet]:
    return [s for s in node.launches.values() if s.alive]


def _silence(rng: random.Random, fleet: SimFleet, node: SimNode) -> Named:
    node.silent = not node.silent
    return "silent" if node.silent else "answers again"


def _back(rng: random.Random, fleet: SimFleet, node: SimNode) -> Named:
    """All that was out of sight answers again: a switch is mended."""
    found = any(n.silent for n in fleet.nodes.values())
    for other in fleet.nodes.values():
        other.silent = False
    return "all answer again, seen" if found else ""


def _reboot(rng: random.Random, fleet: SimFleet, node: SimNode) -> Named:
    node.reboot()
    return "reboot"


def _power_cut(rng: random.Random, fleet: SimFleet, node: SimNode) -> Named:
    """It reboots, and takes a while to come back (or does not)."""
    node.reboot()
    node.silent = True
    return "power cut"


def _crash(rng: random.Random, fleet: SimFleet, node: SimNode) -> Named:
    living = _living(node)
    if not living:
        return ""
    shard = rng.choice(living)
    shard.behaviour = replace(shard.behaviour, crash_s=0.0)
    return "crash"


def _orphan(rng: random.Random, fleet: SimFleet, node: SimNode) -> Named:
    living = _living(node)
    if not living:
        return ""
    rng.choice(living).supervised = False
    return "supervisor killed"


def _sick(rng: random.Random, fleet: SimFleet, node: SimNode) -> Named:
    living = _living(node)
    if not living:
        return ""
    shard = rng.choice(living)
    shard.sick = not shard.sick
    return "sick" if shard.sick else "well again"


def _stranger(rng: random.Random, fleet: SimFleet, node: SimNode) -> Named:
    gpu = rng.choice(node.gpus).uuid
    held = {g for s in _living(node) for g in own_place(s.spec)["gpus"]}
    if not node.nvml or gpu in held:
        return ""
    node.strangers[gpu] = 77
    return f"stranger on {gpu}"


def _unkillable(rng: random.Random, fleet: SimFleet, node: SimNode) -> Named:
    living = _living(node)
    if not living:
        return ""
    shard = rng.choice(living)
    shard.behaviour = replace(shard.behaviour, unkillable=True)
    return "unkillable"


def _held_by_hand(rng: random.Random, fleet: SimFleet, node: SimNode) -> Named:
    """A person works on it, or on one launch of it; the next time it is theirs no more."""
    if node.hold is not None:
        node.hold = None
        return "no longer held"
    launch = rng.choice(["", *sorted(n for n, s in node.launches.items() if s.alive)])
    node.hold = NodeHold(who="Kim", reason="a fan", launch=launch)
    return f"held by hand {launch}"


def _lacks_model(rng: random.Random, fleet: SimFleet, node: SimNode) -> Named:
    """The files of a model that runs here are gone (it has them in memory), or all are back."""
    living = _living(node)
    if node.lacks or not living:
        node.lacks.clear()
        return "all models are back"
    name = str(rng.choice(living).spec["profile"]["model"]["name"])
    node.lacks.add(name)
    return f"{name} is gone"


def _other_writer(rng: random.Random, fleet: SimFleet, node: SimNode) -> Named:
    """The record is of another release: of an older or newer minor format, or with fewer fields.

    All ranks of a launch were written by one release. All of these can be read.
    """
    living = [n for n, s in node.launches.items() if s.alive and s.record_written]
    if not living:
        return ""
    launch = rng.choice(living)
    form = rng.choice(["0.9", "1.0", "1.9"])
    for other in fleet.nodes.values():
        if launch in other.launches:
            record = other.record_of(launch)
            if record is not None:
                places = record.places
                if form != "1.9":
                    places = tuple(replace(p, fabric=None, address="") for p in places)
                changed = replace(record, format=form, places=places)
                other.launches[launch].record = changed
    return f"{launch} has a record of format {form}"


TROUBLES = (
    _silence,
    _silence,
    _back,
    _back,
    _reboot,
    _power_cut,
    _crash,
    _orphan,
    _sick,
    _stranger,
    _unkillable,
    _other_writer,
    _held_by_hand,
    _lacks_model,
    _lacks_model,
    _lacks_model,
)
