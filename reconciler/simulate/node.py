"""One node in memory, by the agent's protocol, stopping at every step inside a request.

A request is a generator that yields the name of each step it has just done, so that a test can cut
it there: a reply is lost, the agent is killed, the machine reboots, another reconciler gets in
between. What a killed agent leaves behind is then what the real one would leave.

`bugs` plants known mistakes on purpose (tests/sim/planted): the suite has to find each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from reconciler.core.codec import from_json, to_json
from reconciler.core.observed import (
    FORMAT,
    GpuProcess,
    GpuSeen,
    GpusPart,
    Health,
    Labels,
    Network,
    NodeAnswer,
    NodeHold,
    Record,
    Resources,
    Shard,
)
from reconciler.simulate.engine import NEVER, Behaviour, Shardlet
from reconciler.simulate.leases import Leases, Refused
from reconciler.simulate.retention import sweep
from reconciler.simulate.roots import Roots

Work = Generator[str, None, Any]


@dataclass(frozen=True)
class SimGpu:
    """One GPU of a node in memory."""

    uuid: str
    index: int
    group: int | None = None


@dataclass
class SimNode:
    """State of one node; `now` gives virtual seconds, `behave` how an engine will do."""

    name: str
    address: str
    gpus: tuple[SimGpu, ...]
    now: Callable[[], float]
    behave: Callable[[Mapping[str, Any]], Behaviour]
    whole: Callable[[str], bool] = lambda launch: True
    """Whether every rank of a launch is alive, on whichever node."""
    traffic: Callable[[str], float | None] = lambda launch: 0.0
    """For how long no new requests have come for a launch; None: they still come."""
    nvml: bool = True
    """False: the GPUs are declared, and only records tell who holds them."""
    boots: int = 1
    silent: bool = False
    locked: bool = False
    """acting.lock."""
    roots: Roots = field(default_factory=Roots)
    launches: dict[str, Shardlet] = field(default_factory=dict)
    strangers: dict[str, int] = field(default_factory=dict)
    """GPU → pid of a process that is nobody's launch."""
    lost_gpus: set[str] = field(default_factory=set)
    lacks: set[str] = field(default_factory=set)
    """Models whose files are not here."""
    leases: Leases = field(init=False)
    bugs: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.leases = self.roots.newest_leases(self.now, self.bugs)

    # --- the folders of its records ------------------------------------------------------------

    @property
    def hold(self) -> NodeHold | None:
        """A person's word to leave it, or one launch of it, alone."""
        return self.roots.hold()

    @hold.setter
    def hold(self, hold: NodeHold | None) -> None:
        self.roots.set_hold(hold)

    def move_root(self, root: str, previous: Iterable[str] = ()) -> None:
        """Its records are written to another folder from now on, as an edit of `root` does;
        `previous`: the former ones that it is told of."""
        self.roots.move(root, previous)
        self.leases = self.roots.newest_leases(self.now, self.bugs)

    def _reads(self, shardlet: Shardlet) -> bool:
        """Whether the folder of its record is one that this node is told of."""
        return shardlet.root in self.roots.read

    def _shown(self) -> list[str]:
        """Launches that an answer shows: whose record it reads, or whose process lives."""
        return sorted(n for n, s in self.launches.items() if s.alive or self._reads(s))

    # --- what happens by itself ----------------------------------------------------------------

    @property
    def boot_id(self) -> str:
        """Another one after every reboot."""
        return f"boot-{self.name}-{self.boots}"

    @property
    def machine_id(self) -> str:
        """The same for the node's whole life."""
        return f"machine-{self.name}"

    def settle(self) -> None:
        """Let everything happen that was due until now."""
        for launch, shardlet in self.launches.items():
            alone = len(shardlet.spec["places"]) == 1
            shardlet.settle(self.now(), shardlet.alive if alone else self.whole(launch))

    def reboot(self) -> None:
        """Power is cut and comes back: nothing runs, records stay, leases have expired."""
        self.settle()
        self.boots += 1
        self.locked = False
        self.leases.expire_all()
        for shardlet in self.launches.values():
            shardlet.reboot()

    # --- requests ------------------------------------------------------------------------------

    def handle(self, op: str, fields: Mapping[str, Any]) -> Work:
        """The work of one request. Raises Refused with the protocol's code."""
        handlers: dict[str, Callable[[Mapping[str, Any]], Work]] = {
            "hello": self._hello,
            "observe": self._observe,
            "lease": self._lease,
            "check": self._check,
            "start": self._start,
            "stop": self._stop,
            "relabel": self._relabel,
            "adopt": self._adopt,
            "hold": self._hold,
        }
        if op not in handlers:
            raise Refused("unknown-op", f"unknown op {op!r}")
        self.settle()
        return handlers[op](fields)

    def answer(self, fleet: str) -> NodeAnswer:
        """What `observe` says, as a value."""
        self.settle()
        lease = self.leases.shown(fleet)
        return NodeAnswer(
            format=FORMAT,
            machine_id=self.machine_id,
            boot_id=self.boot_id,
            hostname=self.name,
            agent="/sim/agent.pyz",
            root=self.roots.root,
            shards=tuple(self._shard(name) for name in self._shown()),
            gpus=self._gpus(),
            network=Network(listening=self._listening()),
            resources=Resources(ram_free_mib=1_000_000, shm_free_mib=1_000_000),
            lease=lease,
            hold=self.hold,
        )

    def _hello(self, fields: Mapping[str, Any]) -> Work:
        yield "hello: answered"
        return {"format": FORMAT, "machine_id": self.machine_id, "boot_id": self.boot_id}

    def _observe(self, fields: Mapping[str, Any]) -> Work:
        yield "observe: seen"
        return self.answer(str(fields.get("fleet", "")))

    def _lease(self, fields: Mapping[str, Any]) -> Work:
        yield from self._lock()
        try:
            yield "locked"
            stored = self.leases.change(fields)
            yield "lease: written"
        finally:
            self.locked = False
        return stored

    def _check(self, fields: Mapping[str, Any]) -> Work:
        """What a start would refuse; the one beside `replaces`, which will have ended."""
        yield "check: looked"
        found = self._unfit(fields["spec"], replaces=bool(fields.get("replaces")))
        hold = self.roots.holds_launch(fields["spec"]["launch"])
        if hold:
            found.append(f"{self.name} is held by {hold.who}: {hold.reason}")
        try:
            self._refuse_taken(fields["spec"], str(fields.get("replaces", "")))
        except Refused as error:
            found.append(error.message)
        return {"findings": found, "sizes": {}, "engine_version": "", "notes": []}

    def _start(self, fields: Mapping[str, Any]) -> Work:
        yield from self._lock()
        try:
            yield "locked"
            spec = fields["spec"]
            name = spec["launch"]
            self._fence(fields, str(name))
            known = self.launches.get(name)
            if known is not None and not (known.never_began and not known.over):
                if known.over:
                    return {"state": "ended"}
                if not self._reads(known):
                    raise Refused("conflict", f"{name} is here, its record absent")
                if known.spec != spec:
                    raise Refused("conflict", f"{name} was started from another spec")
                return {"state": "already"}
            _refuse_other_secrets(spec, fields.get("secrets") or {})
            self._refuse_taken(spec)
            unfit = self._unfit(spec, replaces=False)
            if unfit:
                raise Refused("preflight", "; ".join(unfit))
            yield "start: checked"
            sweep(self.launches, spec["replica"], self.roots.read)
            shardlet = Shardlet(
                spec=spec,
                labels=from_json(Labels, to_json(fields.get("labels") or Labels())),
                boot_id=self.boot_id,
                behaviour=self.behave(spec),
                root=self.roots.root,
            )
            if "process-before-record" in self.bugs:
                shardlet.record_written = False
                shardlet.begin(self.now())
                self.launches[name] = shardlet
                yield "start: process started"
                shardlet.record_written = True
            else:
                self.launches[name] = shardlet
                yield "start: record written"
                shardlet.begin(self.now())
                yield "start: supervised"
        finally:
            self.locked = False
        yield "start: unlocked"
        return {"state": "started"}

    def _stop(self, fields: Mapping[str, Any]) -> Work:
        yield from self._lock()
        try:
            yield "locked"
            self._fence(fields, str(fields["launch"]))
            shardlet = self._known(fields)
            if shardlet.over:
                return {"state": "ended"}
            shardlet.ask_stop(self.now(), fields.get("grace_s"), self._busy_s(shardlet))
            shardlet.drains = "no-drain" not in self.bugs
            yield "stop: intent written"
            shardlet.supervise(self.now())
        finally:
            self.locked = False
        return {"state": "stopping"}

    def _relabel(self, fields: Mapping[str, Any]) -> Work:
        yield from self._lock()
        try:
            yield "locked"
            self._fence(fields, str(fields["launch"]))
            self._known(fields).labels = from_json(Labels, to_json(fields["labels"]))
            yield "relabel: written"
        finally:
            self.locked = False
        return {}

    def _adopt(self, fields: Mapping[str, Any]) -> Work:
        yield from self._lock()
        try:
            yield "locked"
            self._fence(fields, str(fields["launch"]))
            shardlet = self._known(fields)
            if shardlet.over:
                return {"state": "ended"}
            if shardlet.supervised:
                return {"state": "supervised"}
            shardlet.supervise(self.now())
            shardlet.adopted = True
            yield "adopt: supervised"
        finally:
            self.locked = False
        return {"state": "adopted"}

    def _hold(self, fields: Mapping[str, Any]) -> Work:
        yield "hold: written"
        if fields.get("clear"):
            self.roots.set_hold(None)
        elif fields.get("set"):
            wanted = fields["set"]
            hold = NodeHold(
                who=wanted.get("who", ""),
                reason=wanted.get("reason", ""),
                remaining_s=wanted.get("for_s"),
                launch=wanted.get("launch", ""),
            )
            self.roots.set_hold(hold)
        return self.roots.hold()

    # --- the rules of requests -----------------------------------------------------------------

    def _lock(self) -> Work:
        while self.locked:
            yield "waiting for acting.lock"
        self.locked = True

    def _fence(self, fields: Mapping[str, Any], launch: str = "") -> None:
        """Under the lock in which the record or the intent is written."""
        self.leases.fence(fields.get("fence") or fields)
        hold = self.roots.holds_launch(launch)
        if hold:
            raise Refused("held", f"{self.name} is held by {hold.who}: {hold.reason}")

    def _known(self, fields: Mapping[str, Any]) -> Shardlet:
        name = str(fields["launch"])
        if name not in self._shown():
            raise Refused("not-found", f"{self.name} has no launch {name}")
        return self.launches[name]

    def _unfit(self, spec: Mapping[str, Any], *, replaces: bool) -> list[str]:
        """What the node itself lacks for a launch."""
        resolved = spec.get("profile")
        model = resolved.get("model") if isinstance(resolved, Mapping) else None
        name = str(model.get("name", "")) if isinstance(model, Mapping) else ""
        return [f"path /models/{name}: No such file or directory"] if name in self.lacks else []

    def _busy_s(self, shardlet: Shardlet) -> float:
        quiet_s = self.traffic(str(shardlet.spec["launch"]))
        return NEVER if quiet_s is None else max(0.0, shardlet.behaviour.in_flight_s - quiet_s)

    def _refuse_taken(self, spec: Mapping[str, Any], replaces: str = "") -> None:
        mine = own_place(spec)
        present = {g.uuid for g in self.gpus if g.uuid not in self.lost_gpus}
        for gpu in mine["gpus"]:
            if gpu not in present:
                raise Refused("preflight", f"GPU {gpu} is absent")
            if gpu in self.strangers:
                raise Refused("preflight", f"GPU {gpu} is held by pid {self.strangers[gpu]}")
        if "no-taken-check" in self.bugs:
            return
        for name, other in self.launches.items():
            if not other.alive or name in (spec["launch"], replaces):
                continue  # Under the lock, a record without a process is a start that was cut off.
            if not self._reads(other):
                if mine["gpus"] and not self.nvml:
                    raise Refused("gpu-taken", f"{name} lives, and its record is absent")
                continue  # By NVML its process is seen on its GPUs, which place leaves alone.
            theirs = own_place(other.spec)
            gpus = sorted(set(mine["gpus"]) & set(theirs["gpus"]))
            if gpus:
                raise Refused("gpu-taken", f"{name} holds {', '.join(gpus)}")
            ports = sorted(set(mine["ports"].values()) & set(theirs["ports"].values()))
            if ports:
                raise Refused("port-taken", f"{name} holds {ports}")

    def record_of(self, launch: str) -> Record | None:
        """The launch's record as it can be read here."""
        return self._record(self.launches[launch])

    # --- what is seen --------------------------------------------------------------------------

    def _shard(self, name: str) -> Shard:
        shardlet = self.launches[name]
        record = self._record(shardlet)
        shard = shardlet.seen(name, self.now(), self.boot_id, record, self.locked)
        if not self._reads(shardlet):
            return by_its_mark(shard)
        if shardlet.root != self.roots.root:
            shard = replace(shard, former_root=shardlet.root)
        if "ages-by-another-clock" in self.bugs:
            return replace(shard, started_age_s=abs(shard.started_age_s - self.now()))
        return shard

    def _record(self, shardlet: Shardlet) -> Record | None:
        if not shardlet.record_written:
            return None
        if shardlet.record is None:
            spec = {**shardlet.spec, "boot_id": shardlet.boot_id}
            shardlet.record = from_json(Record, spec)
        return shardlet.record

    def _gpus(self) -> GpusPart:
        if not self.nvml:
            return GpusPart()
        on: dict[str, list[GpuProcess]] = {}
        for name, shardlet in self.launches.items():
            if shardlet.alive:
                for gpu in own_place(shardlet.spec)["gpus"]:
                    on.setdefault(gpu, []).append(GpuProcess(shardlet.pid, launch=name))
        for gpu, pid in self.strangers.items():
            on.setdefault(gpu, []).append(GpuProcess(pid, name="python3"))
        items = tuple(
            GpuSeen(
                uuid=gpu.uuid,
                index=gpu.index,
                memory_mib=81_920,
                error="lost" if gpu.uuid in self.lost_gpus else "",
                processes=tuple(on.get(gpu.uuid, ())),
                nvlink_group=gpu.group,
            )
            for gpu in self.gpus
        )
        return GpusPart(items=items, driver="sim")

    def _listening(self) -> tuple[tuple[str, int], ...]:
        return tuple(
            (self.address, port)
            for shardlet in self.launches.values()
            if shardlet.alive
            for port in own_place(shardlet.spec)["ports"].values()
        )


def by_its_mark(shard: Shard) -> Shard:
    """What is seen of a launch whose processes live and whose record is nowhere that is read."""
    return replace(
        shard,
        record=None,
        record_error="absent",
        labels=None,
        supervised=False,
        serves=True,
        health=Health(),
        fresh=False,
        ever_ready=False,
    )


def _refuse_other_secrets(spec: Mapping[str, Any], given: Mapping[str, str]) -> None:
    """A start brings exactly the secrets that its spec names."""
    named = set(spec.get("secrets") or ())
    if set(given) != named:
        missing = ", ".join(sorted(named - set(given))) or "none"
        more = len(set(given) - named)
        raise Refused("bad-request", f"secrets: missing: {missing}; {more} others came")


def own_place(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The place of the spec's own rank."""
    for place in spec["places"]:
        if place["rank"] == spec["rank"]:
            return dict(place)
    raise Refused("bad-request", f"spec of {spec['launch']} has no place for its rank")
