"""What people said against changes: a freeze of the fleet or of one placement, `update: manual`.

Asked twice: by the gates, before anything that lives is changed, and by the choice of the effective
profile, so that a repair under a freeze restores what was there.
"""

from __future__ import annotations

from reconciler.core.catalog import parse_replica
from reconciler.core.changes import Reason
from reconciler.core.fingerprint import fingerprint
from reconciler.core.model import Desired, Freeze, Placement
from reconciler.core.observed import ApprovedChange

Said = tuple[Reason, str]
"""Why a change waits for a person."""


def frozen(desired: Desired, placement: str) -> Said | None:
    """Whether the fleet or the placement is frozen."""
    if desired.fleet.freeze:
        return Reason.FROZEN, _freeze_text("the fleet", desired.fleet.freeze)
    mine = desired.placements.get(placement)
    if mine and mine.freeze:
        return Reason.FROZEN, _freeze_text(f"placement {placement}", mine.freeze)
    return None


def manual(placement: Placement) -> Said | None:
    """Whether each change of the placement waits for an approval."""
    if placement.rollout.update != "manual":
        return None
    return Reason.MANUAL_UPDATE, (
        f"placement {placement.name} has `update: manual`; `reconcile approve` lets it go on"
    )


def still_stands(desired: Desired, approved: ApprovedChange) -> bool:
    """Whether an approval says what a replica is to run today, also after it was carried out.

    Under `update: manual` it is all that tells what a person let through once the node that went
    there is lost, or is still stopping what ran before. A move and a restart are asked for anew.
    """
    name, _ = parse_replica(approved.replica) or ("", 0)
    placement = desired.placements.get(name)
    if placement is None or manual(placement) is None or approved.before == approved.after:
        return False
    return approved.after == fingerprint(desired.resolved(placement))


def _freeze_text(what: str, freeze: Freeze) -> str:
    owner = f" by {freeze.owner}" if freeze.owner else ""
    reason = f": {freeze.reason}" if freeze.reason else ""
    return f"{what} is frozen{owner}{reason}"
