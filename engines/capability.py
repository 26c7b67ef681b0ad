"""Quantization against compute capability, by the engine's own table.

Capabilities are pairs of numbers: (10, 0) is above (9, 0), and "10.0" is below "9.0" only as text.
What cannot be read (no capability, an unknown method) lets the launch through: the engine refuses
clearly enough.
"""

from __future__ import annotations

from engines.base import LaunchRequest
from engines.tables.vllm_quantization import LEAST_CAPABILITY


def parse(text: str) -> tuple[int, int] | None:
    """`9.0` as (9, 0); None where it cannot be read."""
    major, dot, minor = text.strip().partition(".")
    if not (dot and major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit()):
        return None
    return int(major), int(minor)


def refusal(quantization: str, capability: tuple[int, int] | None) -> str:
    """Why vLLM would refuse `quantization` on this GPU; empty: it would not, or it is not known."""
    least = LEAST_CAPABILITY.get(quantization)
    if least is None or capability is None or capability >= least:
        return ""
    return (
        f"quantization {quantization} needs compute capability {least[0]}.{least[1]}, "
        f"this GPU has {capability[0]}.{capability[1]}"
    )


def check_quantization(request: LaunchRequest, quantization: str) -> None:
    """Raises ValueError that names the first node whose GPUs cannot do it."""
    for host in request.hosts:
        for gpu in host.gpus:
            why = refusal(quantization, gpu.capability)
            if why:
                raise ValueError(f"node {host.node}: {why}")
