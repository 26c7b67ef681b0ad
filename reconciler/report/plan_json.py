"""A plan as the JSON that we publish: its field names are a contract, its values are plain.

This is not the frozen value's own JSON (`core/codec.py`, which reads back): steps, ports and launch
suffixes are left out, secrets are masked, and names stay when the inside is renamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reconciler.core.changes import Change, GuardVerdict, Hold, Plan, Seat
from reconciler.core.codec import to_json
from reconciler.core.secrets import sensitive
from reconciler.report.clean import cleaned, masked
from reconciler.report.words import ACTIONS


def plan_json(plan: Plan, *, observed_at: str, basis: str = "") -> dict[str, Any]:
    """The published form. `observed_at`: RFC 3339 time of the look, empty for none; `basis`: what
    it was made against, where that is not the nodes."""
    data: dict[str, Any] = {
        "format_version": plan.format_version,
        "revision": str(plan.revision),
        "observed_at": observed_at,
        "basis": basis,
        "plan_digest": plan.plan_digest,
        "summary": to_json(plan.summary),
        "changes": [_change(change) for change in plan.changes],
        "holds": [_hold(hold) for hold in plan.holds],
        "guards": [_guard(guard) for guard in plan.guards],
        "capacity": [to_json(c) for c in plan.capacity],
        "warnings": list(plan.warnings),
    }
    return {key: cleaned(value) for key, value in data.items()}


def _change(change: Change) -> dict[str, Any]:
    leader = (change.after_seats or change.before_seats or (Seat(""),))[0]
    return {
        "address": change.address,
        "placement": change.placement,
        "symbol": change.symbol.value,
        "actions": list(ACTIONS[change.symbol]),
        "verdict": change.verdict,
        "reason": change.reason,
        "changed_paths": [field.path for field in change.changes],
        "before": _side(
            change.before,
            change.before_seats,
            {f.path: masked(f.path, f.before) for f in change.changes},
        ),
        "after": _side(
            change.after,
            change.after_seats,
            {f.path: masked(f.path, f.after) for f in change.changes},
        ),
        "sensitive": [f.path for f in change.changes if _is_masked(f.path, f.before, f.after)],
        "node": leader.node,
        "gpus": list(leader.gpus),
        "waits": (
            {"reason": change.waits_for.value if change.waits_for else "", "message": change.waits}
            if change.waits
            else None
        ),
        "load_minutes": change.load_minutes,
    }


def _is_masked(path: str, before: str, after: str) -> bool:
    return sensitive(path) or masked(path, before) != before or masked(path, after) != after


def _side(fingerprint: str, seats: Sequence[Seat], fields: dict[str, str]) -> dict[str, Any] | None:
    """null where nothing runs on this side."""
    if not fingerprint and not seats:
        return None
    return {"fingerprint": fingerprint, "seats": [to_json(s) for s in seats], "fields": fields}


def _hold(hold: Hold) -> dict[str, Any]:
    return {
        "subject": hold.subject,
        "reason": hold.reason.value,
        "message": hold.message,
        "placement": hold.placement,
        "nodes": dict(hold.nodes),
    }


def _guard(guard: GuardVerdict) -> dict[str, Any]:
    verdict = "approved" if guard.approved else ("passed" if guard.passed else "failed")
    return {
        "name": guard.name,
        "scope": guard.scope,
        "limit": guard.limit,
        "value": guard.value,
        "verdict": verdict,
        "message": guard.message,
        "changes": [to_json(change) for change in guard.changes],
    }
