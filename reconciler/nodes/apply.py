"""Carries a plan out: its steps in order, replica by replica, all replicas at once.

Apply never chooses. Each node's answer becomes a value; after a step that was not done, the rest of
that replica waits for the next pass, which looks again. A node that fenced us, or fell silent,
gets nothing more in this pass. One request per node is under way, and a mute node holds up only
what concerns it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, assert_never

from reconciler.core.changes import (
    AdoptStep,
    Plan,
    Reason,
    RelabelStep,
    ShardSpec,
    StartStep,
    Step,
    StopStep,
)
from reconciler.core.codec import to_json
from reconciler.core.model import Desired
from reconciler.core.observed import Labels
from reconciler.errors import NodeError
from reconciler.nodes.asking import CHECK, questions
from reconciler.nodes.protocol import LeaseResult, NodeRefused, ReplyLost, explain, reason_of
from reconciler.nodes.secretstore import SecretError, SecretStore, Snapshot
from reconciler.nodes.sizes import differing

MAX_WORKERS = 128
"""Requests under way at once, over all nodes."""
CANCEL_POLL_S = 0.2
"""How soon a cancelled pass notices, while requests are under way."""
NO_SECRETS = SecretStore(None)


class Outcome(StrEnum):
    """What became of one step on one node."""

    DONE = "done"
    REFUSED = "refused"
    """The node said no; nothing has changed there."""
    FAILED = "failed"
    """It did not get there; nothing has changed there."""
    LOST = "lost"
    """It was sent, asked again, and no reply came: only the next look can tell."""
    SKIPPED = "skipped"
    """Not sent, because of something before it."""


@dataclass(frozen=True)
class StepResult:
    """One step on one node."""

    kind: str
    """start | stop | relabel | adopt."""
    subject: str
    """The launch."""
    node: str
    result: Outcome
    code: str = ""
    """What the node said: its state when done, its error code when refused."""
    message: str = ""
    reason: Reason | None = None
    took_s: float = 0.0


@dataclass(frozen=True)
class ApplyReport:
    """All results, in the plan's order."""

    results: tuple[StepResult, ...] = ()
    took_s: float = 0.0

    @property
    def complete(self) -> bool:
        """Everything was done."""
        return all(result.result is Outcome.DONE for result in self.results)

    @property
    def fenced(self) -> tuple[str, ...]:
        """Nodes that refused our epoch: the lease is lost there."""
        found = {r.node for r in self.results if r.code == "fenced" and r.result is Outcome.REFUSED}
        return tuple(sorted(found))


class Requests(Protocol):
    """What apply needs of a NodePool."""

    @property
    def owner(self) -> str: ...
    def request(self, desired: Desired, node: str, op: str, **fields: Any) -> dict[str, Any]: ...
    def started(self, node: str, spec: Mapping[str, Any], labels: Labels) -> None: ...
    def lease(
        self,
        desired: Desired,
        nodes: Sequence[str],
        action: str,
        *,
        epochs: Mapping[str, int] | None = None,
        **fields: Any,
    ) -> Mapping[str, LeaseResult]: ...


@dataclass(frozen=True)
class Call:
    """One request of one step; `order` is its place in the report."""

    order: int
    lane: str
    kind: str
    launch: str
    node: str
    fields: Mapping[str, Any]
    labels: Labels | None = None
    secrets: tuple[str, ...] = ()
    """Names of those that any rank of the step needs: where one is missing, no rank starts."""


@dataclass
class _LaneState:
    """A replica's steps that are still to be done, and the calls of the one under way."""

    steps: deque[list[Call]] = field(default_factory=deque)
    open: int = 0
    begun: bool = False
    """Something of the step under way was sent: all of it is, or a launch would be half there."""
    sizes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Path → its size on each node that was asked whether it could start."""
    failed: StepResult | None = None


def never() -> bool:
    """Nothing cancels."""
    return False


def apply(
    plan: Plan,
    desired: Desired,
    pool: Requests,
    *,
    epochs: Mapping[str, int],
    on_step: Callable[[StepResult], None] | None = None,
    cancelled: Callable[[], bool] = never,
    clock: Callable[[], float] = time.monotonic,
    secrets: SecretStore = NO_SECRETS,
) -> ApplyReport:
    """Executes `plan.steps`. Never raises for a node.

    `epochs` are the leases held, by node; a node without one gets nothing. `on_step` is called in
    the calling thread for each result as it comes. After `cancelled`, no new step is begun; one
    that is under way is ended on all of its nodes. `secrets` has the values that specs name; a
    start whose secret is missing is refused here.
    """
    began = clock()
    run = _Run(desired, pool, epochs, on_step or _ignore, cancelled, clock, secrets)
    results = run.execute(_lanes(plan.steps))
    return ApplyReport(results, clock() - began)


def _ignore(_: StepResult) -> None:
    """Nobody listens."""


class _Run:
    """One apply under way. Everything but the requests themselves happens in the calling thread."""

    def __init__(
        self,
        desired: Desired,
        pool: Requests,
        epochs: Mapping[str, int],
        on_step: Callable[[StepResult], None],
        cancelled: Callable[[], bool],
        clock: Callable[[], float],
        secrets: SecretStore,
    ) -> None:
        self._desired, self._pool, self._epochs = desired, pool, epochs
        self._on_step, self._cancelled, self._clock = on_step, cancelled, clock
        self._secrets = Snapshot(secrets)
        self._results: dict[int, StepResult] = {}
        self._queues: dict[str, deque[Call]] = {}
        self._running: dict[Future[StepResult], Call] = {}
        self._out: dict[str, StepResult] = {}
        """Nodes that get nothing more, and the result that says why."""
        self._renew_at = clock() + desired.fleet.lease_s / 3
        self._renewing: Future[Mapping[str, LeaseResult]] | None = None

    def execute(self, lanes: dict[str, _LaneState]) -> tuple[StepResult, ...]:
        """All results by order."""
        self._lanes = lanes
        nodes = {call.node for lane in lanes.values() for step in lane.steps for call in step}
        workers = max(1, min(len(nodes), MAX_WORKERS)) + 1
        with ThreadPoolExecutor(workers, thread_name_prefix="apply") as executor:
            self._executor = executor
            for name in list(lanes):
                self._next_step(name)
            while self._running:
                self._renew()
                done, _ = wait(self._running, CANCEL_POLL_S, FIRST_COMPLETED)
                for future in done:
                    self._finished(self._running.pop(future), future.result())
        return tuple(self._results[order] for order in sorted(self._results))

    def _next_step(self, name: str) -> None:
        lane = self._lanes[name]
        while lane.steps and not lane.open:
            calls = lane.steps.popleft()
            if lane.failed is not None:
                for call in calls:
                    self._record(call, _after(call, lane.failed))
                continue
            lane.open, lane.begun = len(calls), False
            for call in calls:
                self._queues.setdefault(call.node, deque()).append(call)
            for call in calls:
                self._pump(call.node)

    def _pump(self, node: str) -> None:
        """Sends the next request to `node` unless one is under way there."""
        waiting = self._queues.get(node, deque())
        busy = {call.node for call in self._running.values()}
        while waiting and node not in busy:
            call = waiting.popleft()
            refusal = self._refusal(call)
            if refusal is not None:
                self._close(call, refusal)
                continue
            self._lanes[call.lane].begun = True
            future = self._executor.submit(self._send, call)
            self._running[future] = call
            return

    def _refusal(self, call: Call) -> StepResult | None:
        """Why `call` is not sent at all."""
        if self._cancelled() and not self._lanes[call.lane].begun:
            return _skipped(call, "cancelled", "the pass was cancelled")
        out = self._out.get(call.node)
        if out is not None:
            return _skipped(call, out.code, out.message, out.reason)
        if call.node not in self._epochs:
            message = f"no lease is held on {call.node}"
            return _skipped(call, "lease-held", message, Reason.LEASE_HELD)
        return None

    def _send(self, call: Call) -> StepResult:
        """In a worker thread: the one place where a node's failure becomes a result."""
        began = self._clock()
        fence = {
            "fleet": self._desired.fleet.id,
            "owner": self._pool.owner,
            "epoch": self._epochs[call.node],
        }
        result, code, message, reason = Outcome.DONE, "", "", None
        try:
            fields = {**fence, **call.fields, **self._values(call)}
            if call.kind == "start" and call.labels is not None:
                self._pool.started(call.node, call.fields["spec"], call.labels)
            said = self._pool.request(self._desired, call.node, call.kind, **fields)
            code = str(said.get("state", ""))
            if call.kind == CHECK and said.get("findings"):
                result, code, reason = Outcome.REFUSED, "preflight", Reason.PREFLIGHT_FAILED
                message = "; ".join(map(str, said["findings"]))
            elif call.kind == CHECK:
                self._lanes[call.lane].sizes[call.node] = dict(said.get("sizes") or {})
        except SecretError as error:
            result, code = Outcome.REFUSED, "preflight"
            message, reason = str(error), Reason.PREFLIGHT_FAILED
        except NodeRefused as error:
            result, code = Outcome.REFUSED, error.code
            message, reason = explain(error), reason_of(error)
        except ReplyLost as error:
            result, message, reason = Outcome.LOST, explain(error), reason_of(error)
        except NodeError as error:
            result, message, reason = Outcome.FAILED, explain(error), reason_of(error)
        took = round(self._clock() - began, 6)
        return StepResult(call.kind, call.launch, call.node, result, code, message, reason, took)

    def _values(self, call: Call) -> dict[str, Any]:
        """The secrets of a start, beside its spec: there, they would end in the record.

        A check reads them too, and sends none: what lacks a secret must not end what runs.
        """
        if not call.secrets:
            return {}
        values = self._secrets.values(call.secrets)
        own = call.fields["spec"].get("secrets", ())
        return {"secrets": {name: values[name] for name in own}} if call.kind == "start" else {}

    def _finished(self, call: Call, result: StepResult) -> None:
        if result.code == "fenced" or result.result in (Outcome.FAILED, Outcome.LOST):
            self._out.setdefault(call.node, result)
        self._close(call, result)
        self._pump(call.node)

    def _close(self, call: Call, result: StepResult) -> None:
        lane = self._lanes[call.lane]
        lane.open -= 1
        if call.kind == CHECK and result.result is Outcome.DONE and not lane.open:
            result = _unequal(call, lane.sizes) or result
        if result.result is not Outcome.DONE and lane.failed is None:
            lane.failed = result
        if call.kind != CHECK or result.result is not Outcome.DONE:
            # A check that found nothing is no step: what follows it tells.
            self._record(call, result)
        self._next_step(call.lane)

    def _record(self, call: Call, result: StepResult) -> None:
        self._results[call.order] = result
        self._on_step(result)

    def _renew(self) -> None:
        """Renews the leases each third of their life; a node that refuses gets nothing more."""
        if self._renewing is not None and self._renewing.done():
            for node, answer in self._renewing.result().items():
                if answer.reason is Reason.FENCED:
                    message = f"the lease is lost: {answer.message}"
                    lost = StepResult(
                        "lease", "", node, Outcome.REFUSED, "fenced", message, Reason.FENCED
                    )
                    self._out.setdefault(node, lost)
            self._renewing = None
        if self._renewing is None and self._clock() >= self._renew_at:
            self._renew_at = self._clock() + self._desired.fleet.lease_s / 3
            nodes = [node for node in sorted(self._epochs) if node not in self._out]
            self._renewing = self._executor.submit(
                self._pool.lease, self._desired, nodes, "renew", epochs=self._epochs
            )


def _skipped(call: Call, code: str, message: str, reason: Reason | None = None) -> StepResult:
    return StepResult(call.kind, call.launch, call.node, Outcome.SKIPPED, code, message, reason)


def _after(call: Call, failed: StepResult) -> StepResult:
    """Not sent because of the step before it; a check that found something says what."""
    if failed.kind != CHECK:
        return _skipped(call, failed.code, f"{failed.kind} on {failed.node} was not done")
    start = call.kind == "start"
    kept = "not started: it" if start else "left running: its successor"
    why = f"{kept} could not start on {failed.node}: {failed.message}"
    return _skipped(call, failed.code, why, failed.reason)


def _unequal(call: Call, sizes: Mapping[str, Mapping[str, Any]]) -> StepResult | None:
    said = differing(sizes)
    if not said:
        return None
    message, reason = "; ".join(said), Reason.PREFLIGHT_FAILED
    return StepResult(CHECK, call.launch, call.node, Outcome.REFUSED, "preflight", message, reason)


def _lanes(steps: tuple[Step, ...]) -> dict[str, _LaneState]:
    """Steps by replica, each as the calls that it makes at once."""
    lanes: dict[str, _LaneState] = {}
    order = 0
    for step in steps:
        name = f"launch {step.launch}" if isinstance(step, AdoptStep) else step.replica
        checks = list(_checks(step, name, order))
        order += len(checks)
        if checks:
            lanes.setdefault(name, _LaneState()).steps.append(checks)
        calls = []
        secrets = _secrets(step.shards) if isinstance(step, StartStep) else ()
        for node, fields, labels in _requests(step):
            calls.append(Call(order, name, step.kind, step.launch, node, fields, labels, secrets))
            order += 1
        lanes.setdefault(name, _LaneState()).steps.append(calls)
    return lanes


def _checks(step: Step, lane: str, order: int) -> Iterator[Call]:
    """Questions before a stop whose successor needs its place, and before a start on many nodes.

    One rank whose node refuses would leave the others waiting for it; a start on one node asks
    the same questions by itself.
    """
    shards, replaces = questions(step)
    if isinstance(step, StartStep) and len(shards) == 1:
        return
    secrets = _secrets(shards)
    for number, shard in enumerate(shards):
        fields = {"spec": to_json(shard.spec), **replaces}
        yield Call(order + number, lane, CHECK, step.launch, shard.node, fields, secrets=secrets)


def _secrets(shards: Sequence[ShardSpec]) -> tuple[str, ...]:
    return tuple(sorted({name for shard in shards for name in shard.spec.get("secrets", ())}))


def _requests(step: Step) -> Iterator[tuple[str, dict[str, Any], Labels | None]]:
    """(node, fields, labels of a start) of each request of a step."""
    match step:
        case StartStep():
            for shard in step.shards:
                spec, labels = to_json(shard.spec), to_json(shard.labels)
                yield shard.node, {"spec": spec, "labels": labels}, shard.labels
        case StopStep():
            for node in step.nodes:
                yield node, {"launch": step.launch}, None
        case RelabelStep():
            for node in step.nodes:
                yield node, {"launch": step.launch, "labels": to_json(step.labels)}, None
        case AdoptStep():
            for node in step.nodes:
                yield node, {"launch": step.launch}, None
        case _:
            assert_never(step)
