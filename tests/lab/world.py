"""A fleet over lab nodes: the real pool, the real agent, real SSH, one placement of the sim engine.

Steps are requests of their own here, so that a fault can be put between any two of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from reconciler.core.build import build_specs
from reconciler.core.changes import Seat
from reconciler.core.codec import to_json
from reconciler.core.diff import diff
from reconciler.core.fingerprint import fingerprint
from reconciler.core.model import (
    Desired,
    Fleet,
    GpuInventory,
    Model,
    Node,
    NodeSsh,
    Placement,
    Profile,
    Revision,
)
from reconciler.core.observed import LookError, NodeAnswer, NodeLook, Shard
from reconciler.core.verdict import Verdict
from reconciler.nodes.pool import NodePool, PoolSettings
from reconciler.nodes.protocol import NodeRefused, NodeUnseen
from tools.labfleet import LabFleet

FLEET_ID = "0b7a3ad0-54c4-4d5c-8d5e-7a1f0c1e9b42"
OBSERVE_S = 4
DEADLINE_S = 90.0

Json = dict[str, Any]


class World:
    """One owner that looks at the lab and acts on it."""

    def __init__(
        self, lab: LabFleet, home: Path, mode: str = "plain", source: str = "declared"
    ) -> None:
        self.lab = lab
        nodes = {node.name: self._node(node.name, mode, source) for node in lab.nodes}
        fleet = Fleet(name="lab", id=FLEET_ID, mode=mode, observe_timeout_s=OBSERVE_S)
        self.desired = Desired(Revision("0" * 40), fleet, nodes, {"chat": Model("chat")})
        settings = PoolSettings(user="root", home=home, retry_base_s=0.1, retry_cap_s=0.2)
        self.pool = NodePool(owner="tester", settings=settings)
        self._ports = iter(range(20000, 29000))

    def _node(self, name: str, mode: str, source: str) -> Node:
        node = self.lab.node(name)
        return Node(
            name=node.name,
            address=node.address,
            pool="lab",
            gpus=GpuInventory(klass="lab", count=8, source=source),
            ssh=NodeSsh(
                user=node.user,
                port=node.port,
                host_key=node.host_key,
                identity_file=node.identity_file,
            ),
            mode=mode,
        )

    # --- looking ----------------------------------------------------------------------------

    def look(self, node: str) -> NodeLook:
        """One look at all nodes; what one of them said."""
        return self.pool.look(self.desired).nodes[node]

    def answer(self, node: str) -> NodeAnswer:
        """The node's answer, once it gives one."""
        return self._poll(lambda: self.look(node), lambda look: look.answer is not None).answer

    def shard(self, node: str, launch: str) -> Shard | None:
        """The launch as its node sees it; None: the node answers and does not know it."""
        answer = self.answer(node)
        assert not answer.shards_error, answer.shards_error
        return next((s for s in answer.shards if s.launch == launch), None)

    def until(self, node: str, launch: str, what: Callable[[Shard], bool]) -> Shard:
        """The shard, once `what` holds of it."""
        return self._poll(
            lambda: self.shard(node, launch), lambda shard: shard is not None and what(shard)
        )

    def until_ready(self, node: str, launch: str) -> Shard:
        """The shard, once it is ready."""
        return self.until(node, launch, lambda s: s.health.ok and s.fresh)

    def verdict(self, placement: str, node: str) -> Verdict:
        """What the diff makes of the one replica of a placement that is pinned to `node`."""
        wanted = Placement(placement, placement, nodes=(node,))
        desired = replace(
            self.desired,
            profiles={placement: self._profile(placement, ())},
            placements={placement: wanted},
        )
        (judged,) = diff(desired, self.pool.look(self.desired)).replicas
        return judged.verdict

    def marked(self, node: str) -> list[str]:
        """Command lines of everything in the node that carries a launch's mark."""
        script = (
            "for e in $(grep -lsz ^RECONCILE_MARK= /proc/[0-9]*/environ);"
            " do tr '\\0' ' ' < ${e%environ}cmdline; echo; done"
        )
        return [line for line in self.lab.ssh(node, script).stdout.splitlines() if line.strip()]

    def folder(self, node: str, launch: str) -> Path:
        """The launch's folder, as it lies on the node's disk."""
        return self.lab.root(node) / "var/lib/reconcile/launches" / launch

    def _poll(self, ask: Callable[[], Any], what: Callable[[Any], bool]) -> Any:
        until = time.monotonic() + DEADLINE_S
        while not what(found := ask()):
            assert time.monotonic() < until, f"not so within {DEADLINE_S} s: {found}"
            time.sleep(0.1)
        return found

    # --- acting -----------------------------------------------------------------------------

    def _profile(self, placement: str, args: tuple[str, ...]) -> Profile:
        return Profile(
            placement,
            model="chat",
            engine="sim",
            gpu_class="lab",
            args=args,
            stop_grace_s=5,
            start_timeout_s=120,
        )

    def spec(self, node: str, placement: str, *args: str, gpu: str = "") -> tuple[str, Json]:
        """(launch, fields of the start request) of the placement's only replica, on `node`."""
        launch = f"{placement}-0-aaaaa"
        profile = self._profile(placement, args)
        wanted = Placement(placement, placement, nodes=(node,))
        desired = replace(
            self.desired, profiles={placement: profile}, placements={placement: wanted}
        )
        resolved = desired.resolved(wanted)
        port = next(self._ports)
        (shard,) = build_specs(
            desired=desired,
            placement=wanted,
            resolved=resolved,
            seats=[Seat(node, (gpu or f"{node}-gpu-{port % 8}",))],
            ports={"http": port},
            replica=f"{placement}-0",
            ordinal=0,
            launch=launch,
            seq=1,
            fingerprint=fingerprint(resolved),
            answers={node: self.answer(node)},
        )
        return launch, {"spec": to_json(shard.spec), "labels": to_json(shard.labels)}

    def fence(self, node: str) -> Json:
        """A living lease's fence on one node."""
        lease = self.pool.lease(self.desired, [node], "acquire")[node]
        assert lease.lease is not None, lease
        return {"fleet": FLEET_ID, "owner": self.pool.owner, "epoch": lease.epoch}

    def ask(self, node: str, op: str, **fields: Any) -> Json:
        """One request. Raises NodeError."""
        return self.pool.request(self.desired, node, op, **fields)

    def refusal(self, node: str, op: str, **fields: Any) -> str:
        """The code with which the node refuses a request; empty: it did not."""
        try:
            self.ask(node, op, **fields)
        except NodeRefused as error:
            return error.code
        return ""

    def start(self, node: str, placement: str, *args: str) -> str:
        """Start the placement's replica; gives the launch."""
        launch, fields = self.spec(node, placement, *args)
        assert self.ask(node, "start", **self.fence(node), **fields)["state"] == "started"
        return launch

    def stop(self, node: str, launch: str) -> str:
        """Ask for the launch's end; gives the node's answer."""
        return str(self.ask(node, "stop", **self.fence(node), launch=launch)["state"])

    def unseen(self, node: str) -> bool:
        """Whether a request finds no one there."""
        try:
            self.ask(node, "hello")
        except NodeUnseen as error:
            return error.kind is LookError.UNREACHABLE
        return False

    def close(self) -> None:
        """Close the connections."""
        self.pool.close()
