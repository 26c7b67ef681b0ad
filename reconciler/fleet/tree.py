"""Which files make up a fleet, and which entries of a tree are refused by name.

The same rules for a commit's tree and for a working tree, over a plain list of entries, so that
what a pull request shows is what is read after the merge. Nothing here opens a file or follows a
link.

Read are `fleet.yaml` and every `*.yaml` and `*.yml` under `nodes/`, `catalog/` and `placements/`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

from reconciler.core.changes import Reason
from reconciler.fleet.findings import Finding, listed, nearest, quoted
from reconciler.fleet.limits import Limits

FOLDERS = ("nodes", "catalog", "placements")
TOP = ("fleet.yaml", "fleet.yml")
YAML = (".yaml", ".yml")
MISNAMED = (".json", ".txt", ".yam", ".yalm", ".ymal", ".yamll", ".ylm")
"""Endings of files that look as if they were read."""


class Sort(StrEnum):
    """What a tree entry is."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "symbolic link"
    SUBMODULE = "submodule"
    SPECIAL = "device, socket or pipe"


@dataclass(frozen=True, order=True)
class TreeEntry:
    """One entry of a tree, by its path from the fleet's folder."""

    path: str
    sort: Sort
    size: int = 0
    """Bytes of a file; asked before anything is read."""


@dataclass(frozen=True)
class Chosen:
    """Paths to read, in order, and what is wrong with the tree."""

    paths: tuple[str, ...]
    findings: tuple[Finding, ...]
    outside: tuple[str, ...] = ()
    """Other YAML files at the top: not read, unless one of them should have been (strays.py)."""


MOST_OUTSIDE = 50
"""Files at the top that are looked into."""


def of_interest(path: str) -> bool:
    """Whether an entry at the top leads to the fleet's files (by any spelling of their names)."""
    top = path.split("/", 1)[0].lower()
    return top in FOLDERS or top in TOP


def choose(entries: Sequence[TreeEntry], limits: Limits, *, complete: bool = True) -> Chosen:
    """What of `entries` is read. `complete=False`: listing ended at `limits.entries`."""
    findings: list[Finding] = []
    if not complete:
        message = f"the tree has more than {limits.entries} entries"
        findings.append(refused("", message, "keep generated files out of the fleet repo"))
    paths: list[str] = []
    outside: list[str] = []
    entries = sorted(entries, key=attrgetter("path"))
    for entry in entries:
        finding = _verdict(entry)
        if finding is not None:
            findings.append(finding)
        elif entry.sort is Sort.FILE and _is_read(entry.path):
            paths.append(entry.path)
        elif _is_outside(entry) and entry.size <= limits.file_bytes:
            outside.append(entry.path)
    findings += _twins(entries)
    sizes = {e.path: e.size for e in entries}
    total = sum(sizes[p] for p in paths if sizes[p] <= limits.file_bytes)
    if len(paths) > limits.files:
        message = f"the fleet has {len(paths)} files, more than the {limits.files} that are read"
        findings.append(refused("", message, "put several documents into one file"))
        paths = []
    elif total > limits.total_bytes:
        message = f"the fleet has {total} bytes, more than the {limits.total_bytes} that are read"
        findings.append(refused("", message, "split the fleet"))
        paths = []
    large = [p for p in paths if sizes[p] > limits.file_bytes]
    findings += [_too_large(p, sizes[p], limits) for p in large]
    read = tuple(p for p in paths if p not in set(large))
    return Chosen(read, tuple(findings), tuple(outside[:MOST_OUTSIDE]))


def _too_large(path: str, size: int, limits: Limits) -> Finding:
    most = limits.file_bytes
    return refused(
        path, f"it has {size} bytes, more than the {most} that a file may have", "split it"
    )


def refused(path: str, message: str, hint: str, *, warning: bool = False) -> Finding:
    """A finding about a whole file or tree."""
    return Finding(path or ".", 0, 0, "", "", message, hint, Reason.PARSE_FAILED, warning)


def _is_read(path: str) -> bool:
    return path in TOP or (path.split("/", 1)[0] in FOLDERS and path.endswith(YAML))


def _is_outside(entry: TreeEntry) -> bool:
    path = entry.path
    hidden = path.startswith(".")
    return entry.sort is Sort.FILE and "/" not in path and path.endswith(YAML) and not hidden


def _inside(path: str) -> bool:
    return path in TOP or path.split("/", 1)[0] in FOLDERS


def _verdict(entry: TreeEntry) -> Finding | None:
    """Why an entry is refused; None where it is read or of no concern."""
    path = entry.path
    if entry.sort is Sort.FILE and _is_read(path):
        return None
    lower = path.lower()
    if _inside(path):
        if entry.sort in (Sort.LINK, Sort.SUBMODULE, Sort.SPECIAL):
            message = f"it is a {entry.sort.value}; these are not followed"
            return refused(path, message, "put a plain file in its place")
        if entry.sort is Sort.FILE and lower.endswith(YAML) and not path.endswith(YAML):
            return refused(path, "its ending is not in lower case", "rename it to .yaml")
        if entry.sort is Sort.FILE and lower.endswith(MISNAMED):
            return refused(path, "it is not read", "write .yaml or .yml", warning=True)
        return None
    top = path.split("/", 1)[0]
    if entry.sort is Sort.FILE and lower.endswith(YAML) and not top.startswith("."):
        known = (*FOLDERS, *TOP)
        stem = top.lower().removesuffix(".yaml").removesuffix(".yml")
        near = nearest(stem, known) or nearest(top, known)
        if near:
            home = next((n for n in FOLDERS if stem.startswith(n[:-1]) and path == top), "")
            said = f"move it under {home}/" if home else near
            hint = f"{said} (read are fleet.yaml and the folders {listed(FOLDERS)})"
            sure = any(stem.startswith(name[:-1]) for name in (*FOLDERS, "fleet"))
            return refused(path, "it is not read", hint, warning=not sure)
    return None


def _twins(entries: Sequence[TreeEntry]) -> list[Finding]:
    """Paths that a file system without case, or with another Unicode form, cannot hold both."""
    first: dict[str, str] = {}
    told: set[str] = set()
    findings = []
    for entry in entries:
        path = entry.path
        if not of_interest(path):
            continue
        folded = fold(path)
        known = first.setdefault(folded, path)
        if known is path:
            continue
        told.add(folded)
        if folded.rpartition("/")[0] not in told:
            message = f"it differs from {quoted(known)} only by case or Unicode form"
            hint = "rename one of them: on a Mac or on Windows they are one file"
            findings.append(refused(path, message, hint))
    return findings


def fold(path: str) -> str:
    """Equal for paths that differ only by case or by Unicode form."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
