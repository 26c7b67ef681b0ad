"""Play seeds again: `python -m tests.sim.replay 4711` or a range, `0..1000`."""

from __future__ import annotations

import argparse
import time

from tests.sim.scenario import Broken, Story
from tests.sim.soak import seed_range


def main() -> int:
    """Prints the story of a single seed, or only what broke of many."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds")
    parser.add_argument("--bugs", default="")
    given = parser.parse_args()
    bugs = frozenset(filter(None, given.bugs.split(",")))
    seeds = seed_range(given.seeds)
    began, broken = time.monotonic(), 0
    for seed in seeds:
        story = Story(seed, bugs)
        try:
            story.play()
        except Broken as error:
            broken += 1
            print(error, flush=True)
        if len(seeds) == 1:
            print("\n".join(story.log))
    took = time.monotonic() - began
    print(f"{len(seeds)} seeds, {broken} broken, {len(seeds) / took:.0f} seeds a second")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
