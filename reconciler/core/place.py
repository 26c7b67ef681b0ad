"""Which nodes and GPUs a replica gets, or for each node why it does not fit.

Placement is sticky: a replica goes back to the nodes and GPUs that it had wherever these still
fit. Else it is spread or packed. The choice depends on the arguments alone: equal situations give
equal places, whatever the order of files, nodes or answers.

Nothing in here knows budgets or verdicts: who may be placed, and when, is `plan`'s business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from reconciler.core import blocks
from reconciler.core.access import Access
from reconciler.core.changes import Seat
from reconciler.core.fit import (
    BARRED,
    Ask,
    Candidate,
    NoFit,
    fabric_refusal,
    likeness,
    meant,
    short_of,
    sum_up,
)
from reconciler.core.model import Desired, Node, NodeState
from reconciler.core.observed import NodeAnswer
from reconciler.core.occupancy import NOBODY, STRANGER, Ledger
from reconciler.core.ranking import Like, Preference, Scan, preference
from reconciler.core.verdict import Quarantine
from reconciler.core.words import plural

FAILURES_BEFORE_MOVE = 2
"""Starts that fail on one node before another one that fits is tried: the first failure may be
chance, the third in one place would reject the profile without a second opinion."""


Rank = tuple[bool, bool, Preference]


class Placer:
    """Places replicas one after the other; what `take` gives is gone for the next."""

    def __init__(
        self,
        desired: Desired,
        access: Access,
        ledger: Ledger,
        quarantines: Sequence[Quarantine],
        beside: Mapping[str, Mapping[str, int]],
    ) -> None:
        self._desired = desired
        self._access = access
        self._ledger = ledger
        self._sick = {q.node: q.reason for q in quarantines if not q.gpus}
        self._sick_gpus = {q.node: frozenset(q.gpus) for q in quarantines if q.gpus}
        self._beside = {placement: dict(nodes) for placement, nodes in beside.items()}
        """Placement → node → its live launches there."""
        self._scans: dict[tuple[object, ...], Scan] = {}
        self._taken: list[str] = []
        """Nodes of all that was given away, in order."""

    def place(self, ask: Ask) -> tuple[Seat, ...] | None:
        """Seats in rank order, without taking them; None: `explain` says why not."""
        group = self._best_group(ask, self._scan(ask))
        return self._seats(ask, group) if group else None

    def explain(self, ask: Ask) -> NoFit:
        """Why an ask has no place, for every node that its placement means."""
        scan, nodes = self._scan(ask), ask.resolved.profile.nodes
        if nodes in scan.why and not ask.without:
            return scan.why[nodes]
        fits, refused = self._found(ask)
        why = NoFit(sum_up(ask, fits, refused), dict(refused))
        if not ask.without:
            scan.why[nodes] = why
        return why

    def fits(self, ask: Ask) -> tuple[list[Candidate], Mapping[str, str]]:
        """Each node that it fits on now, and for the others that it means why not."""
        return self._found(ask)

    def lacking(self, ask: Ask) -> int | None:
        """How many more GPUs must be free for it to fit; None: free GPUs alone would not do."""
        count = ask.resolved.profile.gpus_per_node
        short = []
        for node in self._scan(ask).scope.values():
            use = self._ledger.use(node.name)
            if self._refusal(ask, node) or use.error or len(use.slots) < count:
                continue
            sick = self._sick_gpus.get(node.name, NOBODY)
            free = [s for s in use.free(frozenset(ask.without)) if s.uuid not in sick]
            short.append(max(0, count - len(free)))
        nodes = ask.resolved.profile.nodes
        return sum(sorted(short)[:nodes]) or None if len(short) >= nodes else None

    def take(self, placement: str, launch: str, seats: Iterable[Seat]) -> None:
        """Nobody else gets these seats in this pass."""
        beside = self._beside.setdefault(placement, {})
        for seat in seats:
            self._ledger.take(seat.node, launch, seat.gpus)
            beside[seat.node] = beside.get(seat.node, 0) + 1
            self._taken.append(seat.node)

    # --- which nodes ---------------------------------------------------------------------------

    def _found(self, ask: Ask) -> tuple[list[Candidate], Mapping[str, str]]:
        """What fits the ask now, and why the other nodes do not."""
        scan = self._scan(ask)
        again = _roomier(ask) & scan.scope.keys()
        fits = [c for name, found in scan.fits.items() if name not in again for c in found]
        if not again:
            return fits, scan.refused
        refused = {n: why for n, why in scan.refused.items() if n not in again}
        for name in sorted(again):
            found, why = self._look(ask, scan.scope[name])
            fits += found
            if why:
                refused[name] = why
        return fits, refused

    def _scan(self, ask: Ask) -> Scan:
        """What was found for this kind of ask, brought up to date."""
        profile, needs = ask.resolved.profile, ask.resolved.profile.needs
        placement = ask.placement
        # All that `meant` and `_look` read, and not the placement's name: most of them ask alike.
        key = (
            placement.pool,
            placement.nodes,
            tuple(sorted(placement.selector.items())),
            placement.fabric,
            ask.only,
            ask.mixed,
            profile.gpu_class,
            profile.gpus_per_node,
            (needs.ram_gib, needs.shm_gib, needs.gpu_memory_gib),
        )
        scan = self._scans.get(key)
        if scan is None:
            scope = {node.name: node for node in self._nodes(ask.only) if meant(ask, node)}
            scan = self._scans[key] = Scan(scope)
            dirty: Collection[str] = scope
        else:
            dirty = sorted(scan.scope.keys() & set(self._taken[scan.seen :]))
        scan.seen = len(self._taken)
        if dirty:
            scan.why.clear()
        plain = replace(ask, without={}) if ask.without else ask
        for name in dirty:
            scan.fits.pop(name, None)
            scan.refused.pop(name, None)
            found, why = self._look(plain, scan.scope[name])
            if why:
                scan.refused[name] = why
            else:
                scan.fits[name] = found
        return scan

    def _nodes(self, only: str) -> Iterable[Node]:
        """All in order of name; a replica that belongs to one node needs no look at the others."""
        nodes = self._desired.nodes
        if only:
            return (nodes[only],) if only in nodes else ()
        return (nodes[name] for name in sorted(nodes))

    def _look(self, ask: Ask, node: Node) -> tuple[tuple[Candidate, ...], str]:
        """The candidates that a node makes for an ask, or why it makes none."""
        refusal = self._refusal(ask, node)
        return ((), refusal) if refusal else self._candidates(ask, node)

    def _refusal(self, ask: Ask, node: Node) -> str:
        """First reason of the list why `node` gets nothing of this placement."""
        profile = ask.resolved.profile
        if node.name in self._desired.departed:
            return "left the repo"
        if node.state is not NodeState.ACTIVE:
            return str(node.state)
        if node.name in self._access.barred:
            return BARRED.get(self._access.barred[node.name][0], "held")
        if node.name in self._sick:
            return f"quarantined ({self._sick[node.name]})"
        if profile.gpu_class and node.gpus.klass != profile.gpu_class:
            return f"has GPUs of class {node.gpus.klass or 'none'}"
        return fabric_refusal(ask.placement.fabric, node, self._access.answers[node.name])

    def _candidates(self, ask: Ask, node: Node) -> tuple[tuple[Candidate, ...], str]:
        """One for each type of GPU that the node has enough of, or why it has not."""
        profile = ask.resolved.profile
        use = self._ledger.use(node.name)
        if use.error:
            return (), f"has {use.error}"
        # What the replica's own launch gives back cannot be told; without this a model that fills
        # most of a node's memory could never be replaced in place.
        makes_room = any(node.name in nodes for nodes in ask.without.values())
        short = short_of(profile.needs.ram_gib, profile.needs.shm_gib, self._answer(node))
        if short and not makes_room:
            return (), short
        sick = self._sick_gpus.get(node.name, NOBODY)
        slots = [s for s in use.free(frozenset(ask.without)) if s.uuid not in sick]
        least = profile.needs.gpu_memory_gib * 1024
        large = [s for s in slots if s.memory_mib is None or s.memory_mib >= least]
        count = profile.gpus_per_node
        kinds = {""} if ask.mixed or count == 0 else {s.kind for s in large}
        found = []
        for kind in sorted(kinds):
            gpus = tuple(s for s in large if not kind or s.kind == kind)
            if len(gpus) >= count:
                spans = blocks.spans(gpus, count)
                found.append(Candidate(node, gpus, likeness(ask, node, kind), spans))
        if found:
            return tuple(found), ""
        if len(slots) >= count > len(large):
            return (), f"has {plural(len(large), 'GPU')} of {profile.needs.gpu_memory_gib} GiB"
        if len(large) >= count:
            return (), f"has {len(large)} free GPUs of unlike types"
        strangers = sum(STRANGER in " ".join(use.holders.get(s.uuid, ())) for s in use.slots)
        more = f" ({strangers} with {STRANGER}'s process)" if strangers else ""
        return (), f"has {plural(len(large), 'free GPU')} of {len(use.slots)}{more}"

    def _answer(self, node: Node) -> NodeAnswer:
        return self._access.answers[node.name]

    # --- which of them -------------------------------------------------------------------------

    def _best_group(self, ask: Ask, scan: Scan) -> list[Candidate] | None:
        """The best nodes that are like each other, as many as the replica has ranks."""
        count = ask.resolved.profile.nodes
        before = {place.node for place in ask.previous}
        apart = before | _roomier(ask) | {n for n in ask.failures if _worn(ask, n)}
        special = self._special(ask, scan, apart)
        beside = self._beside.get(ask.placement.name, {})
        ranking = scan.ranking(ask.placement, beside, self._taken)
        best: tuple[tuple[int, int, int, Like], list[Candidate]] | None = None
        for like in sorted({*special, *ranking.likes()}):
            members = [*special.get(like, ()), *ranking.best(like, count, apart)]
            if len(members) < count:
                continue
            ranked = [(self._rank(ask, before, c), c) for c in members]
            chosen = [c for _, c in sorted(ranked, key=_first)[:count]]
            worn = sum(_worn(ask, c.node.name) for c in chosen)
            kept = sum(c.node.name in before for c in chosen)
            score = (worn, -kept, sum(c.spans for c in chosen), like)
            if best is None or score < best[0]:
                best = score, chosen
        return best[1] if best else None

    def _special(self, ask: Ask, scan: Scan, nodes: set[str]) -> Mapping[Like, list[Candidate]]:
        """What the nodes with which this very replica has a history have for it."""
        found: dict[Like, list[Candidate]] = {}
        roomier = _roomier(ask)
        for name in nodes & scan.scope.keys():
            anew = name in roomier
            fits = self._look(ask, scan.scope[name])[0] if anew else scan.fits.get(name, ())
            for candidate in fits:
                found.setdefault(candidate.like, []).append(candidate)
        return found

    def _rank(self, ask: Ask, before: set[str], candidate: Candidate) -> Rank:
        """Lowest first: not worn out, where it was, then as all replicas of its placement."""
        name = candidate.node.name
        near = self._beside.get(ask.placement.name, {}).get(name, 0)
        liked = preference(candidate, near, spread=ask.placement.spread)
        return _worn(ask, name), name not in before, liked

    def _seats(self, ask: Ask, group: list[Candidate]) -> tuple[Seat, ...]:
        """Ranks keep their nodes where these stay; the rest fills the gaps in order."""
        had = {p.rank: p for p in ask.previous}
        left = {c.node.name: c for c in group}
        ranks: dict[int, Candidate] = {}
        for rank in range(len(group)):
            if rank in had and had[rank].node in left:
                ranks[rank] = left.pop(had[rank].node)
        rest = iter(left.values())
        seats = []
        for rank in range(len(group)):
            chosen = ranks[rank] if rank in ranks else next(rest)
            same = rank in had and had[rank].node == chosen.node.name
            gpus = blocks.choose(
                chosen.gpus,
                ask.resolved.profile.gpus_per_node,
                had[rank].gpus if same else (),
                self._ledger.use(chosen.node.name).slots,
            )
            seats.append(Seat(chosen.node.name, gpus))
        return tuple(seats)


def _roomier(ask: Ask) -> set[str]:
    """Nodes on which something will have ended by then that is still there."""
    return {node for nodes in ask.without.values() for node in nodes}


def _worn(ask: Ask, node: str) -> bool:
    return ask.failures.get(node, 0) >= FAILURES_BEFORE_MOVE


def _first(ranked: tuple[Rank, Candidate]) -> Rank:
    return ranked[0]
