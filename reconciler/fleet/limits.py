"""How much a fleet repo may hold. Every bound is checked before anything walks the data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on what a repo may hold; each is checked before anything walks the data."""

    file_bytes: int = 4 << 20
    total_bytes: int = 64 << 20
    files: int = 20_000
    """YAML files. Other files are neither read nor counted against `total_bytes`."""
    entries: int = 200_000
    """Entries of the tree, folders included."""
    documents: int = 20_000
    """Documents of one file."""
    depth: int = 24
    """Nesting inside a document; the schemas need 6."""
    values: int = 20_000
    """Values of one document, aliases counted as often as they are used."""
    total_values: int = 1_000_000
    """Values of the whole repo: about 200 MB."""
    findings: int = 200
    """Findings of one document that are told, and of one file after which its reading ends."""
    all_findings: int = 20_000
    """Findings of the repo after which no more are looked for: each costs a second parse of its
    file, for its line."""
