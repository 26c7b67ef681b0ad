"""Taking, keeping and updating the leases: who may act, and what must outlive the reconciler.

The nodes enforce; this asks. All leases are taken in the order of the nodes' names, and asking
stops being worth anything at the first that another owner holds: two reconcilers that start at
once must not end with half the fleet each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from reconciler.core.changes import Hold, Reason
from reconciler.core.model import Desired
from reconciler.core.observed import ApprovedChange, Lease, Observed
from reconciler.loop.seams import LeaseAnswer, PoolLike

MOST_TOLD = 3
"""Nodes whose refusal is told in one line."""

RENEW_SHARE = 0.9
"""Of a lease's life: with less left it is renewed. Kept leases that run out between two passes
would let another in, and would void what is remembered of a node that then falls silent."""


@dataclass(frozen=True)
class Held:
    """What came of asking for the leases."""

    epochs: Mapping[str, int] = field(default_factory=dict)
    """Node → epoch, for every node that this process may act on."""
    other: str = ""
    """Another owner that holds one of them; empty: none."""
    fresh: bool = False
    """They were asked for just now: what was seen before may have changed meanwhile."""
    behind: bool = False
    """Another holds the first by name of those that both want: what this owner holds it gives
    back after the pass. Were both to keep their part, neither would ever lead all."""
    refused: Mapping[str, tuple[Reason, str]] = field(default_factory=dict)
    """Node → why it gave none, where no other owner is the cause: its disk is read-only, say."""

    @property
    def lacking(self) -> tuple[Reason, str]:
        """Why steps on nodes without a lease wait."""
        if self.other or not self.refused:
            return Reason.LEASE_HELD, "no lease"
        reason, _ = next(iter(self.refused.values()))
        said = [f"node {node} gives no lease: {why}" for node, (_, why) in self.refused.items()]
        return reason, "; ".join(said[:MOST_TOLD])

    @property
    def holds(self) -> tuple[Hold, ...]:
        """What a person must see of it."""
        if self.other:
            return ()
        return tuple(
            Hold(f"node {node}", reason, f"it gives no lease: {why}")
            for node, (reason, why) in self.refused.items()
        )


class Book:
    """The leases that are kept from one pass to the next: the daemon's, and --wait's."""

    def __init__(self) -> None:
        self._desired: Desired | None = None
        self._epochs: Mapping[str, int] = {}

    def keep(self, desired: Desired, held: Held) -> None:
        """What the last pass held."""
        self._desired, self._epochs = desired, held.epochs

    def forget(self) -> None:
        """They were given back already."""
        self._desired = None

    def release(self, pool: PoolLike) -> None:
        """Give them back, so that whoever comes next need not wait for their end."""
        if self._desired is not None:
            ask(pool, self._desired, self._epochs, "release")
            self._desired = None


def answering(observed: Observed) -> list[str]:
    """Nodes that answered, in the order in which leases are taken."""
    return sorted(name for name, look in observed.nodes.items() if look.answer)


def already_held(pool: PoolLike, desired: Desired, observed: Observed, owner: str) -> Held | None:
    """The leases as this owner holds them already, renewed where that is due; None: ask anew.

    What is renewed unbroken nobody else has acted under: no second look is needed.
    """
    epochs: dict[str, int] = {}
    due: list[str] = []
    for name in answering(observed):
        answer = observed.nodes[name].answer
        lease = answer.lease if answer else None
        if lease is None or lease.fleet != desired.fleet.id or lease.owner != owner:
            return None
        if lease.remaining_s <= 0:
            return None
        epochs[name] = lease.epoch
        if lease.remaining_s < RENEW_SHARE * desired.fleet.lease_s:
            due.append(name)
    renewed = ask(pool, desired, {name: epochs[name] for name in due}, "renew")
    return Held(epochs) if all(renewed[name].lease for name in due) else None


def leader(observed: Observed, owner: str, fleet: str) -> str:
    """Another owner whose lease of `fleet` lives on a node in sight; empty: none."""
    for name in answering(observed):
        answer = observed.nodes[name].answer
        lease = answer.lease if answer else None
        if lease and lease.fleet == fleet and lease.remaining_s > 0 and lease.owner != owner:
            return lease.owner
    return ""


def acquire(pool: PoolLike, desired: Desired, nodes: Iterable[str]) -> Held:
    """Ask for the leases of all nodes that answer."""
    asked = pool.lease(
        desired,
        sorted(nodes),
        "acquire",
        root_commit=desired.revision.root_commit,
    )
    return Held(
        epochs={name: answer.lease.epoch for name, answer in asked.items() if answer.lease},
        other=_other(asked),
        fresh=True,
        behind=_behind(asked),
        refused={
            name: (answer.reason, answer.message)
            for name, answer in sorted(asked.items())
            if not answer.lease and answer.reason and answer.reason is not Reason.LEASE_HELD
        },
    )


def _other(answers: Mapping[str, LeaseAnswer]) -> str:
    for _, answer in sorted(answers.items()):
        if answer.reason is Reason.LEASE_HELD:
            return answer.message or "another reconciler"
    return ""


def _behind(answers: Mapping[str, LeaseAnswer]) -> bool:
    contended = [name for name, a in answers.items() if a.lease or a.reason is Reason.LEASE_HELD]
    return bool(contended) and not answers[min(contended)].lease


def ask(
    pool: PoolLike, desired: Desired, epochs: Mapping[str, int], action: str, **fields: Any
) -> Mapping[str, LeaseAnswer]:
    """renew, update or release the leases that are held."""
    if not epochs:
        return {}
    return pool.lease(desired, sorted(epochs), action, epochs=epochs, **fields)


@dataclass(frozen=True)
class Keep:
    """What the leases are to hold after this pass."""

    revision: str
    departed: Mapping[str, str]
    approvals: tuple[ApprovedChange, ...]

    def differs(self, lease: Lease | None) -> bool:
        """Whether a node's stored lease says something else."""
        return lease is None or (self.revision, dict(self.departed), self.approvals) != (
            lease.revision,
            dict(lease.departed),
            lease.approvals,
        )

    @property
    def fields(self) -> dict[str, Any]:
        """As a lease request carries them."""
        return {
            "revision": self.revision,
            "departed": dict(self.departed),
            "approvals": [
                {"replica": a.replica, "before": a.before, "after": a.after} for a in self.approvals
            ],
        }


def outdated(keep: Keep, observed: Observed) -> list[str]:
    """Answering nodes whose lease does not say what it is to say."""
    found = []
    for name in answering(observed):
        answer = observed.nodes[name].answer
        if keep.differs(answer.lease if answer else None):
            found.append(name)
    return found
