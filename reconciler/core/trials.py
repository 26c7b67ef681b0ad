"""What each node would be asked before a start, for every placement and every node that it means.

The plan asks about the starts of this moment alone; before a first rollout, and on a fleet in which
all is well, nothing is due. Here each node is tried once for each placement, as if what the
placement itself runs there had ended. Over several nodes each is tried as a worker of the one
before it, so that every address is reached by somebody. Takes nothing, and asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from reconciler.core import build, ports
from reconciler.core.access import Access
from reconciler.core.changes import Reason, Seat, ShardSpec
from reconciler.core.diff import diff
from reconciler.core.fingerprint import fingerprint
from reconciler.core.fit import Ask, Candidate, meant
from reconciler.core.ids import launch_id
from reconciler.core.model import Desired, Placement
from reconciler.core.observed import NodeAnswer, Observed, Place
from reconciler.core.occupancy import Ledger
from reconciler.core.place import Placer
from reconciler.core.starts import REHEARSAL


@dataclass(frozen=True)
class Trial:
    """One placement on one node: what to ask there, or why it is not asked."""

    placement: str
    node: str
    runs: tuple[str, ...] = ()
    """Launches of the placement that live there."""
    replaces: str = ""
    """That one of them whose place is tried."""
    shard: ShardSpec | None = None
    why: str = ""
    """Why it is not asked (`has 2 free GPUs of 8`); what is free may change at any time."""
    broken: bool = False
    """`why` is a fault of the documents or the node: waiting does not mend it."""


@dataclass(frozen=True)
class Trials:
    """All of them, and the placements that fit nowhere, each with the reason."""

    each: tuple[Trial, ...]
    homeless: Mapping[str, str]


def trials(desired: Desired, observed: Observed) -> Trials:
    """Every placement on each node that it means. Leases and holds forbid no question."""
    judged = diff(desired, observed)
    answers = {
        name: look.answer
        for name, look in observed.nodes.items()
        if look.answer is not None and name in desired.nodes
    }
    silent = {n: (Reason.NODE_UNREACHABLE, "") for n in desired.nodes if n not in answers}
    access = Access(barred=silent, answers=answers)
    ledger = Ledger(desired, answers, judged)
    placer = Placer(desired, access, ledger, judged.quarantines, {})
    living: dict[str, dict[str, tuple[Place, ...]]] = {}
    for replica in judged.replicas:
        for launch in replica.launches:
            if launch.view.alive:
                living.setdefault(replica.placement, {})[launch.view.launch] = launch.view.places
    each: list[Trial] = []
    homeless: dict[str, str] = {}
    for name, placement in sorted(desired.placements.items()):
        tried = _Placement(desired, placement, answers, ledger, living.get(name, {}))
        each += tried.trials(placer)
        if tried.homeless:
            homeless[name] = tried.homeless
    return Trials(tuple(each), homeless)


class _Placement:
    """One placement, tried on all its nodes."""

    def __init__(
        self,
        desired: Desired,
        placement: Placement,
        answers: Mapping[str, NodeAnswer],
        ledger: Ledger,
        living: Mapping[str, tuple[Place, ...]],
    ) -> None:
        self._desired, self._placement, self._answers = desired, placement, answers
        self._ledger, self._living = ledger, living
        self._resolved = desired.resolved(placement)
        self._json = build.profile_json(self._resolved)
        self._fingerprint = fingerprint(self._resolved)
        self.homeless = ""

    def trials(self, placer: Placer) -> Iterator[Trial]:
        ask = Ask(
            self._placement,
            self._resolved,
            mixed=build.allowed_gpus_mixed(self._resolved),
            without={n: tuple(p.node for p in places) for n, places in self._living.items()},
        )
        fits, refused = placer.fits(ask)
        wanted = self._resolved.profile.nodes
        candidates: dict[str, Candidate] = {}
        for fit in fits:
            candidates.setdefault(fit.node.name, fit)
        alike: dict[tuple[str, ...], list[Candidate]] = {}
        for _, fit in sorted(candidates.items()):
            alike.setdefault(fit.like, []).append(fit)
        if all(len(group) < wanted for group in alike.values()):
            self.homeless = placer.explain(ask).message
        tried = {
            group[i].node.name: self._try(group, i)
            for group in alike.values()
            for i in range(len(group))
        }
        for node in sorted(n.name for n in self._desired.nodes.values() if meant(ask, n)):
            if node in tried:
                yield tried[node]
            elif node in refused:
                yield self._trial(node, why=refused[node])

    def _trial(
        self,
        node: str,
        *,
        shard: ShardSpec | None = None,
        replaces: str = "",
        why: str = "",
        broken: bool = False,
    ) -> Trial:
        runs = tuple(sorted(n for n, places in self._living.items() if _on(places, node)))
        return Trial(self._placement.name, node, runs, replaces, shard, why, broken)

    def _try(self, group: Sequence[Candidate], index: int) -> Trial:
        """The node in its ring: rank 0 if a replica has one node, else the second rank."""
        node = group[index].node.name
        count = self._resolved.profile.nodes
        if len(group) < count:
            return self._trial(node, why=f"is 1 of {len(group)} alike, {count} are needed")
        first = index - 1 if count > 1 else index
        members = [group[(first + rank) % len(group)] for rank in range(count)]
        seats = [self._seat(member) for member in members]
        seat, replaces = seats[members.index(group[index])]
        if len(seat.gpus) < self._resolved.profile.gpus_per_node:
            return self._trial(node, why="its GPUs are held by several launches of the placement")
        names = build.port_names(self._resolved)
        nodes = [member.node.name for member in members]
        given = self._desired.fleet.ports
        block = ports.choose(names, nodes, given, self._ledger, self._answers)
        if block is None:
            why = f"{ports.none_free(len(names), given)} on all its nodes"
            return self._trial(node, why=why, broken=True)
        try:
            shards = build.build_specs(
                desired=self._desired,
                placement=self._placement,
                resolved=self._resolved,
                seats=[seat for seat, _ in seats],
                ports=block,
                replica=f"{self._placement.name}-0",
                ordinal=0,
                launch=launch_id(f"{self._placement.name}-0", REHEARSAL),
                seq=1,
                fingerprint=self._fingerprint,
                answers=self._answers,
                profile=self._json,
            )
        except ValueError as error:
            return self._trial(node, why=str(error), broken=True)
        (shard,) = [shard for shard in shards if shard.node == node]
        return self._trial(node, shard=shard, replaces=replaces)

    def _seat(self, candidate: Candidate) -> tuple[Seat, str]:
        """Free GPUs of the node, or those of one of the placement's own launches there."""
        node, count = candidate.node.name, self._resolved.profile.gpus_per_node
        kin = {slot.uuid for slot in candidate.gpus}
        free = [s.uuid for s in self._ledger.use(node).free() if s.uuid in kin]
        for launch, places in sorted(self._living.items()):
            held = [gpu for place in _on(places, node) for gpu in place.gpus if gpu in kin]
            if _on(places, node) and len(held) + len(free) >= count:
                return Seat(node, (*held, *free)[:count]), launch
        return Seat(node, tuple(free[:count])), ""


def _on(places: Iterable[Place], node: str) -> list[Place]:
    return [place for place in places if place.node == node]
