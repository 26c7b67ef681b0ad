"""All nodes in memory, their common clock, and requests that can be cut at every step.

`request` is a generator: it yields a `Point` after each step inside the node, and whoever drives
it answers with a `Fate`. Two reconcilers that are driven in turns interleave inside a node too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from reconciler.core.model import Desired, Node, NodeState
from reconciler.core.observed import LookError, NodeAnswer, NodeLook
from reconciler.core.occupancy import declared_ids
from reconciler.simulate.engine import Behaviour
from reconciler.simulate.node import SimGpu, SimNode

REPLY_LOST_S = 2.0
"""Virtual seconds that a request costs which is never answered."""

BOARD = 4
"""GPUs that NVLink joins, unless a fleet says otherwise."""


class Fate(StrEnum):
    """What becomes of a request at one step."""

    GO_ON = "go on"
    LOSE_REPLY = "lose the reply"
    """The node carries it out; the reconciler never hears."""
    KILL_AGENT = "kill the agent"
    """The request ends on the node right here."""
    REBOOT = "reboot the node"
    POWER_CUT = "cut the node's power"
    """It reboots, and is not heard of until somebody makes it answer again."""


@dataclass(frozen=True)
class Point:
    """A step that a request has just done."""

    node: str
    op: str
    step: str
    launch: str = ""


class NoAnswer(Exception):
    """The reconciler got no reply; what the node did is not known."""


class NotReached(NoAnswer):
    """The request never got to the node."""


Request = Generator[Point, Fate | None, Any]


@dataclass
class Clock:
    """Virtual seconds."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class SimFleet:
    """Nodes by name. `behave` says how an engine will do that is started from a spec."""

    behave: Callable[[Mapping[str, Any]], Behaviour]
    clock: Clock = field(default_factory=Clock)
    nodes: dict[str, SimNode] = field(default_factory=dict)
    bugs: frozenset[str] = frozenset()
    given: dict[str, NodeLook] = field(default_factory=dict)
    """Looks at nodes that are not in memory: shown as they are, and no request reaches them."""
    listed: dict[str, frozenset[str]] = field(default_factory=dict)
    """Who publishes endpoints → launches that clients are sent to by them."""
    unlisted_at: dict[str, float] = field(default_factory=dict)
    """Launch → when the last of these lists lost it."""

    @classmethod
    def of(
        cls,
        desired: Desired,
        behave: Callable[[Mapping[str, Any]], Behaviour],
        bugs: frozenset[str] = frozenset(),
        skews: Mapping[str, tuple[float, float]] | None = None,
        links: Mapping[str, Sequence[int | None]] | None = None,
    ) -> SimFleet:
        """Empty machines as the inventory describes them. `skews`: how nodes' clocks are off;
        `links`: the NVLink group of each of a node's GPUs (boards of four, unless said)."""
        fleet = cls(behave, bugs=bugs)
        for name in sorted(desired.nodes):
            skew = (skews or {}).get(name, (0.0, 1.0))
            fleet.add(desired.nodes[name], *skew, (links or {}).get(name, ()))
        return fleet

    def add(
        self,
        node: Node,
        offset_s: float = 0.0,
        rate: float = 1.0,
        links: Sequence[int | None] = (),
    ) -> SimNode:
        """One more machine, with nothing on it. Its clock starts `offset_s` off and runs at `rate`.

        Nothing may compare the clocks of two nodes, so nothing may depend on these.
        """
        declared = node.gpus.source == "declared"
        ids = (
            declared_ids(node)
            if declared
            else tuple(f"GPU-{node.name}-{n}" for n in range(node.gpus.count))
        )
        made = SimNode(
            name=node.name,
            address=node.address,
            gpus=tuple(
                SimGpu(uuid, index, links[index] if links else index // BOARD)
                for index, uuid in enumerate(ids)
            ),
            now=lambda: offset_s + rate * self.clock.now,
            behave=self.behave,
            whole=self.whole,
            traffic=self.traffic,
            nvml=not declared,
            bugs=self.bugs,
        )
        self.nodes[node.name] = made
        return made

    def advance(self, seconds: float) -> None:
        """Time goes by on all nodes."""
        self.clock.now += seconds
        for node in self.nodes.values():
            node.settle()

    def whole(self, launch: str) -> bool:
        """Whether every rank of a launch lives."""
        shards = [n.launches[launch] for n in self.nodes.values() if launch in n.launches]
        return bool(shards) and sum(s.alive for s in shards) == len(shards[0].spec["places"])

    def publish(self, owner: str, launches: Iterable[str]) -> None:
        """From now on the clients of this list are sent to these launches."""
        before = frozenset().union(*self.listed.values())
        self.listed[owner] = frozenset(launches)
        for launch in before - frozenset().union(*self.listed.values()):
            self.unlisted_at[launch] = self.clock.now

    def traffic(self, launch: str) -> float | None:
        """For how long no new requests have come for a launch; None: they still come."""
        if any(launch in names for names in self.listed.values()):
            return None
        return self.clock.now - self.unlisted_at.get(launch, self.clock.now)

    def request(self, node: str, op: str, **fields: Any) -> Request:
        """One request. Raises NoAnswer, or Refused with the node's code."""
        machine = self.nodes.get(node)
        launch = str(fields.get("launch") or fields.get("spec", {}).get("launch", ""))
        if machine is None or machine.silent:
            yield Point(node, op, "no answer", launch)
            raise NotReached(node)
        work = machine.handle(op, fields)
        boot = machine.boots
        result: Any = None
        try:
            while True:
                try:
                    step = next(work)
                except StopIteration as stop:
                    result = stop.value
                    break
                fate = yield Point(node, op, step, launch)
                self._befall(machine, work, fate)
                if machine.boots != boot or machine.silent:
                    # It was rebooted or cut off while this request was under way.
                    if machine.boots != boot:
                        work.close()
                    else:
                        _finish(work)
                    raise NoAnswer(node)
            fate = yield Point(node, op, "replied", launch)
            self._befall(machine, work, fate)
        except GeneratorExit:
            # The reconciler died: the node finishes what it was told.
            if machine.boots == boot:
                _finish(work)
            raise
        return result

    def look(self, node: str, fleet: str) -> Generator[Point, Fate | None, NodeLook]:
        """One look at one node; never raises."""
        if node in self.given:
            yield Point(node, "observe", "no answer")
            return self.given[node]
        try:
            answer: NodeAnswer = yield from self.request(node, "observe", fleet=fleet)
        except NoAnswer:
            return NodeLook(node, error=LookError.UNREACHABLE, detail="no answer")
        return NodeLook(node, answer=answer)

    def to_look_at(self, desired: Desired) -> list[str]:
        """Nodes that a pass looks at, in name order."""
        return [
            n
            for n in sorted({*self.nodes, *self.given})
            if n in self.given
            or (n in desired.nodes and desired.nodes[n].state is not NodeState.LOST)
        ]

    def _befall(self, machine: SimNode, work: Generator[str, None, Any], fate: Fate | None) -> None:
        if fate is None or fate is Fate.GO_ON:
            return
        if fate is Fate.LOSE_REPLY:
            _finish(work)
        elif fate is Fate.KILL_AGENT:
            work.close()
        else:
            work.close()
            machine.reboot()
            machine.silent = machine.silent or fate is Fate.POWER_CUT
        raise NoAnswer(machine.name)


def _finish(work: Generator[str, None, Any]) -> None:
    """Carry a request through although nobody hears of it; a lock that is held ends it."""
    for step in work:
        if step == "waiting for acting.lock":
            work.close()
            return
