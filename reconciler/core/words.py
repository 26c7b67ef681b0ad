"""Counts in sentences: one thing, or several of them."""

from __future__ import annotations


def plural(count: int, word: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def one_or(count: int, one: str, several: str) -> str:
    """Words that go by a count beside it: `is` or `are`."""
    return one if count == 1 else several


def share(count: int, total: int, word: str) -> str:
    """`1 of 1 replica`, `1 of 5 replicas`: the word goes by the whole."""
    return f"{count} of {plural(total, word)}"
