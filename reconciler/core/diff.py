"""Desired against observed: exactly one verdict for each launch, and one for each replica.

The order of work: put launches together (views), choose which replicas are wanted (wanted), pair
renames (rename), choose each replica's profile (effective), then judge (verdicts). What cannot be
seen is added at the end (unseen), and what holds for many at once (brakes). Nothing is decided
here about what to do, and nothing depends on the order of files, nodes or answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

from reconciler.core import brakes, quarantine, rename, views, wanted
from reconciler.core.catalog import Catalog
from reconciler.core.endings import ending
from reconciler.core.model import Desired
from reconciler.core.observed import ApprovedChange, Observed
from reconciler.core.replicas import Pass
from reconciler.core.verdict import Diff
from reconciler.core.verdicts import Case, judge
from reconciler.core.wanted import Group, Want


def diff(desired: Desired, observed: Observed, *, shortcut: bool = True) -> Diff:
    """All verdicts of one pass. Linear in shards; equal situations give equal answers.

    Without `shortcut` even what plainly matches is judged rule by rule, ten times as slowly; a
    property test holds that the answer is the same.
    """
    catalog = Catalog(desired)
    sightings = views.gather(desired, observed, catalog, shortcut=shortcut)
    groups = wanted.group(sightings.launches)
    chosen, renamed = _choose(catalog, groups)
    retries = _retries(desired, observed)
    pass_ = Pass(
        catalog,
        sightings,
        groups,
        chosen,
        renamed,
        retries,
        shortcut,
        observed,
        _approved(desired, observed),
    )
    replicas = list(pass_.wanted_replicas())
    unwanted = list(pass_.unwanted_replicas())
    if unwanted:
        replicas = sorted([*replicas, *unwanted], key=_by_name)
    after = desired.fleet.unhealthy_after_s
    strays = [
        judge(Case(s, ending(s), catalog, after)) for s in sightings.launches if s.ordinal < 0
    ]
    return Diff(
        replicas=tuple(replicas),
        strays=tuple(sorted(strays, key=lambda j: j.view.launch)),
        strangers=sightings.strangers,
        brakes=brakes.brakes(replicas, desired),
        quarantines=quarantine.quarantines(groups, replicas, desired, observed, retries),
    )


_by_name = attrgetter("placement", "ordinal", "replica")


def _retries(desired: Desired, observed: Observed) -> dict[str, int]:
    """Replica → seq up to which failures are forgiven: the highest that any node's lease says."""
    retries: dict[str, int] = {}
    for look in observed.nodes.values():
        lease = look.answer.lease if look.answer else None
        if lease is not None and lease.fleet == desired.fleet.id:
            for replica, seq in lease.retries.items():
                retries[replica] = max(seq, retries.get(replica, 0))
    return retries


def _approved(desired: Desired, observed: Observed) -> frozenset[ApprovedChange]:
    """What people let through, as any node's lease says."""
    leases = (look.answer.lease for look in observed.nodes.values() if look.answer)
    own = (lease for lease in leases if lease is not None and lease.fleet == desired.fleet.id)
    return frozenset(change for lease in own for change in lease.approvals)


def _choose(
    catalog: Catalog, groups: Mapping[str, Group]
) -> tuple[dict[str, tuple[Want, ...]], dict[str, Group]]:
    """Placement → wanted replicas; and wanted replica → the one that it is renamed from."""
    by_placement = wanted.in_placement(groups)
    chosen = {
        name: wanted.wants(placement, by_placement.get(name, ()), catalog)
        for name, placement in sorted(catalog.desired.placements.items())
    }
    names = {w.replica for own in chosen.values() for w in own}
    unwanted = [g for g in groups.values() if g.replica not in names]
    if not unwanted:
        return chosen, {}
    empty = [
        _empty(catalog, name, want)
        for name, own in chosen.items()
        for want in own
        if _has_no_launch(groups.get(want.replica))
    ]
    return chosen, rename.pair(unwanted, empty, catalog)


def _empty(catalog: Catalog, placement: str, want: Want) -> rename.Empty:
    resolved, fingerprint = catalog.today(placement)
    pool = catalog.desired.placements[placement].pool
    return rename.Empty(want, placement, fingerprint, resolved.model.name, pool)


def _has_no_launch(group: Group | None) -> bool:
    """None but such as were stopped on request."""
    return group is None or all(
        (end is not None and end.on_request) or (s.damage and s.ended) for s, end in group.launches
    )
