"""Random fleets, edits and faults: no rule is ever broken, and every story comes to rest.

More seeds: `make soak`, or `python -m tests.sim.replay 0..1000` in one process.
"""

from __future__ import annotations

import pytest

from tests.sim.scenario import Story

SEEDS = 1000
BATCH = 50


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_no_rule_is_broken_and_every_story_comes_to_rest(first: int) -> None:
    for seed in range(first, first + BATCH):
        Story(seed).play()


def test_a_seed_plays_the_same_story_to_the_letter() -> None:
    assert Story(11).play().log == Story(11).play().log
