"""One pass of the reconciler that is killed at its n-th request to a node.

    python -m tests.e2e.dying REPO N before|after

`before`: the request is never sent; `after`: it was carried out and its answer is lost with the
process. Prints the request that was its last. Exits 0 where the pass ended before its n-th request.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from reconciler.cli.session import Session
from reconciler.loop.passes import Request, run_pass
from reconciler.nodes.pool import NodePool
from reconciler.settings import Settings


class Dying:
    """A pool whose n-th acting request is this process's last."""

    def __init__(self, pool: NodePool, last: int, when: str) -> None:
        self._pool, self._left, self._when = pool, last, when
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def request(self, desired: Any, node: str, op: str, **fields: Any) -> Any:
        """One request to one node. A question whether it could start changes nothing there."""
        if op == "check":
            return self._pool.request(desired, node, op, **fields)
        return self._counted(
            f"{op} {node}", lambda: self._pool.request(desired, node, op, **fields)
        )

    def lease(self, desired: Any, nodes: Any, action: str, **fields: Any) -> Any:
        """Leases, node by node: each is a boundary of its own."""
        answers: dict[str, Any] = {}
        for node in sorted(nodes):
            answers.update(
                self._counted(
                    f"lease {action} {node}",
                    lambda n=node: self._pool.lease(desired, [n], action, **fields),  # type: ignore[misc]
                )
            )
        return answers

    def _counted(self, what: str, act: Any) -> Any:
        with self._lock:  # apply asks several nodes at once
            self._left -= 1
            dies = self._left == 0
        if dies:
            print(what, flush=True)
            if self._when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
        answer = act()
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


def main() -> int:
    """See the module."""
    repo, last, when = sys.argv[1:]
    with Session(Settings.read(), repo, None) as session:
        run_pass(session.edges(pool=Dying(session.pool, int(last), when)), Request())
    return 0


if __name__ == "__main__":
    sys.exit(main())
