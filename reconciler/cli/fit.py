"""Which starts that are due now would be refused, and by which node: what `doctor` adds to facts.

Nothing is started and no lease is taken: each node is asked by `check` what a start would say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reconciler.core.changes import Plan, ShardSpec
    from reconciler.core.model import Desired
    from reconciler.core.observed import Observed
    from reconciler.nodes.pool import NodePool
    from reconciler.nodes.secretstore import SecretStore, Snapshot


@dataclass(frozen=True)
class Fit:
    """What one node says of one rank of a start."""

    placement: str
    replica: str
    node: str
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """In one word or two."""
        return f"no: {len(self.findings)} findings" if self.findings else "yes"

    def to_json(self) -> dict[str, object]:
        """For `--output json`."""
        return asdict(self)


def ask(pool: NodePool, desired: Desired, observed: Observed, secrets: SecretStore) -> list[Fit]:
    """Each start of the plan that this fleet would get now, asked on its nodes.

    `secrets` is the folder of this machine; where another one acts, its own is what counts.
    """
    from reconciler.core.diff import diff
    from reconciler.core.plan import plan
    from reconciler.nodes.secretstore import Snapshot

    made = plan(desired, observed, diff(desired, observed), lambda: "check")
    due = list(_due(made))
    by_node: dict[str, list[int]] = {}
    for number, (_, _, _, shard) in enumerate(due):
        by_node.setdefault(shard.node, []).append(number)
    told: dict[int, Fit] = {}
    known = Snapshot(secrets)

    def ask_node(node: str) -> None:
        for number in by_node[node]:
            placement, replica, replaces, shard = due[number]
            fit = _ask_one(pool, desired, placement, replica, replaces, shard)
            told[number] = replace(fit, findings=(*fit.findings, *_lacks(known, shard)))

    pool.each(sorted(by_node), ask_node)
    return [told[number] for number in range(len(due))]


def _lacks(known: Snapshot, shard: ShardSpec) -> Iterator[str]:
    from reconciler.nodes.secretstore import SecretError

    try:
        known.values(shard.spec.get("secrets", ()))
    except SecretError as error:
        yield str(error)


def _due(made: Plan) -> Iterator[tuple[str, str, str, ShardSpec]]:
    """(placement, replica, launch that is replaced, what the node would be told)."""
    from reconciler.core.changes import StartStep, StopStep

    for change in made.changes:
        for step in change.steps:
            if isinstance(step, StartStep):
                for shard in step.shards:
                    yield change.placement, change.address, "", shard
            elif isinstance(step, StopStep):
                for shard in step.check:
                    yield change.placement, change.address, step.launch, shard


def _ask_one(
    pool: NodePool, desired: Desired, placement: str, replica: str, replaces: str, shard: ShardSpec
) -> Fit:
    from reconciler.core.codec import to_json
    from reconciler.errors import NodeError
    from reconciler.nodes.protocol import explain

    try:
        spec = to_json(shard.spec)
        said = pool.request(desired, shard.node, "check", spec=spec, replaces=replaces)
    except NodeError as error:
        return Fit(placement, replica, shard.node, (explain(error),))
    findings, notes = (tuple(map(str, said.get(key) or ())) for key in ("findings", "notes"))
    return Fit(placement, replica, shard.node, findings, notes)
