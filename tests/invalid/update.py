"""Write today's messages into cases: `python -m tests.invalid.update NAME…` (no name: all new)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.invalid.repo_file import CASES, read, said


def main(names: list[str]) -> None:
    """Rewrite the expected part of the named cases, or of those that have none yet."""
    for path in sorted(CASES.glob("*.txt")):
        case = read(path)
        if path.stem not in names and (names or case.expected):
            continue
        with tempfile.TemporaryDirectory() as folder:
            _, text = said(case, Path(folder))
        body = path.read_text(encoding="utf-8").split("\n>>> expected")[0].rstrip("\n")
        path.write_text(f"{body}\n\n>>> expected\n{text}", encoding="utf-8")
        print(f"== {path.stem}: {case.title}\n{text}")


if __name__ == "__main__":
    main(sys.argv[1:])
