"""One launch's folder, put together: spec, labels, status, intent, lock, and whether it lives.

Reads only. What cannot be read is said so (`spec_error`, `alive` with `damaged`), never left out:
observe, start, stop, adopt and retention all judge by this one view.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from . import cgroup, heartbeat, locks, procs, spec, store
from .node import Node
from .store import Damaged
from .wire import Json

STARTING, RUNNING, STOPPING, ENDED = "starting", "running", "stopping", "ended"


class Seen(NamedTuple):
    """One launch as its folder, its lock and the processes show it."""

    name: str
    folder: str
    spec: Optional[Json]
    record: Optional[Json]
    """The part of `spec` that an observation shows."""
    spec_error: str
    """`absent`, or what is damaged; empty where `spec` is there."""
    labels: Optional[Json]
    status: Json
    """status.json with what the heartbeat adds; empty where there is none."""
    status_error: str
    intent: Optional[Json]
    """None: no stop was asked. A damaged intent is one all the same: only a stop writes it."""
    supervised: bool
    pids: Tuple[int, ...]
    """Living processes of it, the supervisor left out."""
    same_boot: bool
    contained: bool = False
    """Its container runs, or that could not be found out."""

    @property
    def alive(self) -> bool:
        """The lock is held, or something of it runs."""
        return self.supervised or bool(self.pids) or self.contained

    @property
    def may_be_contained(self) -> bool:
        """Only its container tool can say whether it lives."""
        unsure = self.same_boot and not self.supervised and self.phase not in ("", ENDED)
        return unsure and bool(self.spec and self.spec.get("container"))

    @property
    def phase(self) -> str:
        """By the supervisor's own account; empty where it never wrote one."""
        phase = self.status.get("phase")
        return phase if phase in (STARTING, RUNNING, STOPPING, ENDED) else ""

    @property
    def ended(self) -> bool:
        """Over for good: it is never started again."""
        return not self.alive and (
            bool(self.status) or bool(self.status_error) or not self.same_boot
        )

    @property
    def fleet(self) -> str:
        """Empty where the record cannot be read."""
        return str(self.spec["fleet"]) if self.spec else ""

    @property
    def replica(self) -> str:
        """The replica it belongs to today."""
        today = self.labels.get("replica") if self.labels else ""
        return str(today or (self.spec["replica"] if self.spec else ""))

    @property
    def never_began(self) -> bool:
        """The start was cut off after the record and before anything was executed."""
        return (
            self.spec is not None and not self.status and not self.status_error and not self.alive
        )


def read_status(cache: store.Cache, folder: str, boot_id: str) -> Tuple[Json, str]:
    """The status, and what is damaged in it. The heartbeat of this boot is never the older one."""
    status: Json = {}
    error = ""
    try:
        status = dict(cache.read(os.path.join(folder, "status.json")))
    except FileNotFoundError:
        pass
    except Damaged as damage:
        error = str(damage)
    beat = heartbeat.read(os.path.join(folder, "lock"), cache)
    if beat and beat.get("boot_id") == boot_id:
        status.update(beat)
    return status, error


def see(node: Node, cache: store.Cache, name: str, marked: Dict[str, List[int]]) -> Seen:
    """The launch `name`. `marked`: pids by launch, from the marks of this machine's processes."""
    folder = folder_of(node, name)
    raw, record, error = _read_spec(cache, folder, name)
    status, status_error = read_status(cache, folder, node.identity.boot_id)
    if error.startswith(ANOTHERS):
        # A copy names the living processes of the original: they are not its own to end.
        status, status_error = {}, ""
    boots = [b for b in (status.get("boot_id"), record.get("boot_id") if record else "") if b]
    same_boot = all(b == node.identity.boot_id for b in boots)
    supervised = locks.is_held(os.path.join(folder, "lock")) or _has_supervisor(status, same_boot)
    pids = set(marked.get(name, ()))
    if same_boot and not (status.get("phase") == ENDED and not supervised):
        pids.update(p.pid for p in living_processes(status))
        if not supervised:
            pids.update(cgroup.pids(str(status.get("cgroup") or ""), name))
    supervisor = status.get("supervisor")
    if isinstance(supervisor, dict) and isinstance(supervisor.get("pid"), int):
        pids.discard(supervisor["pid"])
    return Seen(
        name=name,
        folder=folder,
        spec=raw,
        record=record,
        spec_error=error,
        labels=_optional(cache, os.path.join(folder, "labels.json")),
        status=status,
        status_error=status_error,
        intent=_intent(cache, folder),
        supervised=supervised,
        pids=tuple(sorted(pids)),
        same_boot=same_boot,
    )


def _has_supervisor(status: Json, same_boot: bool) -> bool:
    """Whether the supervisor that the status names lives, also where its lock was removed: a
    second one would take the shard from it."""
    named = procs.Process.from_json(status.get("supervisor"))
    living = named is not None and procs.is_same(named.pid, named.start_time)
    return living and same_boot and status.get("phase") != ENDED


ANOTHERS = "is of launch "


def _read_spec(
    cache: store.Cache, folder: str, name: str
) -> Tuple[Optional[Json], Optional[Json], str]:
    try:
        raw, record = cache.read(os.path.join(folder, "spec.json"), _with_record)
    except FileNotFoundError:
        return None, None, "absent"
    except Damaged as error:
        return None, None, str(error)
    if record["launch"] != name:
        return None, None, "%s%s: a copy, or renamed" % (ANOTHERS, record["launch"][:63])
    return raw, record, ""


def _with_record(raw: Json) -> Tuple[Json, Json]:
    return raw, spec.record_of(raw)


def _optional(cache: store.Cache, path: str) -> Optional[Json]:
    try:
        labels: Json = cache.read(path, spec.labels_of)
        return labels
    except (FileNotFoundError, Damaged):
        return None


def _intent(cache: store.Cache, folder: str) -> Optional[Json]:
    try:
        intent: Json = cache.read(os.path.join(folder, "intent.json"))
        return intent
    except (FileNotFoundError, store.Unreadable):
        return None
    except Damaged:
        return {}


def living_processes(status: Json) -> List[procs.Process]:
    """Those recorded processes that are still the same ones and no zombies."""
    entries = status.get("processes")
    recorded = [procs.Process.from_json(e) for e in entries] if isinstance(entries, list) else []
    return [p for p in recorded if p is not None and procs.is_same(p.pid, p.start_time)]


def launch_names(node: Node) -> List[str]:
    """Folders of launches. OSError: they cannot be listed, so what runs here is unknown."""
    names: Set[str] = set()
    for root in node.roots:
        try:
            with os.scandir(os.path.join(root, "launches")) as entries:
                names.update(e.name for e in entries if spec.LAUNCH.match(e.name) and _is_folder(e))
        except FileNotFoundError:
            continue
    return sorted(names)


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    """A file or a link to nowhere is nobody's launch; what cannot be looked at may be one."""
    try:
        return entry.is_dir()
    except OSError as error:
        return error.errno != errno.ELOOP


def folder_of(node: Node, name: str) -> str:
    """Where the launch lies: a launch keeps the root of its start.

    Of two folders of one name (somebody copied a root) the one with a supervisor is the launch: the
    other has its record, and would make a second supervisor.
    """
    if not node.previous:
        return node.launch_dir(name)
    folders = [os.path.join(root, "launches", name) for root in node.roots]
    found = [folder for folder in folders if os.path.isdir(folder)]
    if len(found) > 1:
        found.sort(key=lambda folder: not locks.is_held(os.path.join(folder, "lock")))
    return found[0] if found else folders[0]


def root_of(folder: str) -> str:
    """The root that a launch's folder lies in."""
    return os.path.dirname(os.path.dirname(folder))


def by_launch(node: Node, marks: Dict[int, str]) -> Tuple[Dict[str, List[int]], Dict[str, str]]:
    """Marked pids of this machine by launch, and the fleet of each launch by its mark."""
    pids: Dict[str, List[int]] = {}
    fleets: Dict[str, str] = {}
    for pid, mark in marks.items():
        label, _, machine = mark.rpartition("@")
        parts = label.split("/")
        if machine == node.identity.machine_id and len(parts) == 3 and spec.LAUNCH.match(parts[1]):
            pids.setdefault(parts[1], []).append(pid)
            fleets[parts[1]] = parts[0]
    return pids, fleets


def same_spec(stored: Json, asked: Json) -> bool:
    """Whether both say the same; the node adds the boot id, and the check value is the file's."""
    ignored = ("boot_id", store.CHECK)
    trimmed = [{k: v for k, v in s.items() if k not in ignored} for s in (stored, asked)]
    return json.dumps(trimmed[0], sort_keys=True) == json.dumps(trimmed[1], sort_keys=True)
