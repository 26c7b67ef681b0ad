"""The agent's entry points: the session that the bootstrap starts, and its own child processes.

Each imports only what it needs; the supervisor imports all it will ever need before it says that it
is ready, because the file it came from may be gone later.
"""

from __future__ import annotations

import json
import os
import sys
from typing import List, Sequence

USAGE = """usage: agent.pyz serve [--root DIR] | supervise DIR | probe KIND | sim OPTIONS | version
"""


def bootstrapped(
    marker: str, root: str, agent: str, runs_from: str, previous: Sequence[str] = ()
) -> None:
    """Serve the session on stdin and stdout; called by the bootstrap line. Does not return."""
    from . import node, serve

    try:
        former = node.distinct_roots(root, previous)
        log = node.kernel_log(os.environ)
        found = node.Node(node.identity(os.environ), root, agent, runs_from, former, log)
        why = node.unsuitable_root(root, os.environ)
    except OSError as error:
        found, why = None, "this machine has no identity: %s" % error
    if found is None or why:
        text = json.dumps({"bootstrap": "unsuitable", "message": why})
        sys.stdout.write("\n\x1eRECONCILE %s %d %s\n" % (marker, len(text), text))
        sys.stdout.flush()
        os._exit(0)
    try:
        serve.run(found, os.environ, marker, sys.stdin, sys.stdout)
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    os._exit(0)


def main(argv: List[str]) -> int:
    """Run one of the agent's programs by name."""
    name = argv[0] if argv else ""
    if name == "serve":
        return _serve(argv[1:])
    if name == "supervise":
        from . import supervisor

        return supervisor.main(argv[1:], os.environ)
    if name == "probe" and len(argv) == 2:
        from . import probe

        return probe.main(argv[1])
    if name == "sim":
        from . import sim

        return sim.main(argv[1:])
    if name == "version":
        from . import VERSION

        print(VERSION)
        return 0
    sys.stderr.write(USAGE)
    return 2


def _serve(argv: List[str]) -> int:
    """A session by hand, with the marker `local`: for looking at a node without a reconciler."""
    root = (
        argv[1] if len(argv) == 2 and argv[0] == "--root" else os.environ.get("RECONCILE_ROOT", "")
    )
    if not os.path.isabs(root):
        sys.stderr.write("serve: --root DIR (absolute), or RECONCILE_ROOT\n")
        return 2
    os.makedirs(root, 0o700, exist_ok=True)
    agent = os.path.abspath(sys.argv[0])
    bootstrapped("local", root, agent, agent)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
