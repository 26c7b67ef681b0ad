"""Why a voluntary change waits, as an ordered table: the first closed gate gives the reason.

A gate knows nothing of budgets: those are spent, and so asked last (`rollout`).
"""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.core import policy
from reconciler.core.access import Access
from reconciler.core.changes import Reason
from reconciler.core.guard import REMOVED, REPLACED, UNSEEN, Guards, Scope
from reconciler.core.model import Desired
from reconciler.core.observed import ApprovedChange
from reconciler.core.rollout import Wait
from reconciler.core.verdict import Brake, JudgedLaunch, JudgedReplica, Verdict


@dataclass(frozen=True)
class Gates:
    """All that can hold a voluntary change beside the limits of rule 3."""

    desired: Desired
    access: Access
    guards: Guards
    approved: frozenset[ApprovedChange]
    brakes: tuple[Brake, ...]

    def blind(self) -> Wait | None:
        """Every voluntary stop waits while too much is out of sight, or another one acts."""
        if self.access.foreign_lease:
            reason, message = self.access.foreign_lease
            return reason, f"no voluntary stop while another reconciler acts ({message})"
        for verdict in self.guards.verdicts:
            if verdict.name == UNSEEN and not verdict.passed:
                return Reason.NODE_UNREACHABLE, verdict.message
        return None

    def remove(self, replica: JudgedReplica, scope: Scope) -> Wait | None:
        """Why a replica that nobody wants is not stopped yet."""
        return self.blind() or self._frozen(replica.placement) or self._guard(REMOVED, scope)

    def replace(
        self, replica: JudgedReplica, old: JudgedLaunch, change: ApprovedChange, scope: Scope
    ) -> Wait | None:
        """Why a replica with a live launch is not replaced yet."""
        if old.verdict is Verdict.UNHEALTHY:
            return self.blind() or self._brake(replica, old)
        return (
            self.blind()
            or self._frozen(replica.placement)
            or self._manual(replica.placement, change)
            or self._guard(REPLACED, scope)
        )

    def update(self, placement: str, change: ApprovedChange) -> Wait | None:
        """Why even a launch that is not ready keeps its old profile: people said so."""
        return self._frozen(placement) or self._manual(placement, change)

    def _frozen(self, placement: str) -> Wait | None:
        return policy.frozen(self.desired, placement)

    def _manual(self, placement: str, change: ApprovedChange) -> Wait | None:
        if change in self.approved:
            return None
        return policy.manual(self.desired.placements[placement])

    def _guard(self, name: str, scope: Scope) -> Wait | None:
        verdict = self.guards.stops(name, scope)
        return (Reason.BLAST_RADIUS, verdict.message) if verdict else None

    def _brake(self, replica: JudgedReplica, old: JudgedLaunch) -> Wait | None:
        scopes = {f"model {replica.model}", *(f"node {n}" for n in old.view.seen_nodes)}
        mine = [b for b in self.brakes if b.scope in scopes]
        if not mine or any(b.probe == replica.replica for b in mine):
            return None
        return Reason.SICK_TOGETHER, f"{mine[0].scope}: {mine[0].reason}"
