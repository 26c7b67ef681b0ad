"""The command line. `main` is the program `reconcile`; everything else is imported late.

A command imports what it needs when it runs: `reconcile --version` and shell completion must not
pay for git, SSH and YAML libraries (the goal is 40 ms of CPU).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

GC_THRESHOLDS = (100_000, 20, 100)
"""A large fleet is a million small values that live as long as the pass: with Python's own
thresholds (700, 10, 10) a tenth of all CPU time goes to looking through them for garbage."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `reconcile` with `argv` (the process's own by default); the result is the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args == ["--version"]:
        from reconciler import __version__

        print(f"reconcile {__version__}")
        return 0
    gc.set_threshold(*GC_THRESHOLDS)
    from reconciler.cli.app import run

    code = run(args)
    if argv is None:
        # The process ends: Python is not to look through all of the fleet once more before it does.
        gc.freeze()
    return code
