"""What nodes offer to asks that are alike, best first, kept so while a pass gives GPUs away.

A start changes one node or two. Looking at every node anew for each start costs the product of both
numbers, seconds for thousands of starts on a thousand nodes; here a start costs what it changes.

The order is that of all asks that are alike. What one replica prefers for reasons of its own
(where it was, where it failed) is `place`'s business: few nodes, which it leaves out here.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from reconciler.core.fit import Candidate, NoFit
from reconciler.core.model import Node, Placement

Preference = tuple[int, int, int, str]
"""Lowest first: NVLink groups, launches of the placement there, how full or empty, then name."""

Like = tuple[str, ...]


def preference(candidate: Candidate, near: int, *, spread: bool) -> Preference:
    """Where NVLink joins its GPUs, then spread (`near`: how many are there already) or pack."""
    free, name = len(candidate.gpus), candidate.node.name
    return (candidate.spans, near, -free, name) if spread else (candidate.spans, 0, free, name)


class Ranking:
    """Candidates best first, apart by what ranks of one replica must share."""

    def __init__(self, *, spread: bool, seen: int) -> None:
        self.seen = seen
        """How much of what was given away is in it; its owner's to keep."""
        self._spread = spread
        self._ranked: dict[Like, list[tuple[Preference, Candidate]]] = {}
        self._entries: dict[str, tuple[tuple[Preference, Candidate], ...]] = {}

    def copy(self) -> Ranking:
        """One that goes its own way from here."""
        other = Ranking(spread=self._spread, seen=self.seen)
        other._ranked = {like: list(ranked) for like, ranked in self._ranked.items()}
        other._entries = dict(self._entries)
        return other

    def put(self, node: str, found: Iterable[Candidate], near: int = 0) -> None:
        """The node makes these candidates now, and no others."""
        for entry in self._entries.pop(node, ()):
            ranked = self._ranked[entry[1].like]
            del ranked[bisect_left(ranked, entry[0], key=_preference)]
        entries = tuple((preference(c, near, spread=self._spread), c) for c in found)
        for entry in entries:
            insort(self._ranked.setdefault(entry[1].like, []), entry, key=_preference)
        if entries:
            self._entries[node] = entries

    def likes(self) -> Iterable[Like]:
        """The kinds of candidates; some may have none left."""
        return self._ranked

    def best(self, like: Like, count: int, but: Collection[str]) -> Sequence[Candidate]:
        """The first `count` of a kind, or as many as there are, without the nodes `but`."""
        found: list[Candidate] = []
        for _, candidate in self._ranked.get(like, ()):
            if len(found) == count:
                break
            if candidate.node.name not in but:
                found.append(candidate)
        return found


def _preference(entry: tuple[Preference, Candidate]) -> Preference:
    return entry[0]


@dataclass
class Scan:
    """What one kind of ask found on each node. Kept, since most asks of a pass are alike."""

    scope: Mapping[str, Node]
    fits: dict[str, tuple[Candidate, ...]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    seen: int = 0
    """How much of what was given away is in it, a length of the `taken` of `ranking`."""
    why: dict[int, NoFit] = field(default_factory=dict)
    """By number of ranks: why such an ask found no place."""
    _plain: dict[bool, Ranking] = field(default_factory=dict)
    """Of placements that spread, and that pack, with nothing beside."""
    _beside: tuple[str, Ranking] | None = None
    """The last placement that asked and has launches on these nodes, with its own ranking. One,
    since a pass places one placement after the other, and all of them would fill the memory."""

    def ranking(
        self, placement: Placement, beside: Mapping[str, int], taken: Sequence[str]
    ) -> Ranking:
        """How a placement prefers the nodes, whatever became of its single replicas.

        `beside`: node → its launches there; `taken`: the nodes of all that was given away, in
        order. The scan itself must be up to date.
        """
        if not placement.spread or not beside:
            return self._plain_ranking(taken, spread=placement.spread)
        if self._beside is None or self._beside[0] != placement.name:
            own = self._plain_ranking(taken, spread=True).copy()
            for name in beside.keys() & self.fits.keys():
                own.put(name, self.fits[name], beside[name])
            self._beside = placement.name, own
        return self._caught_up(self._beside[1], taken, beside)

    def _plain_ranking(self, taken: Sequence[str], *, spread: bool) -> Ranking:
        if spread not in self._plain:
            new = self._plain[spread] = Ranking(spread=spread, seen=len(taken))
            for name, found in self.fits.items():
                new.put(name, found)
        return self._caught_up(self._plain[spread], taken, {})

    def _caught_up(
        self, ranking: Ranking, taken: Sequence[str], beside: Mapping[str, int]
    ) -> Ranking:
        for name in self.scope.keys() & set(taken[ranking.seen :]):
            ranking.put(name, self.fits.get(name, ()), beside.get(name, 0))
        ranking.seen = len(taken)
        return ranking
