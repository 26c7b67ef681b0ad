"""Whether one more replica of a placement has a place now, as far as the nodes' answers tell.

Only for the choice of the canary, which is made before anything is placed: one that cannot be
placed would keep all others waiting. `place` decides; this is never stricter than it but for
quarantines and memory, where a wrong yes only makes the canary wait as before.
"""

from __future__ import annotations

from collections import Counter

from reconciler.core import wanted
from reconciler.core.catalog import Catalog
from reconciler.core.model import NodeState, Placement
from reconciler.core.observed import Observed
from reconciler.core.occupancy import read_node


def has_room(catalog: Catalog, observed: Observed, placement: Placement, only: str = "") -> bool:
    """`only`: the node that a per-node replica belongs to."""
    profile = catalog.today(placement.name)[0].profile
    alike: Counter[tuple[str, int]] = Counter()
    for node in wanted.fitting(placement, catalog):
        answer = observed.answer(node.name)
        if answer is None or node.state is not NodeState.ACTIVE or only not in ("", node.name):
            continue
        held = answer.hold is not None and not answer.hold.launch
        use = read_node(node, answer)
        if held or use.error or len(use.free()) < profile.gpus_per_node:
            continue
        fabric = node.fabrics.get(placement.fabric)
        alike[node.gpus.klass, len(fabric.adapters) if fabric else 0] += 1
    return any(count >= profile.nodes for count in alike.values())
