"""One lab of three nodes for the run; every test leaves its nodes on, joined and with room."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tools.labfleet import LabFleet, LabOptions, image, missing
from tools.labfleet.fleet import CACHE


def lab_name(letter: str) -> str:
    """A name that no other test run on this machine uses."""
    return f"t{os.getpid():x}{letter}"


def why_not() -> str:
    """Why there can be no lab here, and what to do; empty: there can."""
    if lacks := missing():
        return f"lab: this machine lacks {'; '.join(lacks)}"
    if not image.path(CACHE, LabOptions.suite, ()).exists():
        return "lab: its image is not made yet: tools/lab image"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need a lab say by name why they cannot run, and share one worker and its lab."""
    reason = why_not()
    for item in items:
        if item.get_closest_marker("lab"):
            item.add_marker(pytest.mark.xdist_group("lab"))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def lab() -> Iterator[LabFleet]:
    """Three running nodes."""
    with LabFleet.create(3, name=lab_name("s")) as fleet:
        yield fleet
