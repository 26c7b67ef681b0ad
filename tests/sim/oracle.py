"""What no plan may ever do, checked against what was seen, by other means than the planner's.

Each rule is one function that yields sentences; an empty answer means that the rule holds. The
rules are written from DESIGN's safety rules and share no code with reconciler/core/plan.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from reconciler.core.changes import Plan, RelabelStep, StartStep, StopStep
from reconciler.core.fingerprint import fingerprint
from reconciler.core.model import Desired, NodeState
from reconciler.core.observed import Observed, Phase
from reconciler.core.verdict import Diff, JudgedLaunch, JudgedReplica, Verdict


def faults(desired: Desired, observed: Observed, diff: Diff, plan: Plan) -> list[str]:
    """Every broken rule, as sentences."""
    return [
        *nothing_is_given_twice(observed, plan),
        *no_shard_has_two_fabrics(desired, plan),
        *no_block_lies_in_two_link_groups_beside_a_whole_one(observed, diff, plan),
        *only_nodes_that_may_be_acted_on(desired, observed, plan),
        *what_is_not_understood_is_left_alone(diff, plan),
        *voluntary_stops_keep_enough_ready(desired, diff, plan),
        *no_more_than_max_parallel_begin(desired, diff, plan),
        *the_guard_holds(desired, diff, plan),
        *nothing_starts_where_it_must_not(desired, diff, plan),
        *only_what_differs_is_stopped(diff, plan),
        *starts_follow_the_verdicts(diff, plan),
        *one_at_a_time_tries_a_new_profile(desired, observed, diff, plan),
        *many_sick_at_once_are_left_alone(diff, plan),
        *what_people_hold_is_not_changed(desired, diff, plan),
        *every_change_says_what_it_waits_for(plan),
    ]


def nothing_is_given_twice(observed: Observed, plan: Plan) -> Iterator[str]:
    """Rule 2: a GPU or port is given only when seen free, and once."""
    for kind in ("gpus", "ports"):
        held: dict[tuple[str, object], str] = {}
        for name, look in observed.nodes.items():
            for shard in look.answer.shards if look.answer else ():
                if shard.alive and shard.record:
                    for place in shard.record.places:
                        if place.rank == shard.record.rank:
                            things = place.gpus if kind == "gpus" else place.ports.values()
                            held.update({(name, t): shard.launch for t in things})
        for step in plan.steps:
            if isinstance(step, StartStep):
                for given in step.shards:
                    for place in given.spec["places"]:
                        if place["node"] != given.node:
                            continue
                        things = place["gpus"] if kind == "gpus" else place["ports"].values()
                        for thing in things:
                            if (given.node, thing) in held:
                                other = held[given.node, thing]
                                yield f"{kind} {thing} of {given.node}: {step.launch} and {other}"
                            held[given.node, thing] = step.launch


def no_shard_has_two_fabrics(desired: Desired, plan: Plan) -> Iterator[str]:
    """Rule 6: all ranks of a replica on the placement's one fabric, on like adapters."""
    for step in plan.steps:
        if isinstance(step, StartStep):
            fabrics = {p["fabric"] for s in step.shards for p in s.spec["places"]}
            if len(fabrics) != 1:
                yield f"{step.launch} is on fabrics {sorted(fabrics)}"
            (fabric,) = fabrics or {""}
            nodes = [desired.nodes[s.node] for s in step.shards]
            if fabric and any(fabric not in n.fabrics for n in nodes):
                yield f"{step.launch} is on a node without fabric {fabric}"
            if fabric and len({len(n.fabrics[fabric].adapters) for n in nodes}) > 1:
                yield f"{step.launch} has ranks with unlike numbers of adapters"
            if len({n.gpus.klass for n in nodes}) > 1:
                yield f"{step.launch} mixes GPU classes"
            if len({s.node for s in step.shards}) != len(step.shards):
                yield f"{step.launch} has two ranks on one node"


def no_block_lies_in_two_link_groups_beside_a_whole_one(
    observed: Observed, diff: Diff, plan: Plan
) -> Iterator[str]:
    """A rank's GPUs lie in two NVLink groups only where none of its node has as many free, and a
    replica that keeps its GPUs may keep them however they lie. Those of a launch that is ending
    stay its own until all its ranks have ended, and its successor's then."""
    had = {
        (r.replica, p.node): set(p.gpus)
        for r in diff.replicas
        for j in reversed(r.launches)
        for p in j.view.places
    }
    shards = [s for step in plan.steps if isinstance(step, StartStep) for s in step.shards]
    given = {g for s in shards for p in s.spec["places"] for g in p["gpus"]}
    given |= {
        g
        for r in diff.replicas
        for j in r.launches
        if j.verdict is Verdict.STOPPING
        for p in j.view.places
        for g in p.gpus
    }
    for shard in shards:
        (mine,) = (set(p["gpus"]) for p in shard.spec["places"] if p["node"] == shard.node)
        answer = observed.answer(shard.node)
        items = answer.gpus.items if answer else ()
        groups = {g.uuid: g.nvlink_group for g in items if g.nvlink_group is not None}
        open_ = Counter(
            groups[g.uuid]
            for g in items
            if g.uuid in groups and not (g.processes or g.error or g.uuid in given - mine)
        )
        whole = [n for n, count in open_.items() if count >= len(mine)]
        split = len({groups[g] for g in mine if g in groups}) > 1
        if split and whole and not mine & had.get((shard.spec["replica"], shard.node), set()):
            yield f"{shard.spec['launch']} lies in two NVLink groups of {shard.node}"


def only_nodes_that_may_be_acted_on(
    desired: Desired, observed: Observed, plan: Plan
) -> Iterator[str]:
    """Rule 1 and 'Who may act': no step to silent nodes, held nodes, or another's nodes."""
    foreign = False
    for look in observed.nodes.values():
        lease = look.answer.lease if look.answer else None
        if lease and lease.owner != observed.owner and lease.remaining_s > 0:
            foreign = True
    for step in plan.steps:
        if isinstance(step, StartStep):
            nodes = tuple(s.node for s in step.shards)
        else:
            nodes = step.nodes
        for node in nodes:
            answer = observed.answer(node)
            if answer is None:
                yield f"{step.kind} {step.launch} goes to silent {node}"
                continue
            if answer.hold and answer.hold.launch in ("", step.launch):
                yield f"{step.kind} {step.launch} goes to held {node}"
            lease = answer.lease
            if lease and lease.owner != observed.owner and lease.remaining_s > 0:
                yield f"{step.kind} {step.launch} goes to {node}, which {lease.owner} leads"
        if foreign and isinstance(step, StopStep) and step.voluntary:
            yield f"voluntary stop of {step.launch} while another reconciler leads somewhere"


def what_is_not_understood_is_left_alone(diff: Diff, plan: Plan) -> Iterator[str]:
    """Unknown and unreachable launches get no stop, no relabel; their replicas no second start."""
    touchy = (Verdict.UNKNOWN, Verdict.UNREACHABLE)
    verdicts = {j.view.launch: j for r in diff.replicas for j in r.launches}
    verdicts |= {j.view.launch: j for j in diff.strays}
    by_name = {r.replica: r for r in diff.replicas}
    for step in plan.steps:
        if isinstance(step, StopStep | RelabelStep):
            judged = verdicts.get(step.launch)
            if judged and judged.verdict in touchy:
                yield f"{step.kind} of {step.launch}, which is {judged.verdict}"
            if judged is None:
                yield f"{step.kind} of {step.launch}, which nobody has seen"
        if isinstance(step, StartStep):
            replica = by_name.get(step.replica)
            if replica is None or not replica.wanted:
                yield f"start of {step.replica}, which nobody wants"
            elif replica.blocked or any(j.verdict in touchy for j in replica.launches):
                yield f"start of {step.replica}, which may be running out of sight"


def voluntary_stops_keep_enough_ready(desired: Desired, diff: Diff, plan: Plan) -> Iterator[str]:
    """Rule 3, over placements and over models."""
    stopped = {s.launch for s in plan.steps if isinstance(s, StopStep)}
    ready: Counter[str] = Counter()
    after: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    model_of: dict[str, str] = {}
    touched: set[str] = set()
    for replica in diff.replicas:
        placement = desired.placements.get(replica.placement)
        keys = (f"placement {replica.placement}", f"model {replica.model}")
        model_of[keys[0]] = replica.model
        suspended = placement is not None and placement.suspend
        if replica.wanted and not suspended:
            wanted.update(keys)
        serving = [j for j in replica.launches if _serves(j)]
        left = [j for j in serving if j.view.launch not in stopped]
        if serving:
            ready.update(keys)
        if left:
            after.update(keys)
        elif serving:
            touched.update(keys)
    for key in sorted(touched):
        name = key.split(" ", 1)[1]
        if key.startswith("placement"):
            placement = desired.placements.get(name)
            spare = placement.rollout.max_unavailable if placement else 0
        else:
            spare = max(
                (
                    p.rollout.max_unavailable
                    for p in desired.placements.values()
                    if desired.profiles[p.profile].model == name
                ),
                default=1,
            )
        if wanted[key] and after[key] < wanted[key] - spare:
            yield (
                f"{key}: {ready[key]} of {wanted[key]} ready, {after[key]} after this plan's stops,"
                f" at least {wanted[key] - spare} must stay"
            )


def no_more_than_max_parallel_begin(desired: Desired, diff: Diff, plan: Plan) -> Iterator[str]:
    """Rule 3: what begins to be replaced in one pass stays within the fleet's share."""
    wanted = {r.replica: r for r in diff.replicas if r.wanted}
    total = sum(not desired.placements[r.placement].suspend for r in wanted.values())
    limit = desired.fleet.max_parallel.of(total, least=1)
    begun: set[str] = set()
    for step in plan.steps:
        replica = wanted.get(step.replica) if isinstance(step, StartStep | StopStep) else None
        if replica is None or desired.placements[replica.placement].suspend:
            continue
        serving = [j for j in replica.launches if _serves(j)]
        if isinstance(step, StartStep) and serving:
            begun.add(replica.replica)
        if isinstance(step, StopStep) and [j.view.launch for j in serving] == [step.launch]:
            begun.add(replica.replica)
    under_way = {
        r.replica
        for r in wanted.values()
        if r.current and r.kept and r.current != r.kept and not r.ready
        if not desired.placements[r.placement].suspend
    }
    count = len(begun | under_way)
    if count > limit and begun:
        yield f"{count} replicas are being replaced, {limit} may be: {sorted(begun)}"


def the_guard_holds(desired: Desired, diff: Diff, plan: Plan) -> Iterator[str]:
    """Rule 5: no share of a model's replicas in a pool is removed unapproved."""
    approved = {c.replica for g in plan.guards if g.approved for c in g.changes}
    stopped = {s.launch for s in plan.steps if isinstance(s, StopStep) and s.voluntary}
    leaving: dict[tuple[str, str], list[JudgedReplica]] = defaultdict(list)
    before: Counter[tuple[str, str]] = Counter()
    keeps: Counter[str] = Counter()
    for replica in diff.replicas:
        placement = desired.placements.get(replica.placement)
        stays = replica.wanted and placement is not None and not placement.suspend
        live = [j for j in replica.launches if j.view.alive and j.verdict is not Verdict.STOPPING]
        if stays and replica.launches:
            before[replica.model, replica.pool] += 1
        elif live:
            before[replica.model, replica.pool] += 1
            leaving[replica.model, replica.pool].append(replica)
        if stays and replica.ready:
            keeps[replica.model] += 1
    for scope, replicas in leaving.items():
        allowed = max(desired.fleet.guard.max_removed.of(before[scope]), min(1, keeps[scope[0]]))
        acted = [
            r.replica
            for r in replicas
            if all(
                j.view.launch in stopped
                for j in r.launches
                if j.view.alive and j.verdict is not Verdict.STOPPING
            )
        ]
        if len(replicas) > allowed and acted and not set(acted) <= approved:
            yield f"{acted} of {scope} are removed, of {before[scope]} at most {allowed} may be"


def nothing_starts_where_it_must_not(desired: Desired, diff: Diff, plan: Plan) -> Iterator[str]:
    """Node states, departed nodes, quarantine, pools and pins."""
    sick = {q.node for q in diff.quarantines if not q.gpus}
    by_name = {r.replica: r for r in diff.replicas}
    for step in plan.steps:
        if not isinstance(step, StartStep):
            continue
        placement = desired.placements[by_name[step.replica].placement]
        for shard in step.shards:
            node = desired.nodes[shard.node]
            if node.state is not NodeState.ACTIVE or node.name in desired.departed:
                yield f"{step.launch} starts on {node.name}, which is {node.state} or departed"
            if node.name in sick:
                yield f"{step.launch} starts on {node.name}, which is quarantined"
            if placement.pool and node.pool != placement.pool:
                yield f"{step.launch} starts on {node.name} outside its pool"
            if placement.nodes and node.name not in placement.nodes:
                yield f"{step.launch} starts on {node.name}, which it is not pinned to"


def only_what_differs_is_stopped(diff: Diff, plan: Plan) -> Iterator[str]:
    """A launch that is as wanted, or is on its way there, is never stopped."""
    verdicts = {j.view.launch: j for r in diff.replicas for j in r.launches}
    for step in plan.steps:
        judged = verdicts.get(step.launch) if isinstance(step, StopStep) else None
        if judged and judged.verdict in (Verdict.MATCHING, Verdict.STARTING):
            yield f"stop of {step.launch}, which is {judged.verdict}"


def starts_follow_the_verdicts(diff: Diff, plan: Plan) -> Iterator[str]:
    """A start is of the effective profile, after the back-off, and beside one launch at most."""
    by_name = {r.replica: r for r in diff.replicas}
    for step in plan.steps:
        replica = by_name.get(step.replica) if isinstance(step, StartStep) else None
        if replica is None or not isinstance(step, StartStep):
            continue
        effective = replica.effective
        if effective is None or effective.profile is None:
            yield f"{step.launch} starts, but nothing may be started of {step.replica}"
        elif step.fingerprint != effective.fingerprint:
            yield f"{step.launch} starts from another profile than the effective one"
        if replica.backoff.remaining_s > 0:
            left = replica.backoff.remaining_s
            yield f"{step.launch} starts {left:.0f} s before its back-off ends"
        if replica.current:
            current = next(j for j in replica.launches if j.view.launch == replica.current)
            if current.verdict is not Verdict.UNHEALTHY:
                yield f"{step.launch} starts beside {replica.current}, which is current"
        known = max((j.view.seq for j in replica.launches), default=0)
        if step.seq <= known:
            yield f"{step.launch} has seq {step.seq}, {known} is known"


def one_at_a_time_tries_a_new_profile(
    desired: Desired, observed: Observed, diff: Diff, plan: Plan
) -> Iterator[str]:
    """While a placement that serves has never been ready with today's profile, one replica starts
    it, and none does while another one that is in sight is loading it."""
    proven = {
        shard.record.fingerprint
        for look in observed.nodes.values()
        for shown in (look.answer, look.last)
        for shard in (shown.shards if shown else ())
        if shard.record and shard.ever_ready
    }
    """By any replica: also one that is over, which a diff does not name."""
    by_placement: dict[str, list[JudgedReplica]] = defaultdict(list)
    for replica in diff.replicas:
        by_placement[replica.placement].append(replica)
    starts = {s.replica: s for s in plan.steps if isinstance(s, StartStep)}
    for name, placement in desired.placements.items():
        today = fingerprint(desired.resolved(placement))
        views = [j.view for r in by_placement[name] for j in r.launches]
        ready = {v.fingerprint for v in views if v.ever_ready and v.profile is not None}
        if today in proven or not ready:
            continue
        trying = {
            r.replica
            for r in by_placement[name]
            for j in r.launches
            if j.view.fingerprint == today and j.verdict is Verdict.STARTING
        }
        begin = {
            r.replica
            for r in by_placement[name]
            if r.replica in starts and starts[r.replica].fingerprint == today
        }
        if len(begin) > 1 or (begin and trying - begin):
            yield f"{sorted(begin)} start a profile that {sorted(trying)} is still trying"


def many_sick_at_once_are_left_alone(diff: Diff, plan: Plan) -> Iterator[str]:
    """A cause outside is no work: under a brake only the probe is restarted."""
    verdicts = {j.view.launch: (r, j) for r in diff.replicas for j in r.launches}
    for step in plan.steps:
        found = verdicts.get(step.launch) if isinstance(step, StopStep) else None
        if found is None or found[1].verdict is not Verdict.UNHEALTHY:
            continue
        replica, judged = found
        scopes = {f"model {replica.model}", *(f"node {n}" for n in judged.view.seen_nodes)}
        mine = [b for b in diff.brakes if b.scope in scopes]
        if mine and all(b.probe != replica.replica for b in mine):
            yield f"stop of unhealthy {step.launch} although {mine[0].scope} is sick as a whole"


def what_people_hold_is_not_changed(desired: Desired, diff: Diff, plan: Plan) -> Iterator[str]:
    """A freeze, and `update: manual` (stories approve nothing): repairs restore what was there."""
    verdicts = {j.view.launch: (r, j) for r in diff.replicas for j in r.launches}
    by_name = {r.replica: r for r in diff.replicas}
    for step in plan.steps:
        if isinstance(step, StopStep) and step.launch in verdicts:
            replica, judged = verdicts[step.launch]
            changes = judged.verdict in (Verdict.STALE, Verdict.MISPLACED)
            if _is_held(desired, replica.placement) and changes and judged.view.ready:
                yield f"stop of {step.launch}, which is {judged.verdict} and held by people"
        if isinstance(step, StartStep):
            replica = by_name[step.replica]
            served = {j.view.fingerprint for j in replica.launches if j.view.ever_ready}
            if _is_held(desired, replica.placement) and served - {""}:
                begun = any(
                    j.view.fingerprint == step.fingerprint and j.view.alive
                    for j in replica.launches
                )
                if step.fingerprint not in served and not begun:
                    yield f"start of {step.launch} from a profile that people hold"


def _is_held(desired: Desired, placement: str) -> bool:
    mine = desired.placements.get(placement)
    if desired.fleet.freeze or (mine and mine.freeze):
        return True
    return mine is not None and mine.rollout.update == "manual"


def every_change_says_what_it_waits_for(plan: Plan) -> Iterator[str]:
    """An idle reconciler and a stuck one must not look alike."""
    for change in plan.changes:
        if not change.steps and not change.waits:
            yield f"{change.symbol} {change.address} does nothing and waits for nothing"


def _serves(judged: JudgedLaunch) -> bool:
    view = judged.view
    return (
        view.ready
        and not view.stop_asked
        and judged.verdict is not Verdict.UNREACHABLE
        and all(s.phase is not Phase.ENDED for s in view.shards.values())
    )
