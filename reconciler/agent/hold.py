"""A person's word to leave this node, or one launch, alone: the node itself refuses to act.

Whoever works on a machine says so here, and no reconciler, however it is configured, goes on.
"""

from __future__ import annotations

import os
from typing import List, Optional

from . import store
from .node import Node, boottime
from .store import Damaged
from .wire import AgentError, Fields, Json


def hold_path(root: str) -> str:
    """hold.json of this node."""
    return os.path.join(root, "hold.json")


def read_hold(node: Node) -> Optional[Json]:
    """The hold in force as an answer shows it. A damaged one holds the whole node."""
    return next(iter(_holds(node)), None)


def _holds(node: Node) -> List[Json]:
    """Those in force, the ones on the whole node first: one in a former root still means it."""
    found = (_read_hold(node, root) for root in node.roots)
    return sorted((h for h in found if h is not None), key=lambda hold: str(hold["launch"]))


def _read_hold(node: Node, root: str) -> Optional[Json]:
    try:
        hold = store.read(hold_path(root))
    except FileNotFoundError:
        return None
    except Damaged as error:
        return {"who": "", "reason": str(error), "remaining_s": None, "launch": ""}
    try:
        left = _hold_left(node, hold)
    except (ValueError, TypeError) as error:
        reason = "hold.json is damaged: %s" % error
        return {"who": "", "reason": reason, "remaining_s": None, "launch": ""}
    if left is not None and left <= 0:
        return None
    texts = {name: str(hold.get(name, "")) for name in ("who", "reason", "launch")}
    return {**texts, "remaining_s": left}


def _hold_left(node: Node, hold: Json) -> Optional[float]:
    duration = hold.get("for_s")
    if not isinstance(duration, (int, float)):
        return None
    # After a reboot nobody knows how long the node was off: the time counts from the boot.
    same_boot = hold.get("boot_id") == node.identity.boot_id
    start = float(hold.get("boottime", 0.0)) if same_boot else 0.0
    return round(start + float(duration) - boottime(), 3)


def change_hold(node: Node, request: Json) -> Optional[Json]:
    """Carry out a `hold` request; the caller holds the acting lock."""
    if request.get("clear"):
        for root in node.roots:
            try:
                os.unlink(hold_path(root))
            except FileNotFoundError:
                continue
        return None
    fields = Fields(Fields(request).object("set"), "set.")
    hold: Json = {
        "format": "1.0",
        "who": fields.text("who", ""),
        "reason": fields.text("reason", ""),
        "launch": fields.text("launch", ""),
        "boot_id": node.identity.boot_id,
        "boottime": boottime(),
    }
    if fields.data.get("for_s") is not None:
        hold["for_s"] = fields.number("for_s")
    store.write(hold_path(node.root), hold)
    return read_hold(node)


def refuse_if_held(node: Node, launch: str) -> None:
    """AgentError `held` where a person asked to leave this node, or this launch, alone."""
    hold = next((h for h in _holds(node) if h["launch"] in ("", launch)), None)
    if hold is not None:
        what = "launch %s" % launch if hold["launch"] else "this node"
        raise AgentError(
            "held", "%s is held by %s: %s" % (what, hold["who"] or "?", hold["reason"])
        )
