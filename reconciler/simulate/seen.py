"""Nodes in memory out of what real ones said: a fleet as it was seen, from which time goes on.

A launch is brought to life where it is seen whole: every rank has a readable record of this fleet
and stands on a node that answered. What cannot be known (silent nodes, unknown launches, other
fleets' ones) is kept exactly as it was seen, so the forecast is no bolder there than a real pass.
Leases are left out: a forecast acts as the only reconciler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from reconciler.core.codec import to_json
from reconciler.core.looks import Looks
from reconciler.core.model import Desired, NodeState
from reconciler.core.observed import (
    FORMAT,
    GpuProcess,
    GpusPart,
    Labels,
    NodeAnswer,
    NodeLook,
    Observed,
    Phase,
    Resources,
    Shard,
)
from reconciler.core.occupancy import declared_ids
from reconciler.core.verdicts import STUCK_AFTER_S
from reconciler.simulate import preflight
from reconciler.simulate.engine import ROOT, Behaviour, Shardlet
from reconciler.simulate.fleet import SimFleet
from reconciler.simulate.node import SimGpu, SimNode, own_place
from reconciler.simulate.roots import Roots

Behave = Callable[[Mapping[str, Any]], Behaviour]
OVERDUE_S = 60.0
"""What has been loading for longer than its model usually takes is given this much more."""


def fleet_as_seen(desired: Desired, observed: Observed, behave: Behave) -> SimFleet:
    """The fleet in memory. What `lost` nodes said is left out, as a pass would not ask them."""
    fleet = SimFleet(behave)
    looks = {n: look for n, look in observed.nodes.items() if not _is_lost(desired, n)}
    silent = Looks(desired, Observed(observed.owner, looks)).silent
    modelled = _modelled(desired, looks, silent)
    for name, look in sorted(looks.items()):
        if look.answer is None or name in silent or name not in desired.nodes:
            fleet.given[name] = look
        else:
            fleet.nodes[name] = _node(desired, fleet, look.answer, name, modelled)
    for node in fleet.nodes.values():
        node.settle()
    return fleet


@dataclass(frozen=True)
class Kept:
    """A launch that stays as it was seen, and why."""

    node: str
    launch: str
    why: str


def kept(desired: Desired, observed: Observed, fleet: SimFleet) -> tuple[Kept, ...]:
    """What stays as it was seen on nodes that are otherwise played forward."""
    return tuple(
        Kept(name, shard.launch, _unfit(desired, shard) or _HALF)
        for name, node in sorted(fleet.nodes.items())
        if isinstance(node, SeenNode)
        for shard in node.kept
    )


def _is_lost(desired: Desired, name: str) -> bool:
    node = desired.nodes.get(name)
    return node is not None and node.state is NodeState.LOST


# --- Which launches can be played forward ---------------------------------------------------------


def _modelled(
    desired: Desired, looks: Mapping[str, NodeLook], silent: Mapping[str, str]
) -> frozenset[str]:
    """Launches of which every shard can be played forward."""
    answers = {
        n: look.answer for n, look in looks.items() if look.answer is not None and n not in silent
    }
    machines = {a.machine_id for a in answers.values()}
    bad: set[str] = set()
    named: set[str] = set()
    for answer in answers.values():
        for shard in answer.shards:
            named.add(shard.launch)
            if _unfit(desired, shard) or not _is_in_sight(desired, shard, machines):
                bad.add(shard.launch)
    return frozenset(named - bad)


_HALF = "a rank of it is out of sight, or has no readable record"


def _unfit(desired: Desired, shard: Shard) -> str:
    """Why a shard is not played forward, by itself; empty: it may be."""
    record = shard.record
    if record is None:
        return f"its record is {shard.record_error or 'absent'}"
    if record.fleet != desired.fleet.id:
        return "it belongs to another fleet"
    if record.format.partition(".")[0] != FORMAT.partition(".")[0]:
        return f"its record has format {record.format or 'none'}"
    if not record.fingerprint or all(p.rank != record.rank for p in record.places):
        return "its record does not say what it is"
    return ""


def _is_in_sight(desired: Desired, shard: Shard, machines: set[str]) -> bool:
    places = shard.record.places if shard.record else ()
    return all(
        p.machine_id in machines or p.node not in desired.nodes or _is_lost(desired, p.node)
        for p in places
    )


# --- One node -------------------------------------------------------------------------------------


@dataclass
class SeenNode(SimNode):
    """A node that goes on from its last answer."""

    seen: NodeAnswer = field(kw_only=True)
    kept: tuple[Shard, ...] = ()
    began: frozenset[str] = frozenset()
    """Launches that were alive at the look and are played forward."""
    looked_at: float = 0.0

    @property
    def machine_id(self) -> str:
        """As it said."""
        return self.seen.machine_id

    @property
    def boot_id(self) -> str:
        """As it said: nothing reboots in a forecast."""
        return self.seen.boot_id

    def settle(self) -> None:
        """A hold by hand ends in time."""
        held = self.hold
        if held is not None and held.remaining_s is not None and self._left(held.remaining_s) <= 0:
            self.hold = None
        super().settle()

    def answer(self, fleet: str) -> NodeAnswer:
        """What was seen, with what has changed since."""
        self.settle()
        shown = [*self.kept, *(self._shard(name) for name in self.launches)]
        hold = self.hold
        if hold is not None and hold.remaining_s is not None:
            hold = replace(hold, remaining_s=self._left(hold.remaining_s))
        return replace(
            self.seen,
            shards=tuple(sorted(shown, key=lambda s: s.launch)),
            gpus=self._gpus(),
            network=replace(self.seen.network, listening=self._listening()),
            resources=self._resources(),
            lease=self.leases.shown(fleet),
            lease_error="",
            hold=hold,
        )

    def _unfit(self, spec: Mapping[str, Any], *, replaces: bool) -> list[str]:
        return preflight.findings(spec, self.seen, self._resources(), replaces=replaces)

    def _left(self, remaining_s: float) -> float:
        return remaining_s - (self.now() - self.looked_at)

    def _living(self) -> Iterator[tuple[str, Shardlet]]:
        return ((name, s) for name, s in self.launches.items() if s.alive)

    def _gpus(self) -> GpusPart:
        if not self.nvml or self.seen.gpus.error:
            return self.seen.gpus
        on: dict[str, list[GpuProcess]] = {}
        for name, shardlet in self._living():
            for gpu in own_place(shardlet.spec)["gpus"]:
                on.setdefault(gpu, []).append(GpuProcess(shardlet.pid, launch=name))
        ours = {g for n in self.began for g in _gpus_of(self.launches.get(n))}
        return replace(
            self.seen.gpus,
            items=tuple(
                replace(
                    gpu,
                    used_mib=None if gpu.uuid in ours else gpu.used_mib,
                    processes=(
                        *(p for p in gpu.processes if p.launch not in self.began),
                        *on.get(gpu.uuid, ()),
                    ),
                )
                for gpu in self.seen.gpus.items
            ),
        )

    def _listening(self) -> tuple[tuple[str, int], ...]:
        gone = {port for n in self.began for port in _ports_of(self.launches.get(n))}
        others = [pair for pair in self.seen.network.listening if pair[1] not in gone]
        mine = [(self.address, port) for _, s in self._living() for port in _ports_of(s)]
        return (*others, *mine)

    def _resources(self) -> Resources:
        """Free memory, by what the profiles say they need: what ended gives it back."""
        ram = shm = 0
        for name in {*self.began, *(name for name, _ in self._living())}:
            shardlet = self.launches.get(name)
            alive = shardlet is not None and shardlet.alive
            if alive == (name in self.began):
                continue
            needs = _needs(shardlet)
            sign = -1 if alive else 1
            ram += sign * 1024 * needs.get("ram_gib", 0)
            shm += sign * 1024 * needs.get("shm_gib", 0)
        free = self.seen.resources
        return replace(
            free,
            ram_free_mib=None if free.ram_free_mib is None else max(0, free.ram_free_mib + ram),
            shm_free_mib=None if free.shm_free_mib is None else max(0, free.shm_free_mib + shm),
        )


def _gpus_of(shardlet: Shardlet | None) -> tuple[str, ...]:
    return tuple(own_place(shardlet.spec)["gpus"]) if shardlet else ()


def _ports_of(shardlet: Shardlet | None) -> tuple[int, ...]:
    return tuple(own_place(shardlet.spec)["ports"].values()) if shardlet else ()


def _needs(shardlet: Shardlet | None) -> Mapping[str, int]:
    if shardlet is None:
        return {}
    profile = shardlet.spec.get("profile")
    inner = profile.get("profile") if isinstance(profile, Mapping) else None
    needs = inner.get("needs") if isinstance(inner, Mapping) else None
    return needs if isinstance(needs, Mapping) else {}


def _node(
    desired: Desired, fleet: SimFleet, answer: NodeAnswer, name: str, modelled: frozenset[str]
) -> SeenNode:
    document = desired.nodes[name]
    declared = document.gpus.source == "declared"
    if declared:
        gpus = tuple(SimGpu(uuid, index) for index, uuid in enumerate(declared_ids(document)))
    else:
        gpus = tuple(SimGpu(g.uuid, g.index, g.nvlink_group) for g in answer.gpus.items)
    own = [s for s in answer.shards if s.launch in modelled]
    node = SeenNode(
        name=name,
        address=document.address,
        gpus=gpus,
        now=fleet.clock,
        behave=fleet.behave,
        whole=fleet.whole,
        nvml=not declared,
        roots=_roots(answer),
        seen=answer,
        kept=tuple(s for s in answer.shards if s.launch not in modelled),
        began=frozenset(s.launch for s in own if s.alive),
        looked_at=fleet.clock.now,
    )
    node.lost_gpus = {g.uuid for g in answer.gpus.items if g.error}
    for gpu in answer.gpus.items:
        for process in gpu.processes:
            if process.launch not in modelled:
                node.strangers[gpu.uuid] = process.pid
    if answer.lease is not None:
        node.leases.stored[answer.lease.fleet] = replace(answer.lease, owner="", remaining_s=0.0)
    node.launches = {s.launch: _shardlet(s, answer, fleet) for s in own}
    return node


def _roots(answer: NodeAnswer) -> Roots:
    """As the launches that it showed tell."""
    former = sorted({s.former_root for s in answer.shards if s.former_root})
    roots = Roots(answer.root or ROOT, tuple(former))
    if answer.hold is not None:
        roots.set_hold(answer.hold)
    return roots


# --- One launch on it -----------------------------------------------------------------------------


@dataclass
class Ended(Shardlet):
    """What had ended before the look: only its age changes."""

    last: Shard = field(kw_only=True)
    looked_at: float = 0.0

    def seen(self, name: str, now: float, boot_id: str, record: object, locked: bool) -> Shard:
        """As it was, and older."""
        passed = now - self.looked_at
        last = self.last
        ended = replace(last.exit, age_s=last.exit.age_s + passed) if last.exit else None
        return replace(
            last,
            labels=self.labels if last.labels or self.labels != Labels() else None,
            exit=ended,
            started_age_s=last.started_age_s + passed,
            stop_age_s=last.stop_age_s + passed if last.stop_asked else 0.0,
        )


def _shardlet(shard: Shard, answer: NodeAnswer, fleet: SimFleet) -> Shardlet:
    record = shard.record
    assert record is not None
    now = fleet.clock.now
    spec = {
        **to_json(record),
        "start_timeout_s": shard.start_timeout_s,
        "stop_grace_s": shard.stop_grace_s,
        "health": {} if shard.serves else None,
        "commands": _commands(record.profile),
    }
    labels = shard.labels or Labels()
    drain_s = Shardlet(spec, labels, shard.boot_id, Behaviour()).drain_s
    behaviour = _from_now_on(shard, fleet.behave(spec), drain_s)
    root = shard.former_root or answer.root or ROOT
    if not shard.alive and (shard.exit is not None or shard.phase is Phase.ENDED):
        ended = Ended(
            spec, labels, shard.boot_id, behaviour, root, record=record, last=shard, looked_at=now
        )
        ended.began = now - shard.started_age_s
        ended.exit, ended.ever_ready = shard.exit, shard.ever_ready
        ended.ended_at = now - (shard.exit.age_s if shard.exit else 0.0)
        return ended
    made = Shardlet(spec, labels, shard.boot_id, behaviour, root, record=record)
    made.rebooted = shard.boot_id not in ("", answer.boot_id)
    if shard.stop_asked:
        made.stop_at, made.grace_s = now - shard.stop_age_s, shard.stop_grace_s
        made.busy_s = behaviour.in_flight_s
    if not shard.alive:
        return made
    made.began = now - shard.started_age_s
    made.alive, made.supervised = True, shard.supervised
    made.ending_since = made.stop_at if shard.supervised else None
    made.ever_ready = shard.ever_ready or not shard.serves
    made.pid = shard.pids[0] if shard.pids else made.pid
    if not shard.serves:
        return made
    if shard.ever_ready and not shard.health.ok:
        made.sick, made.failing_since = True, now - shard.health.failing_for_s
    elif shard.ever_ready:
        made.ready_since = now - shard.health.ready_for_s
    return made


def _from_now_on(shard: Shard, usual: Behaviour, drain_s: float) -> Behaviour:
    """How a launch goes on that is some way into its life: it has not crashed so far."""
    age = shard.started_age_s
    stuck = shard.stop_grace_s + drain_s + STUCK_AFTER_S
    return replace(
        usual,
        load_s=usual.load_s if usual.load_s > age else age + OVERDUE_S,
        crash_s=usual.crash_s if usual.crash_s > age else float("inf"),
        unkillable=shard.stop_asked and shard.stop_age_s > stuck,
    )


def _commands(profile: Any) -> list[dict[str, Any]]:
    """The arguments of the record's profile, where a spec has its commands."""
    inner = profile.get("profile") if isinstance(profile, Mapping) else None
    args = inner.get("args") if isinstance(inner, Mapping) else None
    return [{"name": "serve", "argv": list(args) if isinstance(args, list | tuple) else []}]
