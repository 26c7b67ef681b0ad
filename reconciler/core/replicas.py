"""Judges every replica of one pass: its launches, which of them counts, and what that says of it.

Which replicas there are, and under which names, has been decided (wanted, rename). Nothing in here
compares one replica with another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

from reconciler.core import effective, policy, unseen, wanted
from reconciler.core.backoff import backoff
from reconciler.core.catalog import Catalog
from reconciler.core.endings import Ending
from reconciler.core.fast import made
from reconciler.core.inhand import InHand
from reconciler.core.model import NodeState, Placement, ResolvedProfile
from reconciler.core.observed import ApprovedChange, Observed
from reconciler.core.rejection import Launches, Trial
from reconciler.core.replica_verdict import in_sight, most_telling, replica_verdict
from reconciler.core.verdict import (
    Backoff,
    Effective,
    JudgedLaunch,
    JudgedReplica,
    Verdict,
)
from reconciler.core.verdicts import (
    AS_WANTED,
    RESTART,
    Case,
    is_live,
    judge,
    serves_wanted,
    without_fields,
)
from reconciler.core.views import Sighting, Sightings
from reconciler.core.wanted import Group, Want

NO_BACKOFF = Backoff()


@dataclass
class Pass:
    """What all replicas of one pass are judged by."""

    catalog: Catalog
    sightings: Sightings
    groups: Mapping[str, Group]
    chosen: Mapping[str, tuple[Want, ...]]
    renamed: Mapping[str, Group]
    retries: Mapping[str, int]
    shortcut: bool
    observed: Observed
    approved: frozenset[ApprovedChange] = frozenset()

    @cached_property
    def ready_anywhere(self) -> frozenset[str]:
        """Fingerprints that were ever ready in this fleet."""
        return frozenset(s.view.fingerprint for s in self.sightings.launches if s.view.ever_ready)

    def wanted_replicas(self) -> Iterable[JudgedReplica]:
        """In order of placement and ordinal."""
        perhaps = unseen.Unseen(self.catalog, self.sightings)
        inhand = InHand(self.catalog, self.observed, perhaps)
        others = self._unwanted_by_placement()
        for name, own in self.chosen.items():
            placement = self.catalog.desired.placements[name]
            launches = {w.replica: self._launches(w.replica) for w in own}
            profile, fingerprint = self.catalog.today(name)
            facts = effective.Facts(
                placement,
                profile,
                fingerprint,
                self._trial(placement, profile, fingerprint),
                partial(self._may_try, inhand, placement, {w.replica: w for w in own}, launches),
                partial(self._may_stay, placement),
                self._held(placement),
                self.catalog.desired.repairs_only,
            )
            profiles = effective.choose(facts, launches, others.get(name, ()))
            for want in own:
                seen, effective_ = launches[want.replica], profiles[want.replica]
                plain = None
                if self.shortcut and len(seen) == 1 and seen[0][0].whole:
                    plain = self._matching(placement, want, seen[0][0], effective_)
                yield plain or self._wanted(placement, want, seen, effective_, perhaps)

    def unwanted_replicas(self) -> Iterable[JudgedReplica]:
        for own in self._unwanted():
            judged = tuple(self._judge(None, s, end) for s, end in own.launches)
            if all(s.ended for s, _ in own.launches):
                continue  # History: it holds nothing, and nobody asks for it.
            last = most_telling(judged)
            profile = last.view.profile
            node = self.catalog.desired.nodes.get(own.leader)
            yield JudgedReplica(
                replica=own.replica,
                placement=own.placement,
                ordinal=own.ordinal,
                wanted=False,
                verdict=last.verdict,
                reason=last.reason,
                launches=judged,
                ready=any(j.view.ready for j in judged),
                model=profile.model.name if profile else "",
                pool=node.pool if node else "",
            )

    # --- inside ---

    def _fitting(self, placement: Placement) -> int:
        """Nodes that could take the placement: a cordoned or silent one has no second opinion."""
        return sum(
            node.state is NodeState.ACTIVE and node.name not in self.sightings.silent
            for node in wanted.fitting(placement, self.catalog)
        )

    def _trial(self, placement: Placement, profile: ResolvedProfile, fingerprint: str) -> Trial:
        return Trial(
            fingerprint,
            profile.profile.nodes,
            lambda fingerprint: fingerprint in self.ready_anywhere,
            self.retries,
            partial(self._fitting, placement),
        )

    @staticmethod
    def _may_try(
        inhand: InHand,
        placement: Placement,
        wants: Mapping[str, Want],
        launches: Mapping[str, Launches],
        replica: str,
    ) -> bool:
        return inhand.may_try(placement, wants[replica], launches)

    def _may_stay(self, placement: Placement, sighting: Sighting) -> bool:
        view = sighting.view
        asked = bool(placement.restart) and placement.restart != view.restart
        return not asked and not self.catalog.why_not(placement, view.places)

    def _held(self, placement: Placement) -> effective.Held | None:
        said = policy.frozen(self.catalog.desired, placement.name)
        if said:
            return effective.Held(str(said[0]), said[1])
        said = policy.manual(placement)
        return effective.Held(str(said[0]), said[1], self.approved) if said else None

    def _matching(
        self, placement: Placement, want: Want, sighting: Sighting, profile: Effective
    ) -> JudgedReplica | None:
        """The usual case in short: one launch, seen whole, ready and as wanted. None: judge it."""
        view = sighting.view
        if not view.ready or view.fingerprint != profile.fingerprint or placement.suspend:
            return None
        if profile.waiting or profile.rejected:
            return None
        if placement.restart and placement.restart != view.restart:
            return None
        if self.catalog.why_not(placement, view.places):
            return None
        judged = made(
            JudgedLaunch, {"view": view, "verdict": Verdict.MATCHING, "reason": AS_WANTED}
        )
        return made(
            JudgedReplica,
            {
                "replica": want.replica,
                "placement": placement.name,
                "ordinal": want.ordinal,
                "wanted": True,
                "verdict": Verdict.MATCHING,
                "reason": AS_WANTED,
                "launches": (judged,),
                "current": view.launch,
                "ready": True,
                "model": self.catalog.today(placement.name)[0].model.name,
                "pool": placement.pool,
                "effective": profile,
                "backoff": NO_BACKOFF,
                "renamed_from": view.replica if view.replica != want.replica else "",
                "pinned_node": want.node,
            },
        )

    def _launches(self, replica: str) -> tuple[tuple[Sighting, Ending | None], ...]:
        """Newest first; those of the replica that it is renamed from before its own history."""
        own = self.groups[replica].launches if replica in self.groups else ()
        old = self.renamed.get(replica)
        if old is None:
            return own
        return tuple(
            sorted([*old.launches, *own], key=lambda p: (-p[0].view.seq, p[1] is not None))
        )

    def _unwanted(self) -> list[Group]:
        taken = {w.replica for own in self.chosen.values() for w in own}
        taken |= {g.replica for g in self.renamed.values()}
        return [g for g in self.groups.values() if g.replica not in taken]

    def _unwanted_by_placement(self) -> dict[str, list[Launches]]:
        found: dict[str, list[Launches]] = {}
        for g in self._unwanted():
            found.setdefault(g.placement, []).append(g.launches)
        return found

    def _judge(
        self,
        placement: Placement | None,
        sighting: Sighting,
        end: Ending | None,
        profile: Effective | None = None,
        current: str = "",
        current_ready: bool = False,
        kept: str = "",
    ) -> JudgedLaunch:
        after = self.catalog.desired.fleet.unhealthy_after_s
        return judge(
            Case(
                sighting,
                end,
                self.catalog,
                after,
                placement,
                profile,
                current,
                current_ready,
                kept,
            )
        )

    def _wanted(
        self,
        placement: Placement,
        want: Want,
        launches: Launches,
        profile: Effective,
        perhaps: unseen.Unseen,
    ) -> JudgedReplica:
        current, current_ready, kept = self._best(placement, launches, profile)
        judged = tuple(
            self._judge(placement, s, end, profile, current, current_ready, kept)
            for s, end in launches
        )
        if profile.waiting:
            judged = tuple(self._edited(placement, j, profile) for j in judged)
        blocked = "" if in_sight(launches) else perhaps.perhaps(placement, want)
        ends = {s.view.launch: end for s, end in launches}
        verdict, reason = replica_verdict(placement, judged, ends, current, kept, blocked)
        if profile.waiting and verdict is Verdict.MATCHING:
            # Its launch is as wanted for now, but a person asks what has become of the edit.
            verdict, reason = Verdict.STALE, f"the profile was edited; {profile.reason}"
        if profile.rejected and verdict is Verdict.MATCHING:
            reason = "runs the last ready profile; today's is rejected"
        old = self.renamed.get(want.replica)
        return JudgedReplica(
            replica=want.replica,
            placement=placement.name,
            ordinal=want.ordinal,
            wanted=True,
            verdict=verdict,
            reason=reason,
            launches=judged,
            current=current,
            kept=kept,
            ready=any(j.view.ready for j in judged),
            model=self.catalog.today(placement.name)[0].model.name,
            pool=placement.pool,
            effective=profile,
            backoff=self._backoff(want.replica, launches, profile),
            renamed_from=old.replica if old else "",
            pinned_node=want.node,
            blocked=blocked,
        )

    def _edited(
        self, placement: Placement, judged: JudgedLaunch, profile: Effective
    ) -> JudgedLaunch:
        """With the fields in which today's profile differs: it is replaced once its turn comes.

        One that has to move or restart as well does so by itself while a canary runs; where people
        hold all of it, all of it is what they let through, and so what they are shown.
        """
        both = profile.held and judged.verdict in (Verdict.STALE, Verdict.MISPLACED)
        if judged.verdict is not Verdict.MATCHING and not both:
            return judged
        view = judged.view
        before = view.profile, view.fingerprint
        edited = self.catalog.explain(before, self.catalog.today(placement.name))
        if not both:
            return replace(judged, changes=edited)
        reason = f"{without_fields(judged.reason, judged.changes)}; and the profile was edited"
        asked = tuple(c for c in judged.changes if c.path == RESTART)
        return replace(judged, reason=reason, changes=(*edited, *asked))

    def _best(
        self, placement: Placement, launches: Launches, profile: Effective
    ) -> tuple[str, bool, str]:
        """The current launch, whether it is ready, and the kept one."""
        after = self.catalog.desired.fleet.unhealthy_after_s
        live = [(s, end) for s, end in launches if is_live(s, end)]
        current = next(
            (
                s.view
                for s, end in live
                if serves_wanted(Case(s, end, self.catalog, after, placement, profile))
            ),
            None,
        )
        if current is not None and current.ready:
            return current.launch, True, ""
        rest = [s.view for s, _ in live if s.view.alive and s.view is not current]
        kept = next((v for v in rest if v.ready), None)
        kept = kept or next((v for v in rest if v.ever_ready), None)
        return current.launch if current else "", False, kept.launch if kept else ""

    def _backoff(self, replica: str, launches: Launches, profile: Effective) -> Backoff:
        if not any(end is not None for _, end in launches):
            return NO_BACKOFF
        return backoff(launches, profile.fingerprint, self.retries.get(replica, 0))
