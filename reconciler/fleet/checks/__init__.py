"""What documents say about each other: the checks that no schema of one document can make.

Each check is a function of the whole repo and yields findings; none needs a node or a network, so
all of them run on a pull request. They look only at documents that fit their schema: what does not
is told already, and a reference to it is not called dangling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from reconciler.fleet.checks import (
    adapters,
    amounts,
    engine,
    fabrics,
    fit,
    literals,
    lookalikes,
    nodes,
    policy,
    references,
    secrets,
)
from reconciler.fleet.findings import Finding
from reconciler.fleet.repo import Repo

CHECKS: tuple[Callable[[Repo], Iterable[Finding]], ...] = (
    references.check,
    nodes.check,
    fabrics.check,
    policy.check,
    secrets.check,
    literals.check,
    lookalikes.check,
    engine.check,
    adapters.check,
    fit.check,
    amounts.check,
)


def check(repo: Repo) -> Iterator[Finding]:
    """The findings of every check, made as they are asked for."""
    return (finding for one in CHECKS for finding in one(repo))
