"""Which GPUs a rank gets: blocks that NVLink joins, placed so that larger ones stay free."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.core.blocks import choose, joined, spans
from reconciler.core.model import GpuInventory, Node
from reconciler.core.observed import NodeAnswer
from reconciler.core.occupancy import GpuSlot, read_node


def test_declared_gpus_are_given_by_the_groups_that_the_document_tells() -> None:
    inventory = GpuInventory("h100", 4, "declared", link_groups=((0, 3), (1, 2)))
    node = Node("n", "10.0.0.1", "p", inventory)
    listed = read_node(node, NodeAnswer("1.0", "m", "b")).slots
    assert choose(listed, 2) == ("n-gpu-0", "n-gpu-3")
    assert choose(listed[1:], 2) == ("n-gpu-1", "n-gpu-2")
    lone = replace(node, gpus=replace(inventory, link_groups=((1, 2),)))
    # A single GPU is taken from those that no link would miss.
    assert choose(read_node(lone, NodeAnswer("1.0", "m", "b")).slots, 1) == ("n-gpu-0",)
    assert choose(read_node(lone, NodeAnswer("1.0", "m", "b")).slots[1:], 1) == ("n-gpu-3",)


def slots(*free: int, groups: dict[int, int] | None = None) -> list[GpuSlot]:
    return [GpuSlot(f"G{i}", i, "h100", None, (groups or {}).get(i)) for i in free]


def test_gpus_of_before_then_an_nvlink_group_then_an_aligned_block() -> None:
    assert choose(slots(0, 1, 2, 3), 2, ("G3", "G1")) == ("G1", "G3")
    assert choose(slots(0, 1, 2), 2, ("G2",)) == ("G0", "G2")
    halves = {i: i // 4 for i in range(8)}
    assert choose(slots(1, 2, 3, 4, 5, groups=halves), 2) == ("G4", "G5")
    assert choose(slots(2, 3, 4, 5, 6, 7, groups=halves), 4) == ("G4", "G5", "G6", "G7")
    assert choose(slots(1, 2, 3), 2) == ("G2", "G3")
    assert choose(slots(1, 3, 5), 2) == ("G1", "G3"), "near each other"
    assert choose(slots(0, 1), 0) == ()


HALVES = {i: i // 4 for i in range(8)}


def of_node(groups: dict[int, int] | None, *free: int) -> tuple[list[GpuSlot], list[GpuSlot]]:
    """Free ones, and all eight."""
    return slots(*free, groups=groups), slots(*range(8), groups=groups)


def chosen(groups: dict[int, int] | None, free: tuple[int, ...], count: int) -> list[int]:
    some, every = of_node(groups, *free)
    return [int(uuid[1:]) for uuid in choose(some, count, (), every)]


def test_the_group_that_is_left_least_open_gives() -> None:
    assert chosen(HALVES, (0, 1, 2, 3, 4, 5), 2) == [4, 5]
    assert chosen(HALVES, (0, 1, 2, 3, 6), 1) == [6]


def test_inside_a_group_the_fullest_neighbourhood_gives_so_that_larger_blocks_stay_whole() -> None:
    switch = dict.fromkeys(range(8), 0)
    assert chosen(switch, (0, 1, 2, 3, 6, 7), 2) == [6, 7]
    assert chosen(switch, (0, 1, 2, 3, 5, 6, 7), 1) == [5]
    assert chosen(switch, (1, 2, 3, 4, 5, 6, 7), 4) == [4, 5, 6, 7]
    assert chosen(switch, (0, 1, 2, 5, 6, 7), 4) == [0, 1, 2, 5], "no aligned one: singles first"


def test_alignment_counts_over_all_gpus_of_a_group_busy_ones_too() -> None:
    stripes = {i: i % 2 for i in range(8)}
    assert chosen(stripes, (2, 4, 6), 2) == [4, 6]


def test_a_size_that_is_no_power_of_two_is_kept_inside_the_next_one() -> None:
    switch = dict.fromkeys(range(8), 0)
    assert chosen(switch, (0, 2, 3, 4, 5, 6, 7), 3) == [0, 2, 3]


def test_over_groups_as_few_as_possible() -> None:
    pairs = {i: i // 2 for i in range(8)}
    assert chosen(pairs, (0, 2, 3, 4, 6, 7), 4) == [2, 3, 6, 7]
    assert chosen(pairs, (0, 2, 3, 4, 6, 7), 3) == [2, 3, 4]
    assert chosen({0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1, 7: 1}, (1, 2, 3, 6, 7), 4) == [
        1,
        2,
        3,
        6,
    ]


def test_what_it_had_counts_before_a_better_block() -> None:
    some, every = of_node(HALVES, 0, 1, 2, 3, 5)
    assert choose(some, 2, ("G3", "G5"), every) == ("G3", "G5")
    assert choose(some, 2, ("G3", "G7"), every) == ("G2", "G3")


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[GpuSlot], list[GpuSlot], int]:
    """Some free GPUs of a node in groups or none, and how many are asked for."""
    size = draw(st.sampled_from([2, 4, 8, 16]))
    group = st.sampled_from([None, 0, 0, 1, 1, 2, 3])
    told = draw(st.lists(group, min_size=size, max_size=size))
    every = [GpuSlot(f"G{i:02d}", i, "h100", None, g) for i, g in enumerate(told)]
    free = [slot for slot in every if draw(st.booleans())] or every
    return free, every, draw(st.integers(0, len(free)))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(situations(), st.randoms(use_true_random=False))
def test_a_choice_is_free_of_the_right_size_never_in_more_groups_than_needed_and_order_free(
    found: tuple[list[GpuSlot], list[GpuSlot], int], rng: object
) -> None:
    free, every, count = found
    made = choose(free, count, (), every)
    assert len(set(made)) == len(made) == count
    assert set(made) <= {s.uuid for s in free}
    if count:
        assert joined(every, made) <= spans(free, count)
    for mixed in (free, every):
        rng.shuffle(mixed)  # type: ignore[attr-defined]
    assert choose(free, count, (), every) == made
    assert choose(free, count, made, every) == made, "sticky"


@settings(max_examples=200, deadline=None, derandomize=True)
@given(situations())
def test_an_aligned_block_is_taken_wherever_a_group_that_fits_best_has_one(
    found: tuple[list[GpuSlot], list[GpuSlot], int],
) -> None:
    free, every, _ = found
    linked = [s for s in every if s.group == 0]
    open_ = [s for s in free if s.group == 0]
    for count in (1, 2, 4, 8):
        aligned = [
            {s.uuid for s in linked[first : first + count]}
            for first in range(0, len(linked) - count + 1, count)
        ]
        whole = [block for block in aligned if block <= {s.uuid for s in open_}]
        if whole and len(linked) > 1:
            assert set(choose(open_, count, (), linked)) in whole
