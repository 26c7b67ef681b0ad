"""The command line. `main` is the program `reconcile`; everything else is imported late.

A command imports what it needs when it runs: `reconcile --version` and shell completion must not
pay for git, SSH and YAML libraries (the goal is 40 ms of CPU).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run `reconcile` with `argv` (the process's own by default); the result is the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args == ["--version"]:
        from reconciler import __version__

        print(f"reconcile {__version__}")
        return 0
    from reconciler.cli.app import run

    return run(args)
