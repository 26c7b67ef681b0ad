"""What people do to the fleet repo in a story: each edit is a new revision."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from reconciler.core.model import Desired, Freeze, Node, NodeState
from reconciler.core.observed import Observed

ARGS = (
    ("--load-time", "20"),
    ("--load-time", "40"),
    ("--load-time", "15", "--context", "4096"),
    ("--fail", "--fail-code", "2"),
    ("--fail",),
    ("--never-ready",),
    ("--crash-after", "70"),
)
BAD = frozenset({"--fail", "--never-ready", "--crash-after"})


@dataclass
class Repo:
    """The head of the branch, and what is needed to edit it."""

    rng: random.Random
    desired: Desired
    is_silent: Callable[[str], bool]
    power_off: Callable[[str], None]
    """Before a node is called lost, a person sees to it that it is off."""
    log: Callable[[str], None]
    commits: int = 0
    documents: Mapping[str, Node] = field(default_factory=dict)
    """Every node that the fleet ever had."""

    def __post_init__(self) -> None:
        self.documents = dict(self.desired.nodes)

    def edit(self) -> None:
        """One commit."""
        edits = [
            self._edit_profile,
            self._edit_profile,
            self._revert,
            self._scale,
            self._restart,
            self._rename,
            self._suspend,
            self._node_state,
            self._node_state,
            self._remove,
            self._depart,
            self._freeze,
        ]
        self.rng.choice(edits)()
        self.commits += 1
        revision = replace(self.desired.revision, commit=f"{self.commits:040x}")
        self.desired = replace(self.desired, revision=revision)

    def calm(self) -> None:
        """People are done: every node that is still in the repo may be used."""
        nodes = {
            n: replace(d, state=NodeState.ACTIVE, reason="") for n, d in self.desired.nodes.items()
        }
        placements = {
            n: replace(p, freeze=None, rollout=replace(p.rollout, update="rolling"))
            for n, p in self.desired.placements.items()
        }
        fleet = replace(self.desired.fleet, freeze=None)
        self.desired = replace(self.desired, nodes=nodes, placements=placements, fleet=fleet)

    def forget_empty(self, observed: Observed) -> None:
        """As the loop does: a departed node that was seen empty is asked no more."""
        for name in sorted(self.desired.departed):
            answer = observed.answer(name)
            if answer is not None and not any(s.alive for s in answer.shards):
                left = {n: d for n, d in self.desired.nodes.items() if n != name}
                self.desired = replace(
                    self.desired, nodes=left, departed=self.desired.departed - {name}
                )
                self.log(f"node {name} is seen empty and forgotten")

    @property
    def is_good(self) -> bool:
        """No profile of today is bad by intent."""
        return not any(BAD & set(p.args) for p in self.desired.profiles.values())

    # --- profiles and placements -----------------------------------------------------------------

    def _edit_profile(self) -> None:
        name = self.rng.choice(sorted(self.desired.profiles))
        args = self.rng.choice(ARGS)
        self._profile(name, args=args)
        self.log(f"edit {name}: {' '.join(args)}")

    def _profile(self, name: str, **over: Any) -> None:
        made = replace(self.desired.profiles[name], **over)
        self.desired = replace(self.desired, profiles={**self.desired.profiles, name: made})

    def _placement(self, name: str, **over: Any) -> None:
        made = replace(self.desired.placements[name], **over)
        self.desired = replace(self.desired, placements={**self.desired.placements, name: made})

    def _any_placement(self) -> str:
        return self.rng.choice(sorted(self.desired.placements))

    def _revert(self) -> None:
        for name in self.desired.profiles:
            self._profile(name, args=("--load-time", "20"))
        self.log("revert")

    def _scale(self) -> None:
        self._placement(self._any_placement(), replicas=self.rng.randint(1, 4))

    def _restart(self) -> None:
        self._placement(self._any_placement(), restart=f"please {self.commits}")

    def _suspend(self) -> None:
        name = self._any_placement()
        self._placement(name, suspend=not self.desired.placements[name].suspend)

    def _freeze(self) -> None:
        """Of all, of one, or `update: manual`; what was frozen before is lifted."""
        fleet, name = self.desired.fleet, self._any_placement()
        placement = self.desired.placements[name]
        what = self.rng.randrange(3)
        if what == 0:
            fleet = replace(fleet, freeze=None if fleet.freeze else Freeze("test"))
            self.desired = replace(self.desired, fleet=fleet)
        elif what == 1:
            self._placement(name, freeze=None if placement.freeze else Freeze("test"))
        else:
            update = "rolling" if placement.rollout.update == "manual" else "manual"
            self._placement(name, rollout=replace(placement.rollout, update=update))
        self.log(f"freeze or thaw {('all', name, f'manual {name}')[what]}")

    def _rename(self) -> None:
        old = self._any_placement()
        new = f"p{self.commits}"
        made = replace(self.desired.placements[old], name=new)
        left = {k: v for k, v in self.desired.placements.items() if k != old}
        self.desired = replace(self.desired, placements={**left, new: made})

    def _remove(self) -> None:
        if len(self.desired.placements) > 1:
            gone = self._any_placement()
            left = {k: v for k, v in self.desired.placements.items() if k != gone}
            self.desired = replace(self.desired, placements=left)

    # --- nodes -----------------------------------------------------------------------------------

    def _node_state(self) -> None:
        own = sorted(self.desired.nodes.keys() - self.desired.departed)
        name = self.rng.choice(own)
        states = [NodeState.ACTIVE, NodeState.CORDONED, NodeState.DRAINING]
        if self.is_silent(name):
            states = [NodeState.LOST]
            self.power_off(name)
        made = replace(self.desired.nodes[name], state=self.rng.choice(states), reason="test")
        self.desired = replace(self.desired, nodes={**self.desired.nodes, name: made})
        self.log(f"node {name} is {made.state}")

    def _depart(self) -> None:
        """A node's document is taken out, or one that was taken out comes back."""
        gone = sorted(self.documents.keys() - self.desired.nodes.keys() | self.desired.departed)
        own = sorted(self.desired.nodes.keys() - self.desired.departed)
        if gone and (len(own) < 2 or self.rng.random() < 0.5):
            name = self.rng.choice(gone)
            nodes = {**self.desired.nodes, name: self.documents[name]}
            departed = self.desired.departed - {name}
            self.desired = replace(self.desired, nodes=nodes, departed=departed)
            self.log(f"node {name} is back in the repo")
        elif len(own) > 1:
            name = self.rng.choice(own)
            if self.desired.nodes[name].state is NodeState.LOST:
                left = {n: d for n, d in self.desired.nodes.items() if n != name}
                self.desired = replace(self.desired, nodes=left)
            else:
                departed = self.desired.departed | {name}
                self.desired = replace(self.desired, departed=departed)
            self.log(f"node {name} leaves the repo")
