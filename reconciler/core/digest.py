"""`plan_digest`: ties what was reviewed to what is applied.

It covers the revision and, per change, what happens to whom, from which fingerprint to which, and
where. Launch suffixes, ports and ages differ between two plans of one situation and are left out,
and so is the order in which changes are listed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from reconciler.core.changes import Change, Seat
from reconciler.core.model import Revision


def digest(revision: Revision, changes: Iterable[Change]) -> str:
    """`d1:` and the SHA-256 of the canonical JSON of the revision and its actions."""
    actions = sorted(
        [
            change.address,
            str(change.symbol),
            [step.kind for step in change.steps],
            change.before,
            change.after,
            _seats(change.before_seats),
            _seats(change.after_seats),
        ]
        for change in changes
    )
    content = [revision.commit, revision.dirty, actions]
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=True)
    return f"d1:{hashlib.sha256(text.encode('ascii')).hexdigest()}"


def _seats(seats: tuple[Seat, ...]) -> list[list[object]]:
    return [[seat.node, list(seat.gpus)] for seat in seats]
