"""What a lab is, as its folder tells it: written before anything is made, read by whoever comes.

From this and the kernel alone a lab is found, handled and taken down; no process needs to live on.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

FILE = "record.json"


@dataclass(frozen=True)
class LabOptions:
    """What the nodes of a lab are like."""

    suite: str = "bookworm"
    packages: tuple[str, ...] = ()
    """Further Debian packages; another set makes another image."""
    disk_mib: int = 256
    """Size of each node's own disk."""
    nvml: str = ""
    """Folder of the stand-in NVML library's source; empty: nodes have no NVML."""


@dataclass(frozen=True)
class LabNode:
    """What a Node document needs to say about one lab node."""

    name: str
    address: str
    host_key: str
    machine_id: str
    identity_file: str
    user: str = "root"
    port: int = 22


@dataclass(frozen=True)
class Record:
    """One lab."""

    uid: str
    name: str
    subnet: str
    count: int
    image: str
    owner: tuple[int, int] | None
    """pid and start time of the process with which the lab ends; None: it stays until `down`."""
    options: LabOptions = field(default_factory=LabOptions)
    nodes: tuple[LabNode, ...] = ()
    """Empty until all of them are made."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes, also of those that are not made yet."""
        return tuple(f"{self.name}-{number}" for number in range(1, self.count + 1))

    @property
    def bridge(self) -> str:
        """Random, and recorded before it is made: no one else's interface can have this name."""
        return f"rl-{self.uid[:8]}"


def save(folder: Path, record: Record) -> None:
    """Write or replace it, whole."""
    part = folder / "record.part"
    part.write_text(json.dumps(asdict(record), indent=1))
    part.replace(folder / FILE)


def load(folder: Path) -> Record:
    """Read it. FileNotFoundError where there is no lab."""
    value = json.loads((folder / FILE).read_text())
    options = value.pop("options")
    owner = value.pop("owner")
    return Record(
        **{key: each for key, each in value.items() if key != "nodes"},
        owner=(owner[0], owner[1]) if owner else None,
        options=LabOptions(**{**options, "packages": tuple(options["packages"])}),
        nodes=tuple(LabNode(**node) for node in value["nodes"]),
    )


@contextmanager
def locked(cache: Path) -> Iterator[None]:
    """One lab at a time takes a subnet or is taken down."""
    with (cache / "lab.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
