"""Whether each node could run each placement that means it: what `doctor` adds to facts.

Nothing is started and no lease is taken: each node is asked by `check` what a start would say. Also
beside a running daemon, and on nodes that a person holds: these forbid acts, not questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reconciler.core.model import Desired
    from reconciler.core.observed import Observed
    from reconciler.core.trials import Trial
    from reconciler.nodes.pool import NodePool
    from reconciler.nodes.secretstore import SecretStore, Snapshot


@dataclass(frozen=True)
class Fit:
    """What one node says of one placement."""

    placement: str
    node: str
    runs: tuple[str, ...] = ()
    """Launches of the placement that live there."""
    why: str = ""
    """Why it was not asked."""
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def said(self) -> str:
        """In a few words."""
        if self.findings:
            count = len(self.findings)
            return f"no: {count} finding{'s' if count > 1 else ''}"
        return f"not now: {self.why}" if self.why else "yes"

    def to_json(self) -> dict[str, object]:
        """For `--output json`."""
        return {
            "node": self.node,
            "runs": list(self.runs),
            "could_start": not self.findings and not self.why,
            "why": self.why,
            "findings": list(self.findings),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class PlacementFits:
    """One placement over all nodes that it means."""

    placement: str
    fits: tuple[Fit, ...]
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        """Whether anything must be mended."""
        return bool(self.findings) or any(fit.findings for fit in self.fits)

    def to_json(self) -> dict[str, object]:
        """For `--output json`."""
        nodes = [fit.to_json() for fit in self.fits]
        return {"findings": list(self.findings), "notes": list(self.notes), "nodes": nodes}


def ask(
    pool: NodePool, desired: Desired, observed: Observed, secrets: SecretStore
) -> list[PlacementFits]:
    """Every placement on each node that it means, by name.

    `secrets` is the folder of this machine; where another one acts, its own is what counts.
    """
    from reconciler.core.trials import trials
    from reconciler.nodes.secretstore import Snapshot

    made, known = trials(desired, observed), Snapshot(secrets)
    by_node: dict[str, list[int]] = {}
    for number, trial in enumerate(made.each):
        by_node.setdefault(trial.node, []).append(number)
    told: dict[int, Fit] = {}

    def ask_node(node: str) -> None:
        for number in by_node[node]:
            told[number] = _ask_one(pool, desired, made.each[number], known)

    pool.each(sorted(by_node), ask_node)
    fits: dict[str, list[Fit]] = {name: [] for name in sorted(desired.placements)}
    for number in sorted(told):
        fits[told[number].placement].append(told[number])
    return [_judged(desired, name, found, made.homeless) for name, found in fits.items()]


def _judged(
    desired: Desired, placement: str, fits: Sequence[Fit], homeless: Mapping[str, str]
) -> PlacementFits:
    from reconciler.nodes.sizes import differing

    if placement in homeless:
        return PlacementFits(placement, tuple(fits), (homeless[placement],))
    said = tuple(differing({fit.node: fit.sizes for fit in fits}))
    # Ranks must agree; two replicas of one node each may, for a while, run from two copies.
    several = desired.resolved(desired.placements[placement]).profile.nodes > 1
    return PlacementFits(placement, tuple(fits), said if several else (), () if several else said)


def _ask_one(pool: NodePool, desired: Desired, trial: Trial, known: Snapshot) -> Fit:
    from reconciler.core.codec import to_json
    from reconciler.errors import NodeError
    from reconciler.nodes.protocol import explain

    fit = Fit(trial.placement, trial.node, trial.runs)
    if trial.shard is None:
        found = (trial.why,) if trial.broken else ()
        return Fit(fit.placement, fit.node, fit.runs, "" if found else trial.why, found)
    try:
        spec = to_json(trial.shard.spec)
        said = pool.request(desired, trial.node, "check", spec=spec, replaces=trial.replaces)
    except NodeError as error:
        return Fit(fit.placement, fit.node, fit.runs, findings=(explain(error),))
    lacks = known.lacks(trial.shard.spec.get("secrets", ()))
    findings = (*_texts(said, "findings"), *filter(None, [lacks]))
    sizes = said.get("sizes") or {}
    return Fit(fit.placement, fit.node, fit.runs, "", findings, _texts(said, "notes"), sizes)


def _texts(said: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(map(str, said.get(key) or ()))
