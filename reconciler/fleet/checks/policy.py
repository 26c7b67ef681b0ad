"""Settings that contradict themselves: a rollout that never goes on, ports that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reconciler.core.changes import Reason
from reconciler.core.model import PER_NODE, Fleet, Placement, Profile
from reconciler.fleet.findings import Finding
from reconciler.fleet.repo import Entry, Repo

EPHEMERAL = (32768, 60999)
"""`net.ipv4.ip_local_port_range` as Linux ships it."""


def check(repo: Repo) -> Iterator[Finding]:
    """Findings about Fleet and Placement settings."""
    for entry in repo.of("Fleet").values():
        yield from _fleet(repo, entry, entry.value)
    profiles = repo.values("Profile")
    for entry in repo.of("Placement").values():
        yield from _placement(repo, entry, entry.value, profiles)


def _fleet(repo: Repo, entry: Entry, fleet: Fleet) -> Iterator[Finding]:
    ports = fleet.ports
    failed = Reason.INFEASIBLE
    if ports.first > ports.last:
        message = f"the first port {ports.first} is above the last {ports.last}"
        yield repo.finding(entry, ("ports",), message, "swap them", reason=failed)
    elif ports.first <= EPHEMERAL[1] and ports.last >= EPHEMERAL[0]:
        message = (
            f"{ports.first} to {ports.last} reaches into the kernel's ephemeral range"
            f" ({EPHEMERAL[0]} to {EPHEMERAL[1]})"
        )
        hint = "any client's socket could hold such a port: stay below 32768, as in 20000 to 29999"
        yield repo.finding(entry, ("ports",), message, hint, reason=failed)
    if fleet.max_parallel.count == 0:
        message = "0 replicas in transition: nothing could ever be replaced"
        hint = "use 1 or more, or 'freeze' to stop changes"
        yield repo.finding(entry, ("max_parallel",), message, hint, reason=failed)
    limit = fleet.max_unavailable_per_model
    if limit is not None and limit.of(1_000_000) == 0:
        message = "0 replicas of a model may be unavailable: full nodes could never be updated"
        hint = "use 1 or more, or leave it out"
        yield repo.finding(
            entry, ("max_unavailable_per_model",), message, hint, reason=failed, warning=True
        )
    if fleet.unhealthy_after_s < fleet.interval_s:
        message = f"{fleet.unhealthy_after_s} s is less than one pass ({fleet.interval_s} s)"
        hint = "a replica must be seen failing more than once: raise it"
        yield repo.finding(
            entry, ("unhealthy_after_s",), message, hint, reason=failed, warning=True
        )


def _placement(
    repo: Repo, entry: Entry, placement: Placement, profiles: Mapping[str, Profile]
) -> Iterator[Finding]:
    rollout = placement.rollout
    if rollout.max_unavailable == 0 and rollout.max_surge == 0:
        message = "max_unavailable 0 and max_surge 0: no replica could ever be replaced"
        hint = "allow one of the two to be 1"
        yield repo.finding(entry, ("rollout",), message, hint, reason=Reason.INFEASIBLE)
    profile = profiles.get(placement.profile)
    if profile is None:
        return
    if placement.replicas == PER_NODE and profile.nodes > 1:
        message = f"per-node, and a replica of profile {profile.name} takes {profile.nodes} nodes"
        hint = "give a number of replicas"
        yield repo.finding(entry, ("replicas",), message, hint, reason=Reason.INFEASIBLE)
    if profile.bootstrap == "fabric" and not placement.fabric:
        message = f"profile {profile.name} lets its ranks meet on the fabric, and none is named"
        hint = "name a fabric, or use a profile with 'bootstrap: management'"
        yield repo.finding(entry, (), message, hint, reason=Reason.INFEASIBLE)
