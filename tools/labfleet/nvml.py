"""The stand-in NVML library in a node: nodes without a GPU have eight to look at.

It is built from source here and found in the node by name like the real one (ldconfig). What it
shows is the file `gpus` beside it, a line a GPU, read at each question: `uuid state pids used_mib`.
"""

from __future__ import annotations

import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from tools.labfleet.host import PATH, LabError, run

SOURCE = Path(__file__).resolve().parents[2] / "tests" / "agent" / "nvml"
LIBRARY = "libnvidia-ml.so.1"
FOLDER = Path("usr/local/lib")
COUNT = 8
STATES = ("ok", "ecc", "pending", "reset", "reboot", "lost", "fallen", "gone", "hangs")
"""Fine; uncorrected errors; a row to be given up; the driver asks for a reset, or for a reboot;
lost when asked; no handle at all; not listed; a question about it never returns."""


@dataclass(frozen=True)
class LabGpu:
    """One GPU as the stand-in shows it. `pids` are the node's own."""

    uuid: str
    state: str = "ok"
    pids: tuple[int, ...] = ()
    used_mib: int = 0


def fresh(machine_id: str) -> list[LabGpu]:
    """Eight idle GPUs, the same ones for the same machine."""
    space = uuid.UUID(machine_id)
    return [LabGpu(f"GPU-{uuid.uuid5(space, str(index))}") for index in range(COUNT)]


def read(root: Path) -> list[LabGpu]:
    """What a node's library shows."""
    found = []
    for line in (root / FOLDER / "gpus").read_text().splitlines():
        name, state, pids, used_mib = line.split()
        numbers = tuple(int(pid) for pid in pids.split(",") if int(pid))
        found.append(LabGpu(name, state, numbers, int(used_mib)))
    return found


def show(root: Path, gpus: list[LabGpu]) -> None:
    """Set what a node's library shows from the next question on."""
    for gpu in gpus:
        if gpu.state not in STATES:
            raise LabError(f"GPU state {gpu.state!r}", f"is none of {', '.join(STATES)}")
    lines = [
        f"{gpu.uuid} {gpu.state} {','.join(map(str, gpu.pids)) or 0} {gpu.used_mib}\n"
        for gpu in gpus
    ]
    part = root / FOLDER / "gpus.part"
    part.write_text("".join(lines))
    part.replace(root / FOLDER / "gpus")


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
