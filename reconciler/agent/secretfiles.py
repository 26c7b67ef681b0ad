"""Secrets that came with a start: a file each in the launch's folder, gone with the launch's end.

They stay while it lives, because a sidecar may be started again by a supervisor that no reconciler
has spoken to. They are no part of the record: neither spec nor journal nor any message has a value.
"""

from __future__ import annotations

import os
import shutil
from typing import Dict, List, Mapping

from . import environment, records, store
from .node import Node
from .spec import Spec
from .wire import AgentError, Json

FOLDER = "secrets"
"""`reconcile` names the same one in what it sends (`engines/secretref.py`)."""


def paths(node: Node, spec: Spec) -> List[str]:
    """Where the secrets of `spec` will lie."""
    folder = records.folder_of(node, spec.launch)
    return [os.path.join(folder, FOLDER, name) for name in spec.secrets]


def checked(spec: Spec, values: Json) -> Dict[str, bytes]:
    """The content of each file. AgentError, which repeats no value and no name but the spec's."""
    wrong = []
    if set(values) != set(spec.secrets):
        missing = [name for name in spec.secrets if name not in values]
        more = len(set(values) - set(spec.secrets))
        wrong.append(
            "missing: %s; %d others came" % (", ".join(missing) or "none", more),
        )
    files = {}
    for name in spec.secrets:
        value = values.get(name, "-")
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else b""
        why = environment.unfit(data)
        if why:
            wrong.append("%s %s" % (name, why))
        files[name] = data
    if wrong:
        raise AgentError("bad-request", "secrets: %s" % "; ".join(wrong))
    return files


def write(folder: str, files: Mapping[str, bytes]) -> None:
    """Each as a file of its own, 0600, in a folder that nobody else may enter. Raises OSError."""
    if files:
        os.makedirs(os.path.join(folder, FOLDER), 0o700, exist_ok=True)
    for name, data in files.items():
        store.write_bytes(os.path.join(folder, FOLDER, name), data)


def remove(folder: str) -> None:
    """To be called before the end of the launch is written, so that no ended one has any."""
    shutil.rmtree(os.path.join(folder, FOLDER), ignore_errors=True)


def sweep(node: Node, cache: store.Cache, marked: Dict[str, List[int]]) -> None:
    """What no supervisor could take away, under the acting lock: a power cut ended the launch, or
    it died with its supervisor, or a start was cut off between its files and their rename.

    `marked`: pids by launch. The replica may no longer be wanted: then nobody else writes its end.
    """
    for root in node.roots:
        for name in (*_listed(root, "part-"), "trash"):
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)
        launches = os.path.join(root, "launches")
        for name in _listed(launches):
            folder = os.path.join(launches, name)
            if not os.path.isdir(os.path.join(folder, FOLDER)):
                continue
            seen = records.see(node, cache, name, marked)
            if not seen.same_boot or (seen.ended and not seen.may_be_contained):
                remove(folder)


def _listed(folder: str, prefix: str = "") -> List[str]:
    try:
        return [name for name in os.listdir(folder) if name.startswith(prefix)]
    except OSError:
        return []
