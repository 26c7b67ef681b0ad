"""For commands by which people act: the leases of some nodes, for the moment of one request.

A daemon that holds them is not waited for: a person outranks it. The lease is taken with a reason
(the journal keeps it) and given back at once; the daemon is fenced meanwhile and starts a new pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from reconciler.cli.stopping import to_the_end
from reconciler.core.changes import Reason
from reconciler.errors import Blocked

if TYPE_CHECKING:
    from reconciler.cli.session import Session
    from reconciler.core.model import Desired
    from reconciler.core.observed import Observed


@contextmanager
def leases(
    session: Session, desired: Desired, nodes: Sequence[str], reason: str, **fields: Any
) -> Iterator[dict[str, int]]:
    """Epochs by node; nodes that answer no are left out. `fields` are stored in the leases."""
    pool = session.pool
    with to_the_end():
        got = pool.lease(desired, nodes, "acquire", **fields)
        held = [n for n, a in got.items() if a.reason is Reason.LEASE_HELD]
        if held:
            got |= pool.lease(desired, held, "take", reason=reason, **fields)
        epochs = {n: a.lease.epoch for n, a in got.items() if a.lease}
        try:
            yield epochs
        finally:
            if epochs:
                pool.lease(desired, sorted(epochs), "release", epochs=epochs)


def store(
    session: Session, desired: Desired, observed: Observed, reason: str, **fields: Any
) -> list[str]:
    """Write `fields` into the leases of all nodes that answer; the nodes that have them now.

    Raises Blocked where no node took them.
    """
    nodes = [name for name, look in sorted(observed.nodes.items()) if look.answer]
    with leases(session, desired, nodes, reason, **fields) as epochs:
        if not epochs:
            raise Blocked(
                f"fleet {desired.fleet.name}", "no node took it", "`reconcile doctor` says why"
            )
    return sorted(epochs)


def actor(session: Session) -> str:
    """The person, for reasons and journals."""
    return f"{session.settings.user}@{session.settings.host}"
