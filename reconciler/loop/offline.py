"""Stand-ins for the nodes of a dry run that asks none: a saved observation, or the inventory.

Both only look. A plan for acting is never made from them: a lease cannot be taken from a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reconciler.core.codec import DecodeError, from_json
from reconciler.core.model import Desired, Node, NodeState
from reconciler.core.observed import (
    FORMAT,
    AdapterSeen,
    GpuSeen,
    GpusPart,
    InterfaceSeen,
    Network,
    NodeAnswer,
    NodeLook,
    Observed,
)
from reconciler.errors import NodeError, SettingsError
from reconciler.loop.seams import LeaseAnswer

OBSERVATION = "1.0"
"""Of what `reconcile observe` prints: `{format_version, observed_at, revision, observed}`."""


class OnlyLooks:
    """Nodes that nobody can act on."""

    owner = ""
    basis = ""
    """For people: what a plan was made against; empty: the nodes."""

    def lease(
        self,
        desired: Desired,
        nodes: Sequence[str],
        action: str,
        *,
        epochs: Mapping[str, int] | None = None,
        **fields: Any,
    ) -> Mapping[str, LeaseAnswer]:
        """None is ever given."""
        return {}

    def request(self, desired: Desired, node: str, op: str, **fields: Any) -> dict[str, Any]:
        """Always refused."""
        raise NodeError(f"node {node}", "is not asked: this pass is offline")


class SavedNodes(OnlyLooks):
    """An observation from a file; nodes that it does not have read as not seen."""

    def __init__(self, observed: Observed, basis: str = "") -> None:
        self._observed = observed
        self.basis = basis

    @classmethod
    def read(cls, path: Path) -> SavedNodes:
        """From what `reconcile observe` printed. SettingsError where it is something else."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            inner = data.get("observed", data) if isinstance(data, dict) else data
            if not isinstance(inner, dict) or "nodes" not in inner:
                raise DecodeError("it has no `nodes`")
            at = data.get("observed_at")
            when = f", looked at {at}" if isinstance(at, str) and at else ""
            basis = f"saved: planned against {path.name}{when}; the nodes were not asked"
            return cls(from_json(Observed, inner, "observed"), basis)
        except OSError as error:
            raise SettingsError(str(path), error.strerror or "cannot be read") from error
        except (ValueError, DecodeError, RecursionError) as error:
            raise SettingsError(
                str(path), f"is no observation: {error}", "make one by `reconcile observe > FILE`"
            ) from error

    def look(self, desired: Desired, *, remember: bool = True) -> Observed:
        """As it was saved."""
        return self._observed


class AssumedNodes(OnlyLooks):
    """Every node as its document says, whole and empty: does the revision fit at all?"""

    basis = "offline: planned as if every node were empty; what runs was not looked at"

    def look(self, desired: Desired, *, remember: bool = True) -> Observed:
        """Answers made from the inventory."""
        return Observed(
            "",
            {
                name: NodeLook(name, answer=assumed(node))
                for name, node in sorted(desired.nodes.items())
                if node.state is not NodeState.LOST
            },
        )


def assumed(node: Node) -> NodeAnswer:
    """What `node` would answer if it were all that its document says, and nothing ran on it."""
    address = node.management.address or node.address
    interfaces = [InterfaceSeen(node.management.interface or "mgmt", True, 1500, (address,))]
    interfaces += [
        InterfaceSeen(fabric.interface, True, 9000, (fabric.address,) if fabric.address else ())
        for _, fabric in sorted(node.fabrics.items())
        if fabric.interface
    ]
    return NodeAnswer(
        format=FORMAT,
        machine_id=f"offline-{node.name}",
        boot_id="offline",
        hostname=node.name,
        agent="<agent>",
        root=node.root or "<root>",
        gpus=GpusPart(tuple(_gpu(node, i) for i in range(node.gpus.count))),
        network=Network(
            adapters=tuple(
                AdapterSeen(a.name, a.port, "ACTIVE")
                for _, fabric in sorted(node.fabrics.items())
                for a in fabric.adapters
            ),
            interfaces=tuple(interfaces),
        ),
    )


def _gpu(node: Node, index: int) -> GpuSeen:
    ids = node.gpus.ids
    return GpuSeen(
        uuid=ids[index] if index < len(ids) else f"{node.name}-gpu-{index}",
        index=index,
        name=node.gpus.klass,
        memory_mib=node.gpus.memory_gib * 1024 or None,
        capability=node.gpus.capability,
    )
