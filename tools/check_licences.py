"""Fails where an installed dependency has a licence that does not fit an Apache-2.0 product.

Only what ships with the product counts (the run-time dependencies of pyproject.toml and theirs);
development tools are never distributed with it.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata

ROOT = "fleet-reconciler"

FITS = re.compile(
    r"MIT|BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla|0BSD|Unlicense|CC0",
    re.IGNORECASE,
)

REVIEWED = {
    # Used as a library through its public interface, unmodified, and replaceable by the user.
    "paramiko": "LGPL-2.1: dynamic use of an unmodified library",
    # libgit2's own exception allows linking from works under any licence.
    "pygit2": "GPL-2.0 with linking exception",
}


def requirements(name: str) -> set[str]:
    """Names of what `name` needs at run time (extras left out)."""
    wanted = metadata.requires(name) or []
    plain = [line for line in wanted if "extra ==" not in line]
    return {re.split(r"[\s\[<>=!~;(]", line, maxsplit=1)[0].lower() for line in plain}


def licence(name: str) -> str:
    """What the package says of its licence, the most exact field first."""
    meta = metadata.metadata(name)
    classifiers = [c for c in meta.get_all("Classifier") or [] if c.startswith("License ::")]
    return (
        meta.get("License-Expression") or "; ".join(classifiers) or (meta.get("License") or "")[:80]
    )


def main() -> int:
    """Print one line a package; 1 where any does not fit."""
    pending, seen, misfits = [ROOT], set(), 0
    while pending:
        name = pending.pop()
        try:
            needed = requirements(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python version
        pending.extend(needed - seen)
        seen |= needed
    for name in sorted(seen):
        try:
            text = licence(name)
        except metadata.PackageNotFoundError:
            continue
        fits = bool(FITS.search(text)) or name in REVIEWED
        misfits += not fits
        reviewed = f" ({REVIEWED[name]})" if name in REVIEWED else ""
        print(f"{'ok ' if fits else 'NO '} {name}: {text}{reviewed}")
    return 1 if misfits else 0


if __name__ == "__main__":
    sys.exit(main())
