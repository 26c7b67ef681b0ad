"""Broken fleet repos, one a file, each with the exact messages that a person gets.

`python -m tests.invalid.update NAME…` writes the messages of today into the named cases; read the
difference before it is committed: a message is part of what users know us by.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.fleet.findings import errors
from tests.invalid.repo_file import CASES, read, said

FILES = sorted(CASES.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_says_exactly_what_is_wrong_where_and_what_to_do(path: Path, tmp_path: Path) -> None:
    case = read(path)
    loaded, text = said(case, tmp_path)
    assert text == case.expected
    assert (loaded.desired is None) == bool(errors(loaded.findings))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_finding_of_a_file_has_a_line(path: Path, tmp_path: Path) -> None:
    loaded, _ = said(read(path), tmp_path)
    about_the_tree = ("tree-", "yaml-lfs-", "fleet-absent")
    if not path.stem.startswith(about_the_tree):
        assert all(finding.line and finding.column for finding in loaded.findings)


def test_the_base_of_all_cases_validates(tmp_path: Path) -> None:
    case = read(FILES[0])
    loaded, text = said(type(case)("", {}, ""), tmp_path)
    assert text == "no findings\n"
    assert loaded.desired is not None


def test_there_are_at_least_sixty_cases_each_of_its_own() -> None:
    cases = [read(path) for path in FILES]
    assert len(cases) >= 60
    assert len({case.title for case in cases}) == len(cases)
