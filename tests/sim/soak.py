"""A great many stories on several processes: `python -m tests.sim.soak 0..100000 --jobs 4`.

Prints how far it is, and for each seed that breaks a rule the one command that plays it again. Ends
at the last seed, after `--minutes`, or after ten broken seeds, and says exactly how many it played.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice

from tests.sim.scenario import Broken, Story

BATCH = 50
TELL_EVERY_S = 30.0
ENOUGH = 10
"""Broken seeds after which more would tell nothing new."""


def play(seed: int) -> str:
    """What is wrong with a seed's story; empty: nothing."""
    try:
        Story(seed).play()
    except Broken as broken:
        return str(broken)
    except Exception as crash:  # noqa: BLE001  the edge of a worker: a crash is a finding too
        return (
            f"seed {seed}: {type(crash).__name__}: {crash}\n"
            f"play it again: python -m tests.sim.replay {seed}"
        )
    return ""


def play_batch(seeds: range) -> tuple[int, list[str]]:
    """How many were played, and what broke."""
    return len(seeds), [said for seed in seeds if (said := play(seed))]


def batches(seeds: range) -> Iterator[range]:
    return (seeds[first : first + BATCH] for first in range(0, len(seeds), BATCH))


def soak(seeds: range, jobs: int, minutes: float) -> int:
    """Exit code 1 where a seed broke a rule, else 0."""
    began = told = time.monotonic()
    played, broken = 0, 0
    ahead = batches(seeds)
    with ProcessPoolExecutor(jobs) as pool:
        running: set[Future[tuple[int, list[str]]]] = {
            pool.submit(play_batch, batch) for batch in islice(ahead, 2 * jobs)
        }
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                count, found = future.result()
                played += count
                broken += len(found)
                for said in found:
                    print(said, flush=True)
            now = time.monotonic()
            if now - told >= TELL_EVERY_S:
                told = now
                rate = played / (now - began)
                print(f"{played} of {len(seeds)} seeds, {broken} broken, {rate:.0f}/s", flush=True)
            if now - began < 60 * minutes and broken < ENOUGH:
                running |= {pool.submit(play_batch, b) for b in islice(ahead, len(done))}
    took = time.monotonic() - began
    whole = "all" if played == len(seeds) else "not all"
    print(f"{played} of {len(seeds)} seeds played ({whole}), {broken} broken, in {took:.0f} s")
    return 1 if broken else 0


def seed_range(text: str) -> range:
    """`4711`, or `0..1000` without its end."""
    first, _, last = text.partition("..")
    return range(int(first), int(last) if last else int(first) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", type=seed_range)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=240.0)
    given = parser.parse_args()
    return soak(given.seeds, max(1, given.jobs), given.minutes)


if __name__ == "__main__":
    raise SystemExit(main())
