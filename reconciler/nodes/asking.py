"""What nodes would say to the starts of a plan, asked without acting: a dry run tells it too.

`check` writes nothing and needs no lease, so it is asked beside a daemon as well. Secrets are
looked for only where this machine has a folder of them: whoever looks at a plan may not have any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from reconciler.core.changes import Plan, ShardSpec, StartStep, Step, StopStep
from reconciler.core.codec import to_json
from reconciler.core.model import Desired
from reconciler.errors import NodeError
from reconciler.nodes.secretstore import Snapshot
from reconciler.nodes.sizes import differing

CHECK = "check"


class Nodes(Protocol):
    """What is needed of a NodePool."""

    def request(self, desired: Desired, node: str, op: str, **fields: Any) -> dict[str, Any]: ...
    def each(self, nodes: list[str], work: Any) -> list[Any]: ...


def questions(step: Step) -> tuple[tuple[ShardSpec, ...], dict[str, str]]:
    """The shards whose nodes are to be asked before `step`, and what of theirs would make way.

    Before a stop it is the successor that needs the place; what it replaces is no obstacle to it.
    """
    if isinstance(step, StopStep):
        return step.check, {"replaces": step.launch}
    if isinstance(step, StartStep):
        return step.shards, {}
    return (), {}


def ask(
    plan: Plan, desired: Desired, pool: Nodes, known: Snapshot | None = None
) -> dict[str, dict[str, str]]:
    """Launch → node → what it found. A node that does not answer says nothing here.

    As many nodes at once as the pool asks; one after the other on each of them. `known`: the
    secrets of this machine; None: it has none of its own, and what a start lacks is not said.
    """
    by_node: dict[str, list[tuple[Step, ShardSpec]]] = {}
    for step in plan.steps:
        for shard in questions(step)[0]:
            by_node.setdefault(shard.node, []).append((step, shard))
    found: dict[str, dict[str, str]] = {}
    sizes: dict[str, dict[str, Mapping[str, Any]]] = {}

    def ask_node(node: str) -> None:
        for step, shard in by_node[node]:
            try:
                fields = {"spec": to_json(shard.spec), **questions(step)[1]}
                said = pool.request(desired, node, CHECK, **fields)
            except NodeError:
                return
            lacks = known.lacks(shard.spec.get("secrets", ())) if known else ""
            findings = [*map(str, said.get("findings") or ()), *filter(None, [lacks])]
            if findings:
                found.setdefault(step.launch, {})[node] = "; ".join(findings)
            sizes.setdefault(step.launch, {})[node] = dict(said.get("sizes") or {})

    pool.each(sorted(by_node), ask_node)
    for launch, told in sizes.items():
        if launch not in found and (said := differing(told)):
            found[launch] = {sorted(told)[0]: "; ".join(said)}
    return {launch: found[launch] for launch in sorted(found)}
