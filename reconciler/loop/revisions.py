"""Which revision a pass works on: head where it validates, else the one in force, else none.

Small functions of what git and the leases said; nothing here acts or reaches out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from reconciler.core import policy
from reconciler.core.model import Desired, Node, NodeState
from reconciler.core.observed import ApprovedChange, NodeAnswer, Observed
from reconciler.loop.head import Head
from reconciler.report.passreport import HeadError, HistoryTurn

MAX_HISTORY = 20_000
"""Commits searched for the one in force before history counts as rewritten."""


# --- What the leases say ----------------------------------------------------------------------


@dataclass(frozen=True)
class LeaseFacts:
    """What must outlive the reconciler, put together from all nodes that answered."""

    revisions: Mapping[str, int] = field(default_factory=dict)
    """Commit in force → how many nodes name it."""
    roots: frozenset[str] = frozenset()
    departed: Mapping[str, str] = field(default_factory=dict)
    approvals: tuple[ApprovedChange, ...] = ()


def lease_facts(observed: Observed, fleet: str) -> LeaseFacts:
    """Leases of this fleet only. What one node forgot (it was down) another one knows."""
    leases = [
        look.answer.lease
        for _, look in sorted(observed.nodes.items())
        if look.answer and look.answer.lease and look.answer.lease.fleet == fleet
    ]
    departed: dict[str, str] = {}
    for lease in leases:
        departed.update(lease.departed)
    return LeaseFacts(
        revisions=Counter(lease.revision for lease in leases if lease.revision),
        roots=frozenset(lease.root_commit for lease in leases if lease.root_commit),
        departed=departed,
        approvals=tuple(dict.fromkeys(a for lease in leases for a in lease.approvals)),
    )


def in_force(revisions: Mapping[str, int], history: Iterable[str]) -> str:
    """The commit in force: the newest of head's own history that a node names.

    A node that was out of sight names an older one; after a reset of the branch it may name one
    that is no longer in its history, which counts only where no other is named, by majority.
    """
    if len(revisions) > 1:
        for commit in islice(history, MAX_HISTORY):
            if commit in revisions:
                return commit
    ranked = sorted(revisions.items(), key=lambda item: (-item[1], item[0]))
    return ranked[0][0] if ranked else ""


def is_rewritten(commit: str, head: str, history: Iterable[str]) -> bool:
    """Whether `commit` has left head's history: the branch was force-pushed or reset."""
    if not commit or not head or commit == head:
        return False
    return commit not in islice(history, MAX_HISTORY)


def outside(revisions: Mapping[str, int], history: Iterable[str]) -> dict[str, int]:
    """Those in force on a node that head's history does not have."""
    known = set(islice(history, MAX_HISTORY))
    return {commit: nodes for commit, nodes in revisions.items() if commit not in known}


# --- The choice -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Working:
    """What this pass works on."""

    desired: Desired | None
    repairs_only: bool = False
    in_force: str = ""
    departed: Mapping[str, str] = field(default_factory=dict)
    """Node → commit that has its document; all of them are in `desired.departed`."""
    error: HeadError | None = None
    notes: tuple[str, ...] = ()
    turned: HistoryTurn | None = None


Load = Callable[[str], Desired | None]
"""The revision of a commit, or None where it does not load (any more)."""


def choose(
    head: Head,
    facts: LeaseFacts,
    force: str,
    load: Load,
    *,
    turned: HistoryTurn | None = None,
    checks: bool = True,
) -> Working:
    """Head if it validates and its history may be followed; else repairs on the one in force.

    `checks`: whether signatures were checked, or need not be since nothing is acted on.
    """
    desired = head.desired
    before = load(force) if force and not (desired and _is_same(desired, force)) else desired
    if desired is not None and not checks and _asks_for_signatures(desired, before):
        error = HeadError("SignatureInvalid", _NO_KEYS, str(desired.revision))
        return _repairs(before, facts, force, load, error)
    if desired is not None and turned and desired.fleet.history == "hold":
        error = HeadError(
            "HistoryRewritten",
            f"{force[:10]}, the revision in force, is no longer in its history; fleet.yaml says"
            " `history: hold`: restore the branch, or set `history: follow` on it",
            str(desired.revision),
        )
        return _repairs(before, facts, force, load, error)
    if desired is None:
        return _repairs(before, facts, force, load, head.error)
    nodes, commits = departed(desired, before, facts.departed, load)
    return Working(
        replace(desired, nodes={**desired.nodes, **nodes}, departed=frozenset(nodes)),
        in_force=force,
        departed=commits,
        error=head.error,
        notes=(turned.message,) if turned else (),
        turned=turned,
    )


_NO_KEYS = (
    "fleet.yaml says `history: signed`, and this reconciler has no keys to check a signature with:"
    " name them by RECONCILE_ALLOWED_SIGNERS or RECONCILE_OPENPGP_KEYS"
)


def _asks_for_signatures(*revisions: Desired | None) -> bool:
    """One that is in force counts too: an unsigned commit must not lift it."""
    return any(one is not None and one.fleet.history == "signed" for one in revisions)


def outrun(head: Head, facts: LeaseFacts, force: str, load: Load) -> Working:
    """The fetch failed, and nodes name a revision that is not in what was fetched before: that may
    be older than what runs, and must not be rolled out as if it were news."""
    note = (
        f"{force[:10]}, the revision in force, is not in the history that was fetched before,"
        " which may be older: only repairs until a fetch succeeds"
    )
    working = _repairs(load(force), facts, force, load, head.error)
    return replace(working, notes=(note, *working.notes))


def _repairs(
    before: Desired | None, facts: LeaseFacts, force: str, load: Load, error: HeadError | None
) -> Working:
    if before is None:
        told = (
            f"{force[:10]}, the revision in force, cannot be read: nothing is done"
            if force
            else "no node names a revision in force: nothing is done"
        )
        return Working(None, True, force, facts.departed, error, (told,))
    nodes, commits = departed(before, None, facts.departed, load)
    return Working(
        replace(
            before,
            nodes={**before.nodes, **nodes},
            departed=frozenset(nodes),
            repairs_only=True,
        ),
        repairs_only=True,
        in_force=force,
        departed=commits,
        error=error,
        notes=(f"repairs go on, on {force[:10]}, the revision in force",),
    )


def _is_same(desired: Desired, commit: str) -> bool:
    return desired.revision.commit == commit and not desired.revision.dirty


def departed(
    desired: Desired, before: Desired | None, stored: Mapping[str, str], load: Load
) -> tuple[dict[str, Node], dict[str, str]]:
    """Nodes that were taken out and not yet seen empty: their documents, and the commit of each.

    `lost` frees what a node holds, so a node that was lost when it was taken out is not kept.
    """
    nodes: dict[str, Node] = {}
    commits: dict[str, str] = {}
    for name, node in sorted(before.nodes.items() if before else ()):
        if name not in desired.nodes and node.state is not NodeState.LOST and before is not None:
            nodes[name], commits[name] = node, before.revision.commit
    for name, commit in sorted(stored.items()):
        if name in desired.nodes or name in nodes:
            continue
        older = load(commit)
        if older is not None and name in older.nodes:
            nodes[name], commits[name] = older.nodes[name], commit
    return nodes, commits


def is_empty(answer: NodeAnswer | None) -> bool:
    """Whether a departed node was seen empty: it answers whole and nothing on it lives."""
    if answer is None or answer.shards_error:
        return False
    return not any(shard.alive for shard in answer.shards)


def still_departed(commits: Mapping[str, str], observed: Observed) -> dict[str, str]:
    """What the leases keep naming: departed nodes that were not seen empty in this pass, nor under
    the name that another document gives them."""
    here = {a.machine_id for n in observed.nodes if n not in commits and (a := observed.answer(n))}

    def gone(answer: NodeAnswer | None) -> bool:
        return is_empty(answer) or (answer is not None and answer.machine_id in here)

    return {n: c for n, c in commits.items() if not gone(observed.answer(n))}


def pruned(
    approvals: Iterable[ApprovedChange], planned: Iterable[ApprovedChange], desired: Desired
) -> tuple[ApprovedChange, ...]:
    """Approvals whose change is still ahead: what was carried out must not cover a later one.

    And those that tell what a placement of `update: manual` was let through to, until git asks for
    something else.
    """
    ahead = set(planned)
    return tuple(a for a in approvals if a in ahead or policy.still_stands(desired, a))
