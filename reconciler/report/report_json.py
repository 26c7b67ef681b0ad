"""A pass report as JSON for machines: the published plan inside, status and steps beside it."""

from __future__ import annotations

from typing import Any

from reconciler.core.codec import to_json
from reconciler.report.clean import cleaned, masked
from reconciler.report.passreport import PassReport, PlacementStatus
from reconciler.report.plan_json import plan_json


def report_json(report: PassReport) -> dict[str, Any]:
    """The whole pass."""
    plan = plan_json(report.plan, observed_at=report.observed_at) if report.plan else None
    return {
        **status_json(report),
        "exit_code": report.exit_code,
        "unsettled": cleaned(report.unsettled),
        **({"endpoints": cleaned(to_json(report.endpoints))} if report.endpoints else {}),
        **({"history": cleaned(to_json(report.turned))} if report.turned else {}),
        "plan": plan,
        "steps": cleaned([to_json(step) for step in report.steps]),
        "durations_s": dict(report.durations_s),
    }


def status_json(report: PassReport) -> dict[str, Any]:
    """What `reconcile status --output json` prints."""
    data: dict[str, Any] = {
        "format_version": report.format_version,
        "owner": report.owner,
        "observed_at": report.observed_at,
        "revisions": to_json(report.revisions),
        "head_error": to_json(report.head_error) if report.head_error else None,
        "lease_held_by": report.lease_held_by,
        "placements": [_placement(p) for p in report.placements],
        "nodes": [to_json(n) for n in report.nodes],
        "notes": list(report.notes),
    }
    return {key: cleaned(value) for key, value in data.items()}


def _placement(placement: PlacementStatus) -> dict[str, Any]:
    data: dict[str, Any] = to_json(placement)
    for replica in data["replicas"]:
        for change in replica["changes"]:
            for side in ("before", "after"):
                change[side] = masked(change["path"], change[side])
    return data
