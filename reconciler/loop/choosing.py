"""What a pass looks at and works on: head, or the revision in force, by what git and nodes say.

The reading half of `revisions`, which decides; nothing here acts.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from reconciler.core.model import Desired, Revision
from reconciler.core.observed import Observed
from reconciler.errors import GitError, InvalidFleet
from reconciler.loop import revisions
from reconciler.loop.head import Head, git_reason, older_inventories
from reconciler.loop.seams import Edges
from reconciler.loop.trust import Trust, ended
from reconciler.loop.turning import behind, turn
from reconciler.loop.values import Request
from reconciler.report.passreport import HeadError


def look(edges: Edges, request: Request, looking: Desired) -> tuple[Desired, Observed]:
    """The nodes of `looking`; where none of them names a revision in force, older ones too.

    A commit that takes out every node that ever led the fleet must not make it look new: what
    those nodes run would then be neither seen nor held.
    """
    observed = edges.pool.look(looking, remember=request.act)
    if revisions.lease_facts(observed, looking.fleet.id).revisions:
        return looking, observed
    for older in older_inventories(edges.source, looking.revision):
        nodes = {**older.nodes, **looking.nodes}
        if older.fleet.id == looking.fleet.id and nodes.keys() != looking.nodes.keys():
            looking = replace(looking, nodes=nodes)
            observed = edges.pool.look(looking, remember=request.act)
            if revisions.lease_facts(observed, looking.fleet.id).revisions:
                break
    return looking, observed


def work_on(
    edges: Edges, head: Head, observed: Observed, looking: Desired, trust: Trust, request: Request
) -> revisions.Working:
    """Head, or the revision in force: by what the leases of the nodes in sight say."""
    facts, notes = trust.facts(head, revisions.lease_facts(observed, looking.fleet.id))
    commit = (head.revision or looking.revision).commit

    def history() -> list[str]:
        found = islice(edges.source.ancestors(commit), revisions.MAX_HISTORY) if commit else ()
        return [revision.commit for revision in found]

    def load(name: str) -> Desired | None:
        if not trust.trusts(name, head):
            return None
        try:
            return edges.source.load(Revision(name, root_commit=looking.revision.root_commit))
        except (InvalidFleet, GitError):
            return None

    try:
        if head.error and head.desired and facts.revisions:
            newer = revisions.outside(facts.revisions, history())
            if newer:
                return revisions.outrun(head, facts, revisions.in_force(newer, ()), load)
        force = revisions.in_force(facts.revisions, history() if len(facts.revisions) > 1 else ())
        turned = None
        # The whole history is walked only where there is something to find out.
        if head.desired and head.revision and force != commit:
            known = history()
            if revisions.is_rewritten(force, commit, known):
                turned = turn(edges.source, force, head.revision, known)
    except GitError as error:
        # What came before head cannot be read, so nobody can tell what following it would undo.
        head = Head(head.revision, None, HeadError(git_reason(error), str(error)))
        force, turned = revisions.in_force(facts.revisions, ()), None
    seen = request.reviewed or not request.act
    if turned and head.revision and not (turned.known or edges.source.has_remote) and not seen:
        head = Head(head.revision, None, behind(turned, head.revision))
    checks = trust.asked or not request.act
    working = revisions.choose(ended(head, force), facts, force, load, turned=turned, checks=checks)
    return replace(working, notes=(*notes, *working.notes))
