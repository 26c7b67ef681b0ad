"""Which folders of records a node in memory reads: its root, and the former ones that are named.

Records stay where their launch was started; what lies in a folder that nobody names is out of sight
(a process that still lives there shows by its mark alone).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from reconciler.core.observed import NodeHold
from reconciler.simulate.engine import ROOT
from reconciler.simulate.leases import Leases


@dataclass
class Roots:
    """The folders of one node, and what lies in each beside the launches."""

    root: str = ROOT
    """Where a start writes."""
    previous: tuple[str, ...] = ()
    holds: dict[str, NodeHold] = field(default_factory=dict)
    leases: dict[str, Leases] = field(default_factory=dict)

    @property
    def read(self) -> tuple[str, ...]:
        """The root, then the former ones that are named."""
        return (self.root, *self.previous)

    def move(self, root: str, previous: Iterable[str]) -> None:
        """Other folders are named from now on."""
        self.root = root
        self.previous = tuple(name for name in previous if name != root)

    def hold(self) -> NodeHold | None:
        """The one that an answer shows: one on the whole node before one on a launch."""
        return next(iter(self.holds_read()), None)

    def holds_read(self) -> list[NodeHold]:
        """Those in force: one in a former root still means it."""
        found = (self.holds[root] for root in self.read if root in self.holds)
        return sorted(found, key=lambda hold: hold.launch)

    def holds_launch(self, launch: str) -> NodeHold | None:
        """Why nothing may act on this launch."""
        return next((h for h in self.holds_read() if h.launch in ("", launch)), None)

    def set_hold(self, hold: NodeHold | None) -> None:
        """Put into the root; None takes away all that are in force."""
        if hold is not None:
            self.holds[self.root] = hold
            return
        for root in self.read:
            self.holds.pop(root, None)

    def newest_leases(self, now: Callable[[], float], bugs: frozenset[str]) -> Leases:
        """One over all that are read: the highest epoch of each fleet, shared by them from now."""
        newest = Leases(now, bugs)
        for root in self.read:
            newest.take_newer(self.leases.get(root))
        for root in self.read:
            self.leases[root] = newest
        return newest
