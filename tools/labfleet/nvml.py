"""The stand-in NVML library in a node: nodes without a GPU have eight to look at.

It is built from source here, with what is in its folder and nothing else, and found in the node by
name like the real one (ldconfig). What it shows is set by a file in the node: see the source.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.labfleet.host import PATH, LabError, run

LIBRARY = "libnvidia-ml.so.1"
FOLDER = "usr/local/lib"


def build(source: Path, target: Path) -> Path:
    """Compile every C file of `source` into `target`/libnvidia-ml.so.1."""
    files = sorted(str(file) for file in source.glob("*.c"))
    if not files:
        raise LabError(f"NVML source {source}", "has no C file", "name its folder")
    if not shutil.which("gcc", path=PATH):
        raise LabError("gcc", "is not installed", "apt-get install gcc libc6-dev")
    library = target / LIBRARY
    flags = ["-shared", "-fPIC", "-O1", f"-Wl,-soname,{LIBRARY}", "-o", str(library)]
    run(["gcc", *flags, *files, "-lpthread", "-ldl"], timeout_s=60)
    return library


def install(library: Path, root: Path) -> None:
    """Put the library into a node that is off, where its loader finds it."""
    shutil.copy(library, root / FOLDER / LIBRARY)
    run(["chroot", str(root), "/sbin/ldconfig"])
