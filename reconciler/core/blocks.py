"""Which of a node's free GPUs a rank gets: those it had, else a block that NVLink joins.

GPUs that reach each other through the host only can cost a tensor-parallel rank most of its speed,
and nothing in a log says so. So a block stays inside one NVLink group where any has room; which
one, and where in it, is chosen so that the room for larger blocks is kept: the fullest group that
fits, then the fullest pair, four, eight around it (buddy allocation). Groups that are not known
are taken for one, by index: boards join neighbours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from reconciler.core.occupancy import GpuSlot

Group = Mapping[int, GpuSlot]
"""Place in the group, counted over all of its GPUs → those of them that are free."""


def choose(
    free: Sequence[GpuSlot],
    count: int,
    before: Collection[str] = (),
    every: Sequence[GpuSlot] = (),
) -> tuple[str, ...]:
    """`count` of the free GPUs, by index: those of `before` where all of them are free.

    `every`: all GPUs of the node; without it, the free ones are taken for all.
    """
    mine = [s for s in free if s.uuid in before]
    if len(mine) >= count:
        return _named(_by_index(mine)[:count])
    groups = _groups(free, every or free)
    ranked = [
        (_overlap(block, before), len(group) - count, *rank, block)
        for group in groups
        if len(group) >= count
        for rank, block in _blocks(group, count, before)
    ]
    if ranked:
        return _named(min(ranked, key=lambda r: (r[0], r[1], r[2], r[3], r[4][0].index))[4])
    return _named(_over_groups(groups, count))


def spans(free: Sequence[GpuSlot], count: int) -> int:
    """Over how many NVLink groups `count` of the free GPUs lie at best; 1 where none is known."""
    sizes: dict[int | None, int] = {}
    for slot in free:
        sizes[slot.group] = sizes.get(slot.group, 0) + 1
    left, used = count, 0
    for size in sorted(sizes.values(), reverse=True):
        used += 1
        left -= size
        if left <= 0:
            break
    return used


def joined(every: Sequence[GpuSlot], gpus: Collection[str]) -> int:
    """Over how many NVLink groups these GPUs lie; 1 where NVLink joins none on this node."""
    if not _are_linked(every):
        return 1
    return len({s.group for s in every if s.uuid in gpus})


def _are_linked(every: Sequence[GpuSlot]) -> bool:
    known = [s.group for s in every if s.group is not None]
    return len(set(known)) < len(known)


def _groups(free: Sequence[GpuSlot], every: Sequence[GpuSlot]) -> list[Group]:
    """By number; where NVLink joins nothing, all of the node is one."""
    if not _are_linked(every):
        return [{slot.index: slot for slot in free}]
    places: dict[str, int] = {}
    sizes: dict[int | None, int] = {}
    for slot in sorted(every, key=lambda s: (s.index, s.uuid)):
        places[slot.uuid] = sizes.get(slot.group, 0)
        sizes[slot.group] = places[slot.uuid] + 1
    found: dict[int | None, dict[int, GpuSlot]] = {}
    for slot in free:
        found.setdefault(slot.group, {})[places[slot.uuid]] = slot
    return [found[g] for g in sorted(found, key=lambda g: (g is None, g or 0))]


Rank = tuple[int, tuple[int, ...]]
"""Lowest first: how far from an aligned block; then how much is free around it, near to far."""


def _blocks(
    group: Group, count: int, before: Collection[str]
) -> Iterator[tuple[Rank, list[GpuSlot]]]:
    """Candidates inside one group: of every aligned block that has room, the smallest first."""
    mask = sum(1 << place for place in group)
    size, level = 1, 0
    while size < count:
        size *= 2
    while True:
        found = False
        for first in sorted({place - place % size for place in group}):
            inside = [p for p in range(first, first + size) if p in group]
            if len(inside) > count:
                inside.sort(key=lambda p: (group[p].uuid not in before, *_around(mask, p, 1), p))
            if len(inside) >= count:
                found = True
                block = [group[p] for p in inside[:count]]
                yield (level, _around(mask, first, size)), _by_index(block)
        # Only for the sake of what it had may a rank get a block that is less aligned.
        if size > max(group, default=0) or (found and not before):
            return
        size, level = 2 * size, level + 1


def _around(mask: int, place: int, size: int) -> tuple[int, ...]:
    """How many are free in the blocks of the size, of twice, four times, … that hold this place.

    `mask` has a bit for each place that is free: this is asked for every GPU of every start.
    """
    counts = []
    while True:
        first = place - place % size
        counts.append((mask >> first & (1 << size) - 1).bit_count())
        if size >= mask.bit_length():
            return tuple(counts)
        size *= 2


def _over_groups(groups: Sequence[Group], count: int) -> list[GpuSlot]:
    """No group has room for all: as few groups as possible, the last of them the fullest one."""
    left = sorted(groups, key=len, reverse=True)
    taken: list[GpuSlot] = []
    while left and len(taken) < count:
        need = count - len(taken)
        enough = [g for g in left if len(g) >= need]
        group = enough[-1] if enough else left[0]
        left.remove(group)
        if enough:
            taken += min(_blocks(group, need, ()), key=lambda b: (b[0], b[1][0].index))[1]
        else:
            taken += group.values()
    return _by_index(taken)


def _overlap(block: Sequence[GpuSlot], before: Collection[str]) -> int:
    return -sum(slot.uuid in before for slot in block)


def _by_index(block: Sequence[GpuSlot]) -> list[GpuSlot]:
    return sorted(block, key=lambda slot: (slot.index, slot.uuid))


def _named(block: Sequence[GpuSlot]) -> tuple[str, ...]:
    return tuple(slot.uuid for slot in block)
