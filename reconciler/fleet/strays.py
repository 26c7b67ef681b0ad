"""Documents that lie where nobody reads them.

A node described in a file that is not read is no node at all, and nothing would say so: the file
looks like its neighbours, the commit is green, and the machine stays empty.
"""

from __future__ import annotations

import re

from reconciler.fleet.findings import Finding, listed
from reconciler.fleet.tree import FOLDERS, refused

HOMES = {
    "Fleet": "it belongs into fleet.yaml",
    "Node": "move it under nodes/",
    "Model": "move it under catalog/",
    "Profile": "move it under catalog/",
    "Placement": "move it under placements/",
}

_KIND = re.compile(
    rb"^kind:[ \t]*[\"']?(Fleet|Node|Model|Profile|Placement)[\"']?[ \t]*(?:#|\r?$)", re.MULTILINE
)
_OTHERS = re.compile(rb"^apiVersion:", re.MULTILINE)
"""Kubernetes has a kind Node too; its documents name the version of their API."""


def at_top(path: str, raw: bytes) -> Finding | None:
    """What to say of a YAML file at the top, where only fleet.yaml is read."""
    found = _KIND.search(raw)
    if found is None or _OTHERS.search(raw):
        return None
    kind = found[1].decode()
    hint = f"{HOMES[kind]} (read are fleet.yaml and the folders {listed(FOLDERS)})"
    return refused(path, f"it is not read, and holds a {kind}", hint, warning=True)
