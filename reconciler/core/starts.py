"""From a place to a start: ports, launch id, sequence number, and the spec of every rank.

A replica that cannot be started is a `Hold`; nothing in here asks whether it should be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from reconciler.core import build, ports
from reconciler.core.access import Access
from reconciler.core.changes import Hold, Reason, Seat, ShardSpec, StartStep
from reconciler.core.fit import Ask
from reconciler.core.ids import IdSource, launch_id
from reconciler.core.labels import LabelBook
from reconciler.core.model import Desired, Placement, ResolvedProfile
from reconciler.core.observed import Place
from reconciler.core.occupancy import GpuSlot, Ledger
from reconciler.core.place import Placer
from reconciler.core.verdict import JudgedReplica

Seats = tuple[Seat, ...]
Going = Mapping[str, tuple[str, ...]]
"""Launches that are about to end, with their nodes."""

REHEARSAL = "check"
"""Suffix of the launch id in a rehearsal. The id source is left alone: it is for real launches."""


class Starter:
    """Makes start steps and keeps what it gave away. Lives for one pass."""

    def __init__(
        self,
        desired: Desired,
        access: Access,
        ledger: Ledger,
        placer: Placer,
        labels: LabelBook,
        ids: IdSource,
    ) -> None:
        self._desired = desired
        self._access = access
        self._ledger = ledger
        self._placer = placer
        self._labels = labels
        self._ids = ids
        self._mixed: dict[str, bool] = {}
        self._written: dict[int, tuple[ResolvedProfile, dict[str, Any]]] = {}
        """Profiles as JSON, by their identities (which it holds)."""

    def seats(self, replica: JudgedReplica, without: Going | None = None) -> Seats | Hold:
        """Where the replica would go, as if the launches `without` had ended. Takes nothing."""
        ask = self._ask(replica, without or {})
        if ask is None:
            return rejected(replica)
        found = self._placer.place(ask)
        if found is not None:
            return found
        why = self._placer.explain(ask)
        return Hold(
            subject=f"replica {replica.replica}",
            reason=Reason.NO_CAPACITY,
            message=why.message,
            placement=replica.placement,
            nodes=why.nodes,
        )

    def lacking(self, replica: JudgedReplica) -> str:
        """What a successor beside the replica lacks, in words."""
        ask = self._ask(replica, {})
        if ask is None:
            return "no profile to start"
        count, why = self._placer.lacking(ask), self._placer.explain(ask).message
        gpus = "1 more free GPU" if count == 1 else f"{count} more free GPUs"
        return f"{gpus} on nodes that fit ({why})" if count else why

    def try_seats(self, replica: JudgedReplica, without: Going | None = None) -> Seats | None:
        """As `seats`, for those who have another choice and ask for no reason."""
        ask = self._ask(replica, without or {})
        return self._placer.place(ask) if ask else None

    def _ask(self, replica: JudgedReplica, without: Going) -> Ask | None:
        effective = replica.effective
        if effective is None or effective.profile is None:
            return None
        placement = self._desired.placements[replica.placement]
        return Ask(
            placement=placement,
            resolved=effective.profile,
            mixed=self._may_mix(placement, effective.profile),
            only=replica.pinned_node,
            previous=previous_places(replica),
            failures=_failures(replica),
            without=without,
        )

    def gpus_of(self, node: str) -> Sequence[GpuSlot]:
        """All GPUs of a node, free or not."""
        return self._ledger.use(node).slots

    def free_now(self, seats: Sequence[Seat]) -> bool:
        """Whether every GPU of the seats is free at this moment."""
        return all(
            set(seat.gpus) <= {slot.uuid for slot in self._ledger.use(seat.node).free()}
            for seat in seats
        )

    def reserve(self, replica: JudgedReplica, seats: Sequence[Seat]) -> None:
        """Keep seats for a replica that will start in a later pass."""
        self._placer.take(replica.placement, f"reserved for {replica.replica}", seats)

    def rehearse(
        self, replica: JudgedReplica, seats: Sequence[Seat]
    ) -> tuple[ShardSpec, ...] | Hold:
        """What each node of `seats` would be told; takes nothing, and the launch id is nobody's."""
        return self._specs(replica, seats, launch_id(replica.replica, REHEARSAL))

    def start(self, replica: JudgedReplica, seats: Sequence[Seat]) -> StartStep | Hold:
        """The step that starts `replica` on `seats`, which are then taken."""
        launch = launch_id(replica.replica, self._ids())
        shards = self._specs(replica, seats, launch)
        if isinstance(shards, Hold):
            return shards
        assert replica.effective is not None
        self._placer.take(replica.placement, launch, seats)
        for shard in shards:
            block = shard.spec["places"][shard.spec["rank"]]["ports"]
            self._ledger.take(shard.node, launch, (), block.values())
        labels = self._labels.of(replica.placement, replica.replica, replica.ordinal)
        return StartStep(
            replica=replica.replica,
            launch=launch,
            seq=shards[0].spec["seq"],
            fingerprint=replica.effective.fingerprint,
            shards=tuple(replace(shard, labels=labels) for shard in shards),
        )

    def _specs(
        self, replica: JudgedReplica, seats: Sequence[Seat], launch: str
    ) -> tuple[ShardSpec, ...] | Hold:
        effective = replica.effective
        if effective is None or effective.profile is None:
            return rejected(replica)
        placement = self._desired.placements[replica.placement]
        names = build.port_names(effective.profile)
        nodes = [seat.node for seat in seats]
        ports_range = self._desired.fleet.ports
        block = ports.choose(names, nodes, ports_range, self._ledger, self._access.answers)
        if block is None:
            return Hold(
                subject=f"replica {replica.replica}",
                reason=Reason.NO_CAPACITY,
                message=(
                    f"{ports.none_free(len(names), ports_range)} on"
                    f" {' and '.join(nodes)}; widen `ports` in fleet.yaml"
                ),
                placement=replica.placement,
            )
        seq = max((j.view.seq for j in replica.launches), default=0) + 1
        try:
            return build.build_specs(
                desired=self._desired,
                placement=placement,
                resolved=effective.profile,
                seats=seats,
                ports=block,
                replica=replica.replica,
                ordinal=replica.ordinal,
                launch=launch,
                seq=seq,
                fingerprint=effective.fingerprint,
                answers=self._access.answers,
                profile=self._as_json(effective.profile),
            )
        except ValueError as error:
            return Hold(
                subject=f"replica {replica.replica}",
                reason=Reason.INFEASIBLE,
                message=str(error),
                placement=replica.placement,
            )

    def _as_json(self, resolved: ResolvedProfile) -> dict[str, Any]:
        """Replicas of one profile share it; a thousand starts are mostly of a few profiles."""
        known = self._written.get(id(resolved))
        if known is None:
            known = self._written[id(resolved)] = resolved, build.profile_json(resolved)
        return known[1]

    def _may_mix(self, placement: Placement, resolved: ResolvedProfile) -> bool:
        if placement.name not in self._mixed:
            self._mixed[placement.name] = build.allowed_gpus_mixed(resolved)
        return self._mixed[placement.name]


def rejected(replica: JudgedReplica) -> Hold:
    """Nothing may be started: today's profile is rejected and none was ever ready here."""
    reason = replica.effective.reason if replica.effective else ""
    return Hold(
        subject=f"replica {replica.replica}",
        reason=Reason.REJECTED,
        message=reason or "its profile is rejected and no other was ever ready in this placement",
        placement=replica.placement,
    )


def previous_places(replica: JudgedReplica) -> tuple[Place, ...]:
    """Where its newest launch with a readable record was (or is)."""
    for judged in replica.launches:
        if judged.view.places:
            return judged.view.places
    return ()


def _failures(replica: JudgedReplica) -> dict[str, int]:
    """Node → launches of the effective profile that failed there without ever being ready."""
    counts: dict[str, int] = {}
    fingerprint = replica.effective.fingerprint if replica.effective else ""
    for judged in replica.launches:
        view = judged.view
        if judged.failed and not view.ever_ready and view.fingerprint == fingerprint:
            for place in view.places:
                counts[place.node] = counts.get(place.node, 0) + 1
    return counts
