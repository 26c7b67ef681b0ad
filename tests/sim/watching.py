"""What must hold between any two steps of a story, inside nodes too: seen in the truth of the fleet
and not by what a reconciler makes of it. Each rule yields sentences; none: it holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from reconciler.core.changes import StopStep, Symbol
from reconciler.core.endpoints import Endpoint
from reconciler.core.model import Desired, NodeState
from reconciler.core.observed import Observed, Phase
from reconciler.simulate.fleet import Point, SimFleet
from reconciler.simulate.node import SimNode, own_place
from reconciler.simulate.reconciler import PUBLISHED, Folder, Pass
from tests.sim.first import FLEET_ID

WRITTEN = frozenset({"start: checked", "stop: intent written", "relabel: written"})


def faults(
    fleet: SimFleet, who: str, point: Point, folder: Folder, made: Pass | None
) -> Iterator[str]:
    """All that is wrong after a step of `who`, whose pass decided `made`."""
    if point.step == PUBLISHED:
        assert made is not None
        assert folder.published is not None
        yield from entries_leave_on_evidence(
            made.desired,
            made.observed,
            folder.before.entries if folder.before else (),
            folder.published.entries,
            folder.leaving,
        )
        return
    node = fleet.nodes.get(point.node)
    if node is None:
        return
    if point.op == "start":
        yield from nothing_is_shared(node)
    if point.step in WRITTEN:
        yield from only_the_leader_acts(node, who, point)
    if point.op == "stop" and point.step in WRITTEN:
        yield from no_client_is_sent_to_what_stops(who, point, folder)
        yield from nothing_stops_for_what_cannot_start(fleet, point, made)


def nothing_is_shared(node: SimNode) -> Iterator[str]:
    """No GPU and no port of a machine has two living launches, at any step."""
    seen: dict[object, str] = {}
    for name, shard in node.launches.items():
        if shard.alive:
            place = own_place(shard.spec)
            for thing in (*place["gpus"], *place["ports"].values()):
                if thing in seen:
                    yield f"{thing} of {node.name} has {seen[thing]} and {name}"
                seen[thing] = name
    for name, shard in node.launches.items():
        if shard.alive and not shard.record_written:
            yield f"{name} runs on {node.name} before its record is written"


def only_the_leader_acts(node: SimNode, who: str, point: Point) -> Iterator[str]:
    """What is written on a node is written under its current, living lease."""
    lease = node.leases.shown(FLEET_ID)
    if lease is None or lease.owner != who or lease.remaining_s <= 0:
        yield f"{who} did {point.op} on {point.node}, which {lease} leads"


def no_client_is_sent_to_what_stops(who: str, point: Point, folder: Folder) -> Iterator[str]:
    """Before a replica is asked to stop it has left the endpoints of whoever asks."""
    entries = folder.published.entries if folder.published else ()
    if any(e.launch == point.launch for e in entries):
        yield f"{who} stops {point.launch}, to which it still sends clients"


def nothing_stops_for_what_cannot_start(
    fleet: SimFleet, point: Point, made: Pass | None
) -> Iterator[str]:
    """What serves is not stopped first where a node of its successor lacks the model."""
    replicas = {r.replica: r for r in made.diff.replicas} if made else {}
    for change in made.plan.changes if made else ():
        stops = [s for s in change.steps if isinstance(s, StopStep) and s.voluntary]
        if change.symbol is not Symbol.STOP_FIRST or point.launch not in {s.launch for s in stops}:
            continue
        effective = replicas[change.address].effective
        model = effective.profile.model.name if effective and effective.profile else ""
        for seat in change.after_seats:
            if model in fleet.nodes[seat.node].lacks:
                yield f"{point.launch} stops for a successor that cannot start on {seat.node}"


def requests_are_awaited(fleet: SimFleet) -> Iterator[str]:
    """No engine is told to end while requests are in flight and the drain is not over."""
    for node in fleet.nodes.values():
        for name, shard in node.launches.items():
            if shard.stop_at is None or not shard.ever_ready or shard.signalled_at > node.now():
                continue
            waited_s = shard.signalled_at - shard.stop_at
            due_s = min(shard.busy_s, float(shard.spec["drain_s"]))
            if waited_s < due_s - 0.001:
                yield (
                    f"{name} on {node.name} is ended {waited_s:.1f} s after it was asked to stop,"
                    f" with requests in flight for {due_s:.1f} s"
                )


def entries_leave_on_evidence(
    desired: Desired,
    observed: Observed,
    before: Iterable[Endpoint],
    after: Iterable[Endpoint],
    leaving: Collection[str],
) -> Iterator[str]:
    """An endpoint leaves by a stop (asked, or next), an end that was seen, or a health path that
    refuses; never because somebody could not be seen."""
    kept = {(e.launch, e.rank) for e in after}
    for entry in before:
        if (entry.launch, entry.rank) in kept or entry.launch in leaving:
            continue
        document = desired.nodes.get(entry.node)
        answers = {n: look.answer for n, look in observed.nodes.items() if look.answer}
        shards = [s for a in answers.values() for s in a.shards if s.launch == entry.launch]
        mine = [s for s in shards if s.rank == entry.rank]
        gone = document is None or document.state is NodeState.LOST
        gone = gone or any(s.stop_asked or s.phase is Phase.ENDED for s in shards)
        gone = gone or any((s.fresh and not s.health.ok) or not s.alive for s in mine)
        if not gone and (mine or entry.node not in answers):
            yield f"the endpoint of {entry.launch} on {entry.node} leaves without evidence"
