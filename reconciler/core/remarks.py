"""What a plan says of nodes beside its changes: those that left the repo, lack GPUs, or differ,
and those that were asked and not fit.

Nothing in here changes what is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from reconciler.core import blocks
from reconciler.core.access import Access
from reconciler.core.changes import Change, Hold, Plan, Reason, ShardSpec, StartStep, StopStep
from reconciler.core.model import Desired, NodeState
from reconciler.core.observed import NodeAnswer
from reconciler.core.occupancy import GpuSlot
from reconciler.core.words import share


def departed(desired: Desired, access: Access) -> list[Hold]:
    """A node taken out of the repo is held until it is seen empty, unless another document of the
    repo reaches the machine: then it was renamed."""
    holds = []
    here = {
        answer.machine_id
        for name, answer in access.answers.items()
        if name not in desired.departed and desired.nodes[name].state is not NodeState.LOST
    }
    for name in sorted(desired.departed):
        answer = access.answers.get(name)
        if answer is not None and answer.machine_id in here:
            continue
        if answer is None:
            why = "it does not answer, so what it runs is not known"
        else:
            alive = sorted(s.launch for s in answer.shards if s.alive)
            if not alive and not answer.shards_error:
                continue
            why = f"it still runs {', '.join(alive)}" if alive else answer.shards_error
        message = f"{name} is no longer in the repo, but {why}; say `state: lost` if it is gone"
        holds.append(Hold(f"node {name}", Reason.NODE_NOT_EMPTY, message))
    return holds


def lacking_gpus(desired: Desired, access: Access) -> list[str]:
    """GPUs that the inventory has and the node does not show."""
    found = []
    for name, answer in access.answers.items():
        node = desired.nodes[name]
        if node.gpus.source == "declared" or node.state is NodeState.LOST:
            continue
        if answer.gpus.error:
            found.append(f"node {name}: its GPUs cannot be read: {answer.gpus.error}")
            continue
        good = sum(not gpu.error for gpu in answer.gpus.items)
        if good != node.gpus.count:
            told = [f"{g.uuid} ({g.error})" for g in answer.gpus.items if g.error]
            absent = sorted(set(node.gpus.ids) - {g.uuid for g in answer.gpus.items})
            lost = ", ".join([*told, *(f"{uuid} (not seen)" for uuid in absent)])
            text = f"node {name}: degraded, {share(good, node.gpus.count, 'GPU')}"
            found.append(f"{text}: {lost}" if lost else text)
    return found


def apart(changes: Sequence[Change], slots: Callable[[str], Sequence[GpuSlot]]) -> list[str]:
    """Ranks that get GPUs which NVLink does not join: no node that it may use had a whole group."""
    found = []
    for change in (c for c in changes if c.steps):
        for seat in change.after_seats if change.after_seats != change.before_seats else ():
            groups = blocks.joined(slots(seat.node), seat.gpus)
            if groups > 1:
                found.append(
                    f"replica {change.address}: its {len(seat.gpus)} GPUs on {seat.node} lie in"
                    f" {groups} NVLink groups, and no node that it may use has so many free in one"
                )
    return found


def unlike_ranks(changes: Sequence[Change], access: Access) -> list[str]:
    """What differs between the nodes of a replica that starts: it mostly works, and where it does
    not the ranks hang in their first collective. Worth a word, no reason to wait."""
    found = []
    for step in (s for c in changes for s in c.steps if isinstance(s, StartStep)):
        for what, of in _COMPARED:
            values = {s.node: of(s, access.answers[s.node]) for s in step.shards}
            if len(set(values.values())) > 1:
                told = ", ".join(f"{v or 'none'} on {n}" for n, v in sorted(values.items()))
                found.append(f"replica {step.replica}: its nodes have unlike {what} ({told})")
    return found


def unfit(plan: Plan, found: Mapping[str, Mapping[str, str]]) -> Plan:
    """`plan` with a hold for each launch that a node was not fit for, or its successor.

    `found`: launch → node → what the node said when it was asked.
    """
    changes = {
        step.launch: (change, step.kind)
        for change in plan.changes
        for step in change.steps
        if isinstance(step, StartStep | StopStep)
    }
    holds = []
    for launch, nodes in found.items():
        if launch not in changes:
            continue
        change, kind = changes[launch]
        said = "; ".join(f"{node}: {message}" for node, message in sorted(nodes.items()))
        if kind == "start":
            message = f"not started; {said}"
        else:
            message = f"{launch} is left running: its successor could not start; {said}"
        subject = f"replica {change.address}"
        holds.append(Hold(subject, Reason.PREFLIGHT_FAILED, message, change.placement, dict(nodes)))
    return replace(plan, holds=(*plan.holds, *holds)) if holds else plan


def _driver(shard: ShardSpec, answer: NodeAnswer) -> str:
    return answer.gpus.driver


def _mtu(shard: ShardSpec, answer: NodeAnswer) -> str:
    """Of the interface over which ranks meet; empty where the node does not tell."""
    name = shard.spec["network"]["interface"]
    return next((str(i.mtu) for i in answer.network.interfaces if i.name == name), "")


def _gid_index(shard: ShardSpec, answer: NodeAnswer) -> str:
    env: dict[str, str] = shard.spec["commands"][-1]["env"]
    return env.get("NCCL_IB_GID_INDEX", "")


_COMPARED: tuple[tuple[str, Callable[[ShardSpec, NodeAnswer], str]], ...] = (
    ("drivers", _driver),
    # A packet of the larger size is lost without a word: small messages pass, weights do not.
    ("MTUs where ranks meet", _mtu),
    # Legal, as each node has its own; the same hardware with another index is mostly a mistake.
    ("GID indexes", _gid_index),
)
