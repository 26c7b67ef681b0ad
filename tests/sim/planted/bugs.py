"""Mistakes planted on purpose, each through a seam: what a node does, what diff says, what plan
is told, what it answers. The suite has to find every one of them (test_planted).

They are mistakes that reconcilers really make: what is unseen read as gone, limits counted wrongly,
a step forgotten, a lease believed for too long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from reconciler.core.changes import AdoptStep, Plan, StartStep, Step, StopStep
from reconciler.core.diff import diff
from reconciler.core.endpoints import Endpoints, State, endpoints
from reconciler.core.fingerprint import fingerprint
from reconciler.core.ids import IdSource
from reconciler.core.model import Desired, Limit, NodeState
from reconciler.core.observed import FORMAT, Network, NodeAnswer, Observed, Shard
from reconciler.core.plan import plan
from reconciler.core.verdict import Backoff, Diff, JudgedLaunch, JudgedReplica, Verdict
from reconciler.simulate.reconciler import Differ, Planner, Publisher

Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Bug:
    """One mistake and the seam through which it is planted."""

    node: str = ""
    differ: Differ | None = None
    planner: Planner | None = None
    publisher: Publisher | None = None

    def story(self) -> dict[str, Any]:
        """What a Story is made with."""
        bugs = frozenset({self.node}) if self.node else frozenset()
        return {
            "bugs": bugs,
            "differ": self.differ,
            "planner": self.planner,
            "publisher": self.publisher,
        }


# --- seams ---------------------------------------------------------------------------------------


def told_desired(change: Callable[[Desired], Desired]) -> Bug:
    """plan is told something else than what is wanted."""

    def planner(desired: Desired, observed: Observed, difference: Diff, ids: IdSource) -> Plan:
        return plan(change(desired), observed, difference, ids)

    return Bug(planner=planner)


def told_observed(change: Callable[[NodeAnswer], NodeAnswer]) -> Bug:
    """plan is told something else than what the nodes said."""

    def planner(desired: Desired, observed: Observed, difference: Diff, ids: IdSource) -> Plan:
        looks = {
            name: replace(look, answer=change(look.answer)) if look.answer else look
            for name, look in observed.nodes.items()
        }
        return plan(desired, replace(observed, nodes=looks), difference, ids)

    return Bug(planner=planner)


def judged(change: Callable[[JudgedReplica], JudgedReplica]) -> Bug:
    """diff says something else of replicas."""

    def differ(desired: Desired, observed: Observed) -> Diff:
        true = diff(desired, observed)
        return replace(true, replicas=tuple(change(r) for r in true.replicas))

    return Bug(differ=differ)


def read_as(change: Callable[[JudgedLaunch], JudgedLaunch]) -> Bug:
    """diff says something else of launches."""
    return judged(lambda r: replace(r, launches=tuple(change(j) for j in r.launches)))


def answered(change: Callable[[Step], Step | None]) -> Bug:
    """plan leaves steps out, or changes them."""

    def planner(desired: Desired, observed: Observed, difference: Diff, ids: IdSource) -> Plan:
        made = plan(desired, observed, difference, ids)
        return replace(
            made,
            repairs=_kept(made.repairs, change),
            changes=tuple(replace(c, steps=_kept(c.steps, change)) for c in made.changes),
        )

    return Bug(planner=planner)


def _kept(steps: tuple[Step, ...], change: Callable[[Step], Step | None]) -> tuple[Step, ...]:
    return tuple(new for step in steps if (new := change(step)) is not None)


# --- the mistakes --------------------------------------------------------------------------------


def _unseen_is_gone(replica: JudgedReplica) -> JudgedReplica:
    if replica.verdict is not Verdict.UNREACHABLE:
        return replica
    return replace(replica, verdict=Verdict.MISSING, launches=(), blocked="")


def _unreachable_is_exited(replica: JudgedReplica) -> JudgedReplica:
    if replica.verdict is not Verdict.UNREACHABLE:
        return replica
    launches = tuple(replace(j, verdict=Verdict.EXITED) for j in replica.launches)
    return replace(replica, verdict=Verdict.EXITED, launches=launches, blocked="")


def _superseded_too_soon(replica: JudgedReplica) -> JudgedReplica:
    if not (replica.current and replica.kept and replica.current != replica.kept):
        return replica
    launches = tuple(
        replace(j, verdict=Verdict.SURPLUS, not_wanted=False)
        if j.view.launch == replica.kept
        else j
        for j in replica.launches
    )
    return replace(replica, launches=launches, kept="")


def _starting_is_stale(judged_launch: JudgedLaunch) -> JudgedLaunch:
    if judged_launch.verdict is not Verdict.STARTING:
        return judged_launch
    return replace(judged_launch, verdict=Verdict.STALE)


def _all_canaries(desired: Desired, observed: Observed) -> Diff:
    """Whoever should wait for the canary gets today's profile too."""

    def change(replica: JudgedReplica) -> JudgedReplica:
        effective = replica.effective
        if effective is None or not effective.waiting:
            return replica
        today = desired.resolved(desired.placements[replica.placement])
        effective = replace(effective, waiting=False, profile=today, fingerprint=fingerprint(today))
        launches = tuple(
            replace(j, verdict=Verdict.STALE) if j.verdict is Verdict.MATCHING else j
            for j in replica.launches
        )
        return replace(
            replica, effective=effective, launches=launches, current="", kept=replica.current
        )

    true = diff(desired, observed)
    return replace(true, replicas=tuple(change(r) for r in true.replicas))


def _forgets_rename(replica: JudgedReplica) -> JudgedReplica:
    if not replica.renamed_from:
        return replica
    return replace(
        replica, launches=(), verdict=Verdict.MISSING, current="", kept="", renamed_from=""
    )


def _forgets_seq(replica: JudgedReplica) -> JudgedReplica:
    launches = tuple(replace(j, view=replace(j.view, seq=0)) for j in replica.launches)
    return replace(replica, launches=launches)


def _rollout(**over: Any) -> Callable[[Desired], Desired]:
    def change(desired: Desired) -> Desired:
        placements = {
            n: replace(p, rollout=replace(p.rollout, **over)) for n, p in desired.placements.items()
        }
        return replace(desired, placements=placements)

    return change


def _guard(**over: Any) -> Callable[[Desired], Desired]:
    def change(desired: Desired) -> Desired:
        rails = replace(desired.fleet.guard, **over)
        return replace(desired, fleet=replace(desired.fleet, guard=rails))

    return change


def _nodes(**over: Any) -> Callable[[Desired], Desired]:
    def change(desired: Desired) -> Desired:
        nodes = {n: replace(d, **over) for n, d in desired.nodes.items()}
        return replace(desired, nodes=nodes)

    return change


def _thawed(desired: Desired) -> Desired:
    fleet = replace(desired.fleet, freeze=None)
    placements = {n: replace(p, freeze=None) for n, p in desired.placements.items()}
    return _rollout(update="rolling")(replace(desired, fleet=fleet, placements=placements))


def _thawed_differ(desired: Desired, observed: Observed) -> Diff:
    return diff(_thawed(desired), observed)


def _thawed_planner(desired: Desired, observed: Observed, made: Diff, ids: IdSource) -> Plan:
    return plan(_thawed(desired), observed, made, ids)


def _one_class(desired: Desired) -> Desired:
    nodes = {n: replace(d, gpus=replace(d.gpus, klass="")) for n, d in desired.nodes.items()}
    return replace(desired, nodes=nodes)


def _as_if_seen(observed: Observed) -> Observed:
    looks = {
        name: replace(look, answer=look.answer or look.last, error=None)
        for name, look in observed.nodes.items()
    }
    return replace(observed, nodes=looks)


def _old_differ(desired: Desired, observed: Observed) -> Diff:
    return diff(desired, _as_if_seen(observed))


def _old_planner(desired: Desired, observed: Observed, made: Diff, ids: IdSource) -> Plan:
    return plan(desired, _as_if_seen(observed), made, ids)


def _only_shards(keep: Callable[[Shard], bool]) -> Callable[[NodeAnswer], NodeAnswer]:
    def change(answer: NodeAnswer) -> NodeAnswer:
        gpus = tuple(replace(g, processes=()) for g in answer.gpus.items)
        return replace(
            answer,
            shards=tuple(s for s in answer.shards if keep(s)),
            gpus=replace(answer.gpus, items=gpus),
        )

    return change


def _unlinked(answer: NodeAnswer) -> NodeAnswer:
    items = tuple(replace(g, nvlink_group=None) for g in answer.gpus.items)
    return replace(answer, gpus=replace(answer.gpus, items=items))


def _all_ports_free(answer: NodeAnswer) -> NodeAnswer:
    shards = tuple(
        replace(
            s,
            record=replace(s.record, places=tuple(replace(p, ports={}) for p in s.record.places)),
        )
        if s.record
        else s
        for s in answer.shards
    )
    return replace(answer, shards=shards, network=Network())


def _strict_about_format(desired: Desired, observed: Observed) -> Diff:
    """Only what this very release wrote is read."""

    def told(shard: Shard) -> Shard:
        if shard.record is None or shard.record.format == FORMAT:
            return shard
        return replace(shard, record=None, record_error="another format")

    looks = {
        name: replace(
            look, answer=replace(look.answer, shards=tuple(map(told, look.answer.shards)))
        )
        if look.answer
        else look
        for name, look in observed.nodes.items()
    }
    return diff(desired, replace(observed, nodes=looks))


def _without_departed(desired: Desired, observed: Observed) -> Diff:
    """What left the repo is looked at no more."""
    nodes = {n: d for n, d in desired.nodes.items() if n not in desired.departed}
    looks = {n: look for n, look in observed.nodes.items() if n in nodes}
    left = replace(desired, nodes=nodes, departed=frozenset())
    return diff(left, replace(observed, nodes=looks))


def _publishes_late(
    desired: Desired,
    observed: Observed,
    made: Diff,
    before: Endpoints | None,
    *,
    leaving: Collection[str] = (),
    now: str,
) -> Endpoints:
    return endpoints(desired, observed, made, before, now=now)


def _lists_what_is_seen(
    desired: Desired,
    observed: Observed,
    made: Diff,
    before: Endpoints | None,
    *,
    leaving: Collection[str] = (),
    now: str,
) -> Endpoints:
    true = endpoints(desired, observed, made, before, leaving=leaving, now=now)
    return replace(true, entries=tuple(e for e in true.entries if e.state is State.READY))


def _never_again(
    desired: Desired,
    observed: Observed,
    made: Diff,
    before: Endpoints | None,
    *,
    leaving: Collection[str] = (),
    now: str,
) -> Endpoints:
    """Only what has just started is added, so a stop that was not sent costs the entry."""
    true = endpoints(desired, observed, made, before, leaving=leaving, now=now)
    known = {e.launch for e in before.entries} if before else set()
    young = {
        j.view.launch
        for r in made.replicas
        for j in r.launches
        if all(s.health.ready_for_s < 15 for s in j.view.shards.values() if s.serves)
    }
    kept = known | young
    return replace(true, entries=tuple(e for e in true.entries if e.launch in kept))


def _first_node_only(step: Step) -> Step | None:
    if isinstance(step, StopStep) and len(step.nodes) > 1:
        return replace(step, nodes=step.nodes[:1])
    return step


def _sheds(kind: type, *, repairs_only: bool = False) -> Callable[[Step], Step | None]:
    def change(step: Step) -> Step | None:
        if isinstance(step, kind) and not (
            repairs_only and isinstance(step, StopStep) and step.voluntary
        ):
            return None
        return step

    return change


def _unasked(step: Step) -> Step | None:
    return replace(step, check=()) if isinstance(step, StopStep) else step


def _one_rank(step: Step) -> Step | None:
    if isinstance(step, StartStep) and len(step.shards) > 1:
        return replace(step, shards=step.shards[:1])
    return step


BUGS: dict[str, Bug] = {
    # nodes
    "process before its record": Bug(node="process-before-record"),
    "the fence is not asked": Bug(node="no-fence"),
    "the fence ignores expiry": Bug(node="fence-ignores-expiry"),
    "the fence ignores the epoch": Bug(node="fence-ignores-epoch"),
    "a living lease is taken over": Bug(node="lease-not-held"),
    "a taken GPU is not refused": Bug(node="no-taken-check"),
    "ages are told by another's clock": Bug(node="ages-by-another-clock"),
    # what is not seen
    "unreachable is missing": judged(_unseen_is_gone),
    "unreachable is exited": judged(_unreachable_is_exited),
    "the last look is taken for today's": Bug(differ=_old_differ, planner=_old_planner),
    # verdicts
    "the old launch is superseded before the new one is ready": judged(_superseded_too_soon),
    "starting is stale": read_as(_starting_is_stale),
    "nobody waits for the canary": Bug(differ=_all_canaries),
    "back-off is forgotten": judged(lambda r: replace(r, backoff=Backoff())),
    "a rename is forgotten": judged(_forgets_rename),
    "seq starts anew": judged(_forgets_seq),
    "a record of another minor format is damaged": Bug(differ=_strict_about_format),
    # limits
    "max_unavailable is not asked": told_desired(_rollout(max_unavailable=99)),
    "max_parallel is not asked": told_desired(
        lambda d: replace(d, fleet=replace(d.fleet, max_parallel=Limit(count=99)))
    ),
    "the guard lets everything through": told_desired(_guard(max_removed=Limit(percent=100))),
    "wanted replicas count as none": told_desired(
        lambda d: replace(
            _rollout(max_unavailable=1)(d),
            fleet=replace(d.fleet, max_unavailable_per_model=Limit(percent=100)),
            placements={
                n: replace(p, rollout=replace(p.rollout, max_unavailable=4, max_surge=0))
                for n, p in d.placements.items()
            },
        )
    ),
    "a freeze is not asked": Bug(differ=_thawed_differ, planner=_thawed_planner),
    # places
    "cordons and drains are ignored": told_desired(_nodes(state=NodeState.ACTIVE)),
    "departed nodes are used again": told_desired(lambda d: replace(d, departed=frozenset())),
    "departed nodes are not asked": Bug(differ=_without_departed),
    "GPU classes are mixed": told_desired(_one_class),
    "NVLink groups are not asked": told_observed(_unlinked),
    "what stops is free already": told_observed(_only_shards(lambda s: not s.stop_asked)),
    "what starts is not there yet": told_observed(_only_shards(lambda s: s.ever_ready)),
    "ports of the living are free": told_observed(_all_ports_free),
    # leases
    "another's lease is ignored": told_observed(lambda a: replace(a, lease=None)),
    # draining
    "stops are sent before the endpoints are published": Bug(publisher=_publishes_late),
    "what is out of sight leaves the endpoints": Bug(publisher=_lists_what_is_seen),
    "what left the endpoints never comes back": Bug(publisher=_never_again),
    "requests in flight are not awaited": Bug(node="no-drain"),
    # steps
    "nobody asks whether the successor could start": answered(_unasked),
    "orphans are not adopted": answered(_sheds(AdoptStep)),
    "leftovers are not swept": answered(_sheds(StopStep, repairs_only=True)),
    "only the first rank is stopped": answered(_first_node_only),
    "only the first rank is started": answered(_one_rank),
}
