"""How SGLang lays out the ranks of a mixture of experts: tp is their number, divided three ways.

tp = ep × moe-dp × moe-tp (SGLang 0.5.23: `runtime_context.py`, `arg_groups/parallel_hook.py`). With
`parallel.ep` the experts are spread over all of tp, or over what each MoE data-parallel group has
of it; `--moe-dp-size` is the profile's own flag, since it goes with `--attn-cp-size`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engines.base import EngineProfile, Problem

SPANS_TP = frozenset(
    {
        "ascend_fuseep",
        "deepep",
        "deepep_v2",
        "flashinfer",
        "flashinfer_megamoe",
        "megamoe",
        "mooncake",
        "mori",
        "nixl",
        "pplx",
    }
)
"""All-to-all backends with which SGLang sets the expert-parallel size to tp by itself."""

Values = Callable[[EngineProfile, str], list[str]]
"""What a profile's arguments give to a flag; the last one counts."""


def data_parallel(profile: EngineProfile, values: Values) -> int:
    """MoE data-parallel groups; 1 where the profile says nothing that is a number."""
    return _number(values(profile, "--moe-dp-size"))


def expert_parallel(profile: EngineProfile, values: Values) -> int:
    """For `--ep-size`: left at tp, SGLang ends where there is more than one group."""
    return max(1, profile.parallel.tp // data_parallel(profile, values))


def check(profile: EngineProfile, values: Values) -> Iterator[Problem]:
    """What SGLang asserts of `--moe-dp-size` after it has started on every node."""
    p, groups = profile.parallel, data_parallel(profile, values)
    if groups <= 1:
        return
    if p.tp % groups:
        hint = "MoE data parallelism divides tp and adds no GPUs"
        yield Problem("args", f"--moe-dp-size {groups} does not divide tp {p.tp}", hint)
    if p.pp > 1:
        hint = f"use one of the two: pp is {p.pp}"
        yield Problem("args", "SGLang has no pp together with --moe-dp-size", hint)
    backend = (values(profile, "--moe-a2a-backend") or [""])[-1]
    if backend in SPANS_TP:
        yield Problem(
            "args",
            f"--moe-a2a-backend {backend} spreads the experts over all of tp {p.tp}, which leaves "
            f"no room for --moe-dp-size {groups}",
            "use one of the two",
        )
    context = _number(values(profile, "--attn-cp-size"))
    if context != groups:
        yield Problem(
            "args",
            f"SGLang 0.5.23 ends with --moe-dp-size {groups} where --attn-cp-size is {context}",
            f"add --attn-cp-size {groups}",
            warning=True,
        )


def _number(values: list[str]) -> int:
    """A value that is no number is left to SGLang's own parser, which names it."""
    text = values[-1] if values else ""
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else 1
