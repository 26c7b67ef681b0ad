"""What people said against changes: a freeze of the fleet or of one placement, `update: manual`.

Asked twice: by the gates, before anything that lives is changed, and by the choice of the effective
profile, so that a repair under a freeze restores what was there.
"""

from __future__ import annotations

from reconciler.core.changes import Reason
from reconciler.core.model import Desired, Freeze, Placement

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


def _freeze_text(what: str, freeze: Freeze) -> str:
    owner = f" by {freeze.owner}" if freeze.owner else ""
    reason = f": {freeze.reason}" if freeze.reason else ""
    return f"{what} is frozen{owner}{reason}"
