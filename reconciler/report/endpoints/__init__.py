"""The published endpoints as files: one function a file, the same bytes for the same endpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reconciler.core.endpoints import Endpoints
from reconciler.report.endpoints.litellm import litellm
from reconciler.report.endpoints.prometheus import prometheus
from reconciler.report.endpoints.published import published

MAIN = "endpoints.json"
"""The file that is also our memory; written last, so that it is never ahead of the others."""

FILES: Mapping[str, Callable[[Endpoints], str]] = {
    "prometheus-sd.json": prometheus,
    "litellm.yaml": litellm,
    MAIN: published,
}


def rendered(endpoints: Endpoints) -> dict[str, str]:
    """File name → content, in the order in which they are written."""
    return {name: render(endpoints) for name, render in FILES.items()}
