"""Who may act on this node: an owner with a rising epoch for a limited time.

The node itself refuses everyone else. A lock alone lets a reconciler through that slept past its
lease and woke; the epoch does not. Ages are CLOCK_BOOTTIME with the boot id: no clock is compared.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Optional, Tuple

from . import journal, store
from .node import Node, boottime
from .store import Damaged
from .wire import AgentError, Fields, Json

KEPT_FIELDS = ("root_commit", "revision", "departed", "approvals", "retries")
"""What must outlive the reconciler; each replaces what is stored when it is given."""

MAX_TTL_S = 3600.0
_FLEET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")


def lease_path(root: str, fleet: str) -> str:
    """One file per fleet: launches of several fleets may share a node."""
    return os.path.join(root, "lease-%s.json" % check_fleet(fleet))


def check_fleet(fleet: str) -> str:
    """A fleet id becomes a file name: anything else than letters, digits and dashes is refused."""
    if not _FLEET.match(fleet):
        raise AgentError("bad-request", "fleet %r: letters, digits and dashes, at most 64" % fleet)
    return fleet


_SHAPE: Dict[str, Any] = {
    "fleet": str,
    "owner": str,
    "epoch": int,
    "boot_id": str,
    "until": (int, float),
    "root_commit": str,
    "revision": str,
    "departed": dict,
    "retries": dict,
    "approvals": list,
}


def read_lease(node: Node, fleet: str) -> Optional[Json]:
    """The stored lease, None where there never was one. Raises Damaged.

    With former roots the newest of all: it goes on where it was when the root changes, and whoever
    is still told to use a former root is seen.
    """
    found = _leases(node, fleet)
    return max(found, key=lambda lease: int(lease["epoch"])) if found else None


def _leases(node: Node, fleet: str) -> List[Json]:
    """What each root holds, the current one first."""
    found = (_read(node, root, fleet) for root in node.roots)
    return [lease for lease in found if lease is not None]


def _read(node: Node, root: str, fleet: str) -> Optional[Json]:
    try:
        lease = store.read(lease_path(root, fleet))
    except FileNotFoundError:
        return None
    for name, kind in _SHAPE.items():
        value = lease.get(name)
        absent = value is None and name in KEPT_FIELDS
        if not absent and (not isinstance(value, kind) or isinstance(value, bool)):
            raise Damaged("lease-%s.json is damaged: %s is not as expected" % (fleet, name))
    if remaining(node, lease) > MAX_TTL_S:
        raise Damaged("lease-%s.json is damaged: it ends later than any lease can" % fleet)
    return lease


def _rival(node: Node, fleet: str, owner: str) -> Optional[Json]:
    """A living lease of another, in whichever root: two that use different roots see each other."""
    for lease in _leases(node, fleet):
        if lease["owner"] != owner and remaining(node, lease) > 0:
            return lease
    return None


def remaining(node: Node, lease: Json) -> float:
    """Seconds that the lease has left; a lease of another boot has expired."""
    if lease["boot_id"] != node.identity.boot_id:
        return 0.0
    return float(lease["until"]) - boottime()


def shown(node: Node, lease: Json) -> Json:
    """The lease as an answer shows it."""
    kept = {name: lease[name] for name in KEPT_FIELDS if name in lease}
    head = {"fleet": lease["fleet"], "owner": lease["owner"], "epoch": lease["epoch"]}
    return {**head, "remaining_s": round(remaining(node, lease), 3), **kept}


def change(node: Node, request: Json) -> Json:
    """Carry out a `lease` request; the caller holds the acting lock."""
    fields = Fields(request)
    fleet, owner, action = fields.text("fleet"), fields.text("owner"), fields.text("action")
    stored, damage = _stored(node, fleet)
    if damage and action != "take":
        hint = "`take` with a reason replaces it"
        raise AgentError("lease-held", "%s; taken as held; %s" % (damage, hint))
    ttl = min(max(fields.number("ttl_s", 60.0), 0.0), MAX_TTL_S)
    rules = {"acquire": _acquire, "renew": _keep, "update": _keep, "release": _keep, "take": _take}
    if action not in rules:
        raise AgentError("bad-request", "action %r is none of %s" % (action, ", ".join(rules)))
    epoch = rules[action](node, fields, stored, owner)
    until = boottime() + (0.0 if action == "release" else ttl)
    if action == "update" and stored is not None:
        until = float(stored["until"])
    lease: Json = {
        "format": "1.0",
        "fleet": fleet,
        "owner": owner,
        "epoch": epoch,
        "boot_id": node.identity.boot_id,
        "until": until,
    }
    for name in KEPT_FIELDS:
        if request.get(name) is not None:
            lease[name] = request[name]
        elif stored is not None and name in stored:
            lease[name] = stored[name]
    _write(node, fleet, lease)
    return shown(node, lease)


def _write(node: Node, fleet: str, lease: Json) -> None:
    """In former roots as well, so that whoever still uses one is kept out there.

    A former root that cannot be written keeps everybody out by itself.
    """
    for root in node.previous:
        try:
            if os.path.isdir(root):
                store.write(lease_path(root, fleet), lease)
        except OSError:
            continue
    store.write(lease_path(node.root, fleet), lease)


def _stored(node: Node, fleet: str) -> Tuple[Optional[Json], str]:
    try:
        return read_lease(node, fleet), ""
    except Damaged as error:
        return None, str(error)


def _acquire(node: Node, fields: Fields, stored: Optional[Json], owner: str) -> int:
    if not owner:
        raise AgentError("bad-request", "owner: empty")
    if stored is None:
        return _highest_epoch(node, fields.text("fleet"), careful=False) + 1
    rival = _rival(node, fields.text("fleet"), owner)
    if rival is not None:
        raise AgentError(
            "lease-held",
            "%s holds the lease of fleet %s (epoch %d) for another %.0f s"
            % (rival["owner"], rival["fleet"], rival["epoch"], remaining(node, rival)),
        )
    unbroken = stored["owner"] == owner and remaining(node, stored) > 0
    return int(stored["epoch"]) + (0 if unbroken else 1)


def _keep(node: Node, fields: Fields, stored: Optional[Json], owner: str) -> int:
    epoch = fields.integer("epoch")
    refuse_unless_current(node, stored, fields.text("fleet"), owner, epoch)
    return epoch


def _take(node: Node, fields: Fields, stored: Optional[Json], owner: str) -> int:
    if not owner or not fields.text("reason"):
        raise AgentError("bad-request", "take: an owner and a reason are needed")
    if stored is not None:
        return int(stored["epoch"]) + 1
    return _highest_epoch(node, fields.text("fleet"), careful=True) + 1


def _highest_epoch(node: Node, fleet: str, *, careful: bool) -> int:
    """The highest epoch that is known to have been given, where the lease file cannot say.

    `careful`: the file was there and is damaged; whatever number can still be read in it counts,
    with a margin for those that were given and not written down anywhere else.
    """
    known = [0]
    told = [entry for root in node.roots for entry in journal.read(root, 10000)]
    entries = [e for e in told if e.get("fleet") == fleet]
    known += [e["epoch"] for e in entries if isinstance(e.get("epoch"), int)]
    if not careful:
        return max(known)
    for root in node.roots:
        try:
            with open(lease_path(root, fleet), "rb") as file:
                known += [int(n) for n in re.findall(rb'"epoch": *([0-9]{1,15})', file.read(65536))]
        except OSError:
            continue
    return max(known) + 1000


def fence(node: Node, request: Json) -> Tuple[str, str, int]:
    """Refuse any but the current owner and epoch of a living lease; gives fleet, owner, epoch.

    Asked under the acting lock, in which the record or intent is then written.
    """
    fields = Fields(request)
    fleet, owner, epoch = fields.text("fleet"), fields.text("owner"), fields.integer("epoch")
    try:
        stored = read_lease(node, fleet)
    except Damaged as error:
        raise AgentError("fenced", "%s: nobody may act until it is taken" % error) from None
    refuse_unless_current(node, stored, fleet, owner, epoch)
    return fleet, owner, epoch


def refuse_unless_current(
    node: Node, stored: Optional[Json], fleet: str, owner: str, epoch: int
) -> None:
    """AgentError `fenced` unless this is the lease in force."""
    if stored is None:
        raise AgentError(
            "fenced", "fleet %s holds no lease on this node; acquire one first" % fleet
        )
    if stored["owner"] != owner or stored["epoch"] != epoch:
        raise AgentError(
            "fenced",
            "epoch %d of %s is not the lease in force: epoch %d of %s"
            % (epoch, owner, stored["epoch"], stored["owner"]),
        )
    rival = _rival(node, fleet, owner)
    if rival is not None:
        raise AgentError(
            "fenced",
            "%s holds a lease of fleet %s in a former root (epoch %d); it must let go first"
            % (rival["owner"], fleet, rival["epoch"]),
        )
    if remaining(node, stored) <= 0:
        raise AgentError("fenced", "the lease of %s (epoch %d) has expired" % (owner, epoch))
