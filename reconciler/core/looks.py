"""Who answered, who is silent and why, and which document reaches which machine today.

A silent node is one whose launches may live unseen: no answer, an answer that cannot list them, or
two documents that turn out to be one machine. `lost` ones are not silent: a person spoke for them.
"""

from __future__ import annotations

from dataclasses import replace

from reconciler.core.model import Desired, NodeState
from reconciler.core.observed import NodeAnswer, Observed, Place


class Looks:
    """All looks of one pass."""

    def __init__(self, desired: Desired, observed: Observed) -> None:
        self.silent: dict[str, str] = {}
        self.shown: dict[str, NodeAnswer] = {}
        self.lost: set[str] = set()
        self.renamed: dict[str, str] = {}
        """Departed document → today's of the same machine: what both show is counted once."""
        self._departed = desired.departed
        self._documents = desired.nodes
        for name in sorted({**desired.nodes, **observed.nodes}):
            node, look = desired.nodes.get(name), observed.nodes.get(name)
            if look is not None and look.answer is not None:
                self.shown[name] = look.answer
                if look.answer.shards_error:
                    self.silent[name] = f"{name} cannot list its launches: " + (
                        look.answer.shards_error
                    )
            elif node is None:
                continue
            elif node.state is NodeState.LOST:
                self.lost.add(name)
            else:
                error = look.error.value if look and look.error else "NodeUnreachable"
                detail = f": {look.detail}" if look and look.detail else ""
                self.silent[name] = f"{name} gives no answer ({error}{detail})"
                if look is not None and look.last is not None:
                    self.shown[name] = look.last
        self._machines = self._tell_apart()
        self.sound = {
            name: (answer.machine_id, answer.boot_id)
            for name, answer in self.shown.items()
            if name not in self.silent and name not in self.renamed and self._is_current(name)
        }
        """Node → machine and boot id, where nothing needs a second thought."""

    def _tell_apart(self) -> dict[str, str]:
        """Machine id → the one document that reaches it; two that do are both held."""
        reached: dict[str, list[str]] = {}
        for name, answer in self.shown.items():
            if name not in self.silent and answer.machine_id and name not in self.lost:
                reached.setdefault(answer.machine_id, []).append(name)
        machines = {}
        for machine, names in reached.items():
            current = [n for n in names if self._is_current(n)]
            if len(current) > 1:
                for name in current:
                    self.silent[name] = f"{' and '.join(current)} are one machine ({machine})"
                continue
            machines[machine] = (current or names)[0]
            for renamed in names:
                if renamed != machines[machine]:
                    self.renamed[renamed] = machines[machine]
        return machines

    def _is_current(self, name: str) -> bool:
        node = self._documents.get(name)
        return node is not None and name not in self._departed and node.state is not NodeState.LOST

    def today(self, place: Place) -> Place:
        """The place under its node's name of today, where a Node document was renamed."""
        gone = not self._is_current(place.node)
        name = self._machines.get(place.machine_id) if gone else None
        return replace(place, node=name) if name and name != place.node else place

    def silence(self, place: Place) -> str:
        """Why the rank at `place` is not seen; empty: it is, or it is known to be dead."""
        why = self.silent.get(place.node)
        if why is not None:
            return why
        answer = self.shown.get(place.node)
        if answer is not None and place.machine_id and answer.machine_id != place.machine_id:
            return (
                f"{place.node} is another machine now"
                f" ({answer.machine_id or 'no id'}, was {place.machine_id})"
            )
        return ""

    def boot_id(self, node: str) -> str:
        """The node's boot of today (of the last look, where it is silent)."""
        return self.shown[node].boot_id

    def knows(self, node: str) -> bool:
        """Whether the node answered, or its last look is at hand."""
        return node in self.shown
