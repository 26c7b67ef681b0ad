"""prometheus-sd.json: targets for Prometheus' file-based discovery, the engines' own metrics.

What is only kept is among them: a target that does not answer is what an alert wants to see.
"""

from __future__ import annotations

import json

from reconciler.core.endpoints import Endpoint, Endpoints
from reconciler.report.endpoints.published import url


def prometheus(endpoints: Endpoints) -> str:
    """One group a target; each has its own labels."""
    groups = [_group(entry) for entry in endpoints.entries if entry.metrics_path]
    return json.dumps(groups, indent=2, ensure_ascii=True) + "\n"


def _group(entry: Endpoint) -> dict[str, object]:
    labels = {
        "__metrics_path__": entry.metrics_path,
        # Dropped after relabelling: as a label it would start a new series with each change.
        "__meta_reconcile_state": entry.state.value,
        "model": ",".join(entry.names),
        "engine": entry.engine,
        "placement": entry.placement,
        "replica": entry.replica,
        "launch": entry.launch,
        "rank": str(entry.rank),
        "node": entry.node,
    }
    return {"targets": [url(entry).removeprefix("http://")], "labels": labels}
