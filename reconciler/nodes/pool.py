"""All nodes of a fleet: looks, leases and requests, in parallel and bounded.

The pool decides nothing. What a node says, or why it says nothing, comes back as a value, with the
one exception of `request`, which raises NodeError. Connections are kept from pass to pass; an edit
of how a node is reached makes a new one.
"""

from __future__ import annotations

import getpass
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reconciler.core.changes import Reason
from reconciler.core.codec import DecodeError, from_json
from reconciler.core.model import Desired, Fleet, Node, NodeState
from reconciler.core.observed import Labels, Lease, LookError, NodeAnswer, NodeLook, Observed
from reconciler.errors import NodeError
from reconciler.nodes import sshconfig
from reconciler.nodes.channel import AgentPackage, Bootstrap
from reconciler.nodes.credentials import Credentials
from reconciler.nodes.endpoint import Endpoint, SshDefaults, of_node
from reconciler.nodes.lane import Backoff, Lane
from reconciler.nodes.look import look_at
from reconciler.nodes.memory import Memory
from reconciler.nodes.protocol import LeaseResult, NodeUnseen, explain, reason_of
from reconciler.nodes.ssh import Deadline, Dialer

YIELD_S = 0.5
"""How long the later of two reconcilers waits at the first node before it asks the others."""


@dataclass(frozen=True)
class PoolSettings:
    """Where the reconciler runs, and how much it does at once."""

    user: str = ""
    """Login where neither fleet nor ~/.ssh/config name one; empty: who runs this."""
    home: Path = field(default_factory=Path.home)
    ssh_config: Path | None = None
    """None: ~/.ssh/config of `home`, if there is one."""
    known_hosts: tuple[Path, ...] = ()
    """Empty: ~/.ssh/known_hosts and /etc/ssh/ssh_known_hosts."""
    cache_file: Path | None = None
    """Where `last` answers outlive this process; None: they do not."""
    concurrency: int = 32
    """Handshakes at once. Requests over open channels are not bounded: they cost nothing."""
    retry_base_s: float = 1.0
    retry_cap_s: float = 30.0
    agent: AgentPackage | None = None
    """None: the agent that ships with this build."""


class NodePool:
    """The connections of one owner. Use from one thread; `request` also from others."""

    def __init__(
        self,
        *,
        owner: str,
        settings: PoolSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.owner = owner
        self._settings = settings or PoolSettings()
        self._clock, self._rng = clock, rng or random.Random()
        self._defaults = defaults_of(self._settings)
        self._gate = threading.BoundedSemaphore(self._settings.concurrency)
        credentials = Credentials(self._settings.home)
        self._dialer = Dialer(credentials, self._gate, self._rng)
        self._package: AgentPackage | None = self._settings.agent
        self._lanes: dict[str, Lane] = {}
        self._endpoints: dict[str, tuple[object, Endpoint]] = {}
        self._lock = threading.Lock()
        self._before: dict[str, tuple[dict[str, Any], NodeAnswer]] = {}
        self._memory = Memory(owner, self._settings.cache_file)

    def __enter__(self) -> NodePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def look(self, desired: Desired, *, remember: bool = True) -> Observed:
        """All nodes that are not `lost`, by the fleet's deadline. Never raises for a node.

        `remember=False` (a dry run) leaves what silent nodes held as it was.
        """
        deadline = Deadline(desired.fleet.observe_timeout_s)
        self._retire(desired)
        lanes: dict[str, Lane] = {}
        looks: dict[str, NodeLook] = {}
        for name, node in desired.nodes.items():
            if node.state is not NodeState.LOST:
                try:
                    lanes[name] = self._lane(desired, node)
                except NodeUnseen as error:
                    detail, hint = error.reason, error.hint
                    looks[name] = NodeLook(name, error=error.kind, detail=detail, hint=hint)
        fields = {"fleet": desired.fleet.id}
        looks.update(look_at(lanes, fields, deadline, self._before))
        seen = {name: self._judge(look, remember) for name, look in looks.items()}
        if remember:
            self._memory.save()
        return Observed(self.owner, {name: seen[name] for name in desired.nodes if name in seen})

    def lease(
        self,
        desired: Desired,
        nodes: Sequence[str],
        action: str,
        *,
        epochs: Mapping[str, int] | None = None,
        **fields: Any,
    ) -> dict[str, LeaseResult]:
        """acquire | renew | release | update | take, on each of `nodes`, in name order.

        `epochs` are those of renew, release and update, by node. Acquiring begins with the first
        node alone, so that of two reconcilers one is told there and lets the other go first,
        instead of each getting half of the nodes.
        """
        known = {"fleet": desired.fleet.id, "owner": self.owner, "ttl_s": desired.fleet.lease_s}

        def ask(name: str) -> LeaseResult:
            epoch = {"epoch": epochs[name]} if epochs and name in epochs else {}
            sent = {**known, **fields, **epoch, "action": action}
            try:
                stored = self.request(desired, name, "lease", **sent)
                return LeaseResult(name, from_json(Lease, stored))
            except DecodeError as error:
                problem = NodeUnseen(f"node {name}", LookError.DAMAGED, f"its lease: {error}")
                return LeaseResult(name, None, reason_of(problem), explain(problem))
            except NodeError as error:
                return LeaseResult(name, None, reason_of(error), explain(error))

        ordered = sorted(nodes)
        first: list[LeaseResult] = []
        if action == "acquire" and len(ordered) > 1:
            first = [ask(ordered[0])]
            if first[0].reason is Reason.LEASE_HELD:
                time.sleep(YIELD_S)
        rest = self.each(ordered[len(first) :], ask)
        return dict(zip(ordered, [*first, *rest], strict=True))

    def request(self, desired: Desired, node: str, op: str, **fields: Any) -> dict[str, Any]:
        """One request to one node, within the fleet's deadline. Raises NodeError.

        A lost reply is answered by asking again once; if that is lost too: ReplyLost.
        """
        lane = self._lane(desired, desired.nodes[node])
        deadline = Deadline(desired.fleet.observe_timeout_s)
        if not lane.lock.acquire(timeout=deadline.left()):
            subject = lane.endpoint.subject
            reason = f"another request has kept it busy for {deadline.seconds:g} s"
            raise NodeUnseen(subject, LookError.UNREACHABLE, reason)
        try:
            return lane.request(op, fields, deadline)
        finally:
            lane.lock.release()

    def each(self, nodes: Sequence[str], work: Callable[[str], Any]) -> list[Any]:
        """`work` for each node, in parallel, bounded; results in the order of `nodes`."""
        if len(nodes) <= 1:
            return [work(node) for node in nodes]
        workers = min(len(nodes), 4 * self._settings.concurrency)
        with ThreadPoolExecutor(workers, thread_name_prefix="nodes") as executor:
            return list(executor.map(work, nodes))

    def started(self, node: str, spec: Mapping[str, Any], labels: Labels) -> None:
        """To be called before a start is sent: should the node fall silent now, it may hold it."""
        with self._lock:
            self._memory.started(node, spec, labels)

    def close(self) -> None:
        """Closes all connections; what runs on the nodes lives on."""
        with self._lock:
            lanes = list(self._lanes.values())
            self._lanes.clear()
        # All sockets first: then a thousand readers end side by side.
        for lane in lanes:
            lane.abort()
        for lane in lanes:
            lane.close()
        self._dialer.close()

    # --- how it is done ------------------------------------------------------------------------

    def _endpoint(self, fleet: Fleet, node: Node) -> Endpoint:
        """`of_node`, whose look into ~/.ssh/config costs more than a whole warm look at a node."""
        asked = (fleet.ssh, fleet.root, node.address, node.ssh, node.root, node.previous_roots)
        known = self._endpoints.get(node.name)
        if known is None or known[0] != asked:
            known = self._endpoints[node.name] = (asked, of_node(fleet, node, self._defaults))
        return known[1]

    def _lane(self, desired: Desired, node: Node) -> Lane:
        endpoint = self._endpoint(desired.fleet, node)
        with self._lock:
            lane = self._lanes.get(node.name)
            if lane is None or lane.endpoint != endpoint:
                if lane is not None:
                    lane.close()
                settings = self._settings
                backoff = Backoff(
                    settings.retry_base_s, settings.retry_cap_s, self._rng, self._clock
                )
                lane = Lane(endpoint, self._dialer, self._agent(), backoff)
                self._lanes[node.name] = lane
            return lane

    def _agent(self) -> AgentPackage:
        if self._package is None:
            # Imported late: building it reads files, and a pool may be made that is never used.
            from reconciler.agent import bootstrap, package

            shipped: Bootstrap = bootstrap
            self._package = AgentPackage(shipped, *package.build())
        return self._package

    def _retire(self, desired: Desired) -> None:
        """Nodes that are lost or gone: their connections and what was remembered of them."""
        wanted = {n.name for n in desired.nodes.values() if n.state is not NodeState.LOST}
        with self._lock:
            gone = [self._lanes.pop(name) for name in list(self._lanes) if name not in wanted]
        for lane in gone:
            lane.close()
        for name in self._before.keys() - wanted:
            del self._before[name]
        for name in self._endpoints.keys() - wanted:
            del self._endpoints[name]
        self._memory.forget(self._memory.known() - wanted)

    def _judge(self, look: NodeLook, remember: bool) -> NodeLook:
        """Adds what the node held last, and holds an answer that comes from another machine."""
        answer, last = look.answer, self._memory.last(look.node)
        if answer is None:
            return replace(look, last=last)
        known = self._memory.machine_id(look.node)
        if known and known != answer.machine_id:
            return NodeLook(
                look.node,
                error=LookError.MACHINE_ID,
                detail=f"machine id {answer.machine_id} answers, it was {known}",
                hint="if the machine was replaced, set `state: lost` for one revision; "
                "if not, its address leads elsewhere",
                last=last,
                look_ms=look.look_ms,
            )
        if remember:
            self._memory.see(look.node, answer)
        return look


def defaults_of(settings: PoolSettings) -> SshDefaults:
    """What this machine says about how hosts are reached."""
    path = settings.ssh_config or settings.home / ".ssh/config"
    config = sshconfig.read(path, settings.home)
    try:
        user = settings.user or getpass.getuser()
    except (KeyError, OSError):
        user = ""  # an account without a name: ssh.user has to say whose the login is
    return SshDefaults(user, settings.home, settings.known_hosts, config)
