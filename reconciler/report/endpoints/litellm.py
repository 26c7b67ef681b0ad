"""litellm.yaml: a `model_list` for LiteLLM's proxy, one deployment per endpoint and served name.

`include:` it in the proxy's own configuration. What is only kept is among them: LiteLLM cools a
deployment down that fails, and would have nothing to come back to if it were left out.
"""

from __future__ import annotations

from typing import Any

import yaml

from reconciler.core.endpoints import Endpoint, Endpoints
from reconciler.report.endpoints.published import url

KEY = "none"
"""The OpenAI client wants one; engines that have none set ignore it."""


def litellm(endpoints: Endpoints) -> str:
    """In order of served name."""
    pairs = sorted(
        ((name, entry) for entry in endpoints.entries for name in entry.names),
        key=lambda pair: pair[0],
    )
    data = {"model_list": [_deployment(name, entry) for name, entry in pairs]}
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=False, width=1000)
    return text


def _deployment(name: str, entry: Endpoint) -> dict[str, Any]:
    return {
        "model_name": name,
        "litellm_params": {
            "model": f"openai/{name}",
            "api_base": f"{url(entry)}/v1",
            "api_key": KEY,
            "weight": entry.weight,
        },
        "model_info": {
            "id": f"{name}@{entry.launch}/{entry.rank}",
            "reconcile_state": entry.state.value,
        },
    }
