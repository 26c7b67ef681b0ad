"""The two nodes that the contract runs over: in memory, and the real agent behind a real sshd.

A Target is one node, its client, and the few facts that a spec needs. Time: the real one waits, the
one in memory is told to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import pytest

from reconciler.core.codec import from_json, to_json
from reconciler.core.model import Desired
from reconciler.core.observed import LookError, NodeAnswer, Shard
from reconciler.nodes.loopback import LoopbackFleet
from reconciler.nodes.pool import NodePool
from reconciler.nodes.protocol import NodeClient, NodeRefused, ReplyLost
from reconciler.simulate.engine import Behaviour
from reconciler.simulate.fleet import NoAnswer, SimFleet
from reconciler.simulate.leases import Refused
from tests.support.desired import FLEET_ID, desired_of
from tests.support.roots import move_root

T = TypeVar("T")
WITHIN_S = 15.0


@dataclass
class RealNode(NodeClient):
    """The agent over SSH."""

    pool: NodePool
    desired: Desired
    node: str

    def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """As NodePool has it."""
        return self.pool.request(self.desired, self.node, op, **fields)


@dataclass
class SimClient(NodeClient):
    """The node in memory, each request carried through to its end."""

    fleet: SimFleet
    node: str

    def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """Its result as the wire would carry it."""
        work = self.fleet.request(self.node, op, **fields)
        try:
            while True:
                next(work)
        except StopIteration as stop:
            result = to_json(stop.value)
            return dict(result) if result else {}
        except NoAnswer as error:
            raise ReplyLost(self.node, LookError.UNREACHABLE, "no answer") from error
        except Refused as error:
            raise NodeRefused(self.node, error.code, error.message) from error


class Passing(Protocol):
    """Lets time go by on the node."""

    def __call__(self, seconds: float) -> None: ...


class Moving(Protocol):
    """Its records are written to another folder from now on. Returns the former one, of which the
    node is told or not."""

    def __call__(self, *, told: bool) -> str: ...


@dataclass
class Target:
    """One node under test."""

    kind: str
    client: NodeClient
    pass_time: Passing
    reboot: Callable[[], None]
    move_root: Moving
    node: str
    address: str
    gpus: tuple[str, ...]
    machine_id: str
    launches: int = 0
    epochs: dict[str, int] = field(default_factory=dict)

    # --- asking ------------------------------------------------------------------------------

    def lease(self, owner: str, action: str = "acquire", **fields: Any) -> dict[str, Any]:
        """A lease request; the epoch that comes of it is used in what `owner` asks later."""
        given = {"fleet": FLEET_ID, "owner": owner, "ttl_s": 60, "action": action, **fields}
        lease = self.client.request("lease", **given)
        self.epochs[owner] = lease["epoch"]
        return lease

    def act(self, op: str, owner: str = "a", **fields: Any) -> dict[str, Any]:
        """An acting request under the fence of `owner`."""
        fence = {"fleet": FLEET_ID, "owner": owner, "epoch": self.epochs.get(owner, 0)}
        return self.client.request(op, **{**fence, **fields})

    def refused(self, op: str, owner: str = "a", **fields: Any) -> str:
        """The code with which the node refuses; AssertionError if it does not."""
        with pytest.raises(NodeRefused) as caught:
            self.act(op, owner, **fields)
        assert caught.value.reason, "a refusal without a word"
        return caught.value.code

    def start(
        self,
        spec: dict[str, Any],
        owner: str = "a",
        secrets: dict[str, str] | None = None,
        **labels: Any,
    ) -> dict[str, Any]:
        """A start with labels as the reconciler writes them, and its secrets if it has any."""
        given = {"placement": "chat", "ordinal": 0, "replica": spec["replica"], **labels}
        beside = {"secrets": secrets} if secrets is not None else {}
        return self.act("start", owner, spec=spec, labels=given, **beside)

    def observe(self) -> NodeAnswer:
        """The node's answer as a value."""
        result = self.client.request("observe", fleet=FLEET_ID, deadline_s=10)
        return from_json(NodeAnswer, result)

    def shard(self, launch: str) -> Shard | None:
        """What the node shows of a launch."""
        return next((s for s in self.observe().shards if s.launch == launch), None)

    def until(self, look: Callable[[], T], what: str) -> T:
        """The first true value of `look`, letting time go by."""
        deadline = time.monotonic() + WITHIN_S
        for _ in range(2000):
            seen = look()
            if seen:
                return seen
            assert time.monotonic() < deadline, f"{what}: not within {WITHIN_S:g} s"
            self.pass_time(0.05)
        raise AssertionError(f"{what}: never")

    # --- saying ------------------------------------------------------------------------------

    def spec(self, *, gpu: int = 0, port: int = 20000, seq: int = 1, **changes: Any) -> Any:
        """A shard that runs `sleep`: it starts at once and ends by TERM."""
        self.launches += 1
        launch = f"chat-0-x{self.launches}"
        place = {
            "rank": 0,
            "node": self.node,
            "machine_id": self.machine_id,
            "gpus": [self.gpus[gpu]],
            "ports": {"http": port},
            "address": self.address,
        }
        serve = {"name": "serve", "argv": ["sleep", "600"], "env": {}, "gpu_env": []}
        return {
            "format": "1.0",
            "fleet": FLEET_ID,
            "launch": launch,
            "replica": "chat-0",
            "seq": seq,
            "rank": 0,
            "places": [place],
            "mode": "plain",
            "restart": "",
            "fingerprint": "p1:" + "0" * 64,
            "profile": {"profile": {"name": "llama"}, "model": {"name": "m"}},
            "gpu_source": "declared",
            "gpu_index": {name: index for index, name in enumerate(self.gpus)},
            "address": self.address,
            "network": {"interface": ""},
            "commands": [serve],
            "files": [],
            "container": None,
            "health": None,
            "require_paths": [],
            "start_timeout_s": 60,
            "stop_grace_s": 5,
            "drain_s": 0,
            "stop_signal": "TERM",
            **changes,
        }


def real_target(fleet: LoopbackFleet, pool: NodePool) -> Target:
    """The first node of a loopback fleet."""
    node = next(iter(fleet.nodes.values()))
    client = RealNode(pool, desired_of(fleet), node.name)

    def moved(*, told: bool) -> str:
        move_root(fleet, node.name)
        if told:
            document = client.desired.nodes[node.name]
            document = replace(document, previous_roots=(str(node.root),))
            client.desired = replace(client.desired, nodes={node.name: document})
        return str(node.root)

    return Target(
        kind="sshd",
        client=client,
        pass_time=time.sleep,
        reboot=lambda: fleet.reboot(node.name),
        move_root=moved,
        node=node.name,
        address=node.address,
        gpus=tuple(f"{node.name}-gpu-{i}" for i in range(8)),
        machine_id=node.machine_id,
    )


def sim_target(desired: Desired) -> Target:
    """The first node of a fleet in memory."""
    fleet = SimFleet.of(desired, lambda spec: Behaviour(load_s=0.0, stop_s=0.1))
    node = next(iter(fleet.nodes.values()))

    def moved(*, told: bool) -> str:
        former = node.roots.root
        node.move_root("/sim-2", [former] if told else [])
        return former

    return Target(
        kind="memory",
        client=SimClient(fleet, node.name),
        pass_time=fleet.advance,
        reboot=node.reboot,
        move_root=moved,
        node=node.name,
        address=node.address,
        gpus=tuple(gpu.uuid for gpu in node.gpus),
        machine_id=node.machine_id,
    )
