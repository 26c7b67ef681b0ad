"""Groups of GPUs from what is known of each pair."""

from __future__ import annotations

from itertools import combinations

from reconciler.agent.links import Pairs, groups, numa_node


def pairs(count: int, linked: set[tuple[int, int]], unknown: frozenset[int] = frozenset()) -> Pairs:
    found: Pairs = {}
    for one, other in combinations(range(count), 2):
        dark = one in unknown or other in unknown
        found[one, other] = None if dark else (one, other) in linked
    return found


def test_a_mesh_in_which_not_all_reach_all_is_cut_into_groups_that_do() -> None:
    # A DGX-1: two fours, each GPU linked with its own place in the other four as well.
    fours = {p for four in (range(4), range(4, 8)) for p in combinations(four, 2)}
    across = {(i, i + 4) for i in range(4)}
    assert groups(8, pairs(8, fours | across)) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_chain_is_no_group() -> None:
    assert groups(3, pairs(3, {(0, 1), (1, 2)})) == [0, 0, 1]


def test_one_gpu_of_which_nothing_is_known_takes_nothing_from_the_others() -> None:
    every = set(combinations(range(4), 2))
    assert groups(4, pairs(4, every, unknown=frozenset({1}))) == [0, None, 0, 0]
    assert groups(4, pairs(4, every, unknown=frozenset(range(4)))) == [None] * 4


def test_a_lone_gpu_is_a_group_of_its_own() -> None:
    assert groups(1, {}) == [0]
    assert groups(0, {}) == []


def test_the_numa_node_is_read_by_the_kernels_name_of_the_device() -> None:
    told = {"/sys/bus/pci/devices/0000:1b:00.0/numa_node": "1"}
    assert numa_node("00000000:1B:00.0", lambda path: told.get(path, "")) == 1
    assert numa_node("00000000:1B:00.0", lambda path: "-1") is None
    assert numa_node("00000000:1C:00.0", lambda path: told.get(path, "")) is None
    assert numa_node("", lambda path: "0") is None
