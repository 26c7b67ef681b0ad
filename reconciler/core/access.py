"""Where this pass may act at all: nodes that answer, are held by nobody else, and are told apart.

A node that is *barred* gets no step of any kind, whatever the plan would like. Why it is barred is
a Hold of its own, so that a fleet that waits for a person does not look like one that is converged.
Nothing in here decides about replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from reconciler.core.changes import Hold, Reason
from reconciler.core.model import Desired, NodeState
from reconciler.core.observed import LookError, NodeAnswer, NodeLook, Observed

Bar = tuple[Reason, str]
"""Why no step may be sent: a reason of the closed list, and a sentence."""


@dataclass(frozen=True)
class Access:
    """Nodes that may be acted on are those without an entry in `barred`."""

    barred: Mapping[str, Bar] = field(default_factory=dict)
    held_launches: Mapping[str, str] = field(default_factory=dict)
    """Launch → who holds it and why (hold.json names a launch)."""
    unseen: tuple[str, ...] = ()
    """Nodes that should answer and do not."""
    expected: int = 0
    """Nodes that should answer."""
    foreign_lease: Bar | None = None
    """Another reconciler acts on some node: no voluntary stop anywhere in this pass."""
    answers: Mapping[str, NodeAnswer] = field(default_factory=dict)

    def why_not(self, nodes: Iterable[str], launch: str = "") -> Bar | None:
        """Why no step may go to all of `nodes`; None: it may."""
        for node in nodes:
            if node in self.barred:
                return self.barred[node]
            if node not in self.answers:
                return Reason.NODE_UNREACHABLE, f"{node} did not answer"
        if launch and launch in self.held_launches:
            return Reason.NODE_HELD, self.held_launches[launch]
        return None


def look_at(desired: Desired, observed: Observed) -> tuple[Access, tuple[Hold, ...]]:
    """What may be acted on, and a Hold for each node that may not. Linear in nodes."""
    barred: dict[str, Bar] = {}
    launches: dict[str, str] = {}
    unseen: list[str] = []
    foreign: Bar | None = None
    answers: dict[str, NodeAnswer] = {}
    expected = 0
    for name in sorted(desired.nodes):
        lost = desired.nodes[name].state is NodeState.LOST
        expected += not lost
        look = observed.nodes.get(name)
        answer = look.answer if look else None
        if answer is None:
            if not lost:
                unseen.append(name)
                barred[name] = _silence(name, look)
            continue
        answers[name] = answer
        lease = _lease(name, answer, desired, observed.owner)
        foreign = foreign or lease
        bar = lease or _hold(name, answer, launches)
        if bar:
            barred[name] = bar
    barred.update(_duplicates(desired, answers))
    access = Access(barred, launches, tuple(unseen), expected, foreign, answers)
    return access, tuple(
        Hold(f"node {name}", reason, message) for name, (reason, message) in sorted(barred.items())
    )


_SILENCE = {error: Reason(error.value) for error in LookError}


def _silence(name: str, look: NodeLook | None) -> Bar:
    if look is None or look.error is None:
        return Reason.NODE_UNREACHABLE, f"{name} was not looked at"
    text = f"{name}: {look.detail or 'no answer'}"
    return _SILENCE[look.error], f"{text}; {look.hint}" if look.hint else text


def _lease(name: str, answer: NodeAnswer, desired: Desired, owner: str) -> Bar | None:
    """Without an owner nobody is about to act (a dry run): leases then say nothing."""
    if not owner:
        return None
    if answer.lease_error:
        return Reason.LEASE_HELD, (
            f"{name}: its lease cannot be read ({answer.lease_error}) and counts as held;"
            " `reconcile lease take --reason …` replaces it"
        )
    lease = answer.lease
    if lease is None or lease.fleet != desired.fleet.id:
        return None
    ours = desired.revision.root_commit
    if ours and lease.root_commit and lease.root_commit != ours:
        return Reason.LEASE_HELD, (
            f"{name}: fleet {lease.fleet} is led from another repository (first commit"
            f" {lease.root_commit[:12]}, ours {ours[:12]}); give one of them another id"
        )
    if lease.owner != owner and lease.remaining_s > 0:
        return Reason.LEASE_HELD, f"{name}: {lease.owner} acts here"
    return None


def _hold(name: str, answer: NodeAnswer, launches: dict[str, str]) -> Bar | None:
    hold = answer.hold
    if hold is None or (hold.remaining_s is not None and hold.remaining_s <= 0):
        return None
    text = f"{name}: held by {hold.who or 'someone'}"
    text += f" ({hold.reason})" if hold.reason else ""
    if hold.remaining_s is not None:
        text += f" for another {max(1, round(hold.remaining_s / 60))} min"
    if hold.launch:
        launches[hold.launch] = text
        return None
    return Reason.NODE_HELD, text


def _duplicates(desired: Desired, answers: Mapping[str, NodeAnswer]) -> dict[str, Bar]:
    """Two documents that reach one machine: what is placed on both would share its GPUs."""
    by_machine: dict[str, list[str]] = {}
    for name, answer in answers.items():
        if desired.nodes[name].state is not NodeState.LOST and name not in desired.departed:
            by_machine.setdefault(answer.machine_id, []).append(name)
    return {
        name: (
            Reason.DUPLICATE_NODE,
            f"{' and '.join(names)} are one machine (id {machine}); remove one of the documents, "
            "or give a machine that was cloned an id of its own (systemd-machine-id-setup)",
        )
        for machine, names in by_machine.items()
        if len(names) > 1 and machine
        for name in names
    }
