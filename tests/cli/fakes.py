"""A fleet repo and nodes in memory, behind the loop's own protocols. No patches, no real git.

`World` has three nodes and one placement of two replicas. Nodes answer what they hold, keep leases
as the real agent does in the few respects that the loop relies on, and remember what was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reconciler.core.changes import Plan, Reason, StartStep
from reconciler.core.codec import from_json, to_json
from reconciler.core.fingerprint import fingerprint
from reconciler.core.model import (
    Desired,
    Fleet,
    GpuInventory,
    Model,
    Node,
    Placement,
    Profile,
    ResolvedProfile,
    Revision,
)
from reconciler.core.observed import (
    ApprovedChange,
    Health,
    Labels,
    Lease,
    LookError,
    NodeAnswer,
    NodeLook,
    Observed,
    Phase,
    Place,
    Record,
    Shard,
)
from reconciler.errors import GitError, InvalidFleet
from reconciler.fleet.findings import Finding
from reconciler.loop.passes import Request
from reconciler.loop.seams import Edges
from reconciler.nodes.apply import ApplyReport, Outcome, StepResult
from reconciler.nodes.protocol import LeaseResult

FLEET = "11111111-1111-4111-8111-111111111111"
ROOT = "0" * 40
ME = "ops@control"


def commit_id(name: str) -> str:
    """A commit's hex for a short name."""
    return (name.encode().hex() + "0" * 40)[:40]


def node(name: str, number: int) -> Node:
    """Eight declared GPUs on loopback."""
    return Node(name, f"127.0.0.{number}", "sim", GpuInventory("sim-gpu", 8, source="declared"))


NODES = {name: node(name, i + 2) for i, name in enumerate(("a", "b", "c"))}


def desired(name: str = "one", *, args: tuple[str, ...] = (), replicas: int = 2) -> Desired:
    """One placement `chat` on the sim engine."""
    return Desired(
        revision=Revision(commit_id(name), "main", root_commit=ROOT),
        fleet=Fleet("test", FLEET),
        nodes=NODES,
        models={"m": Model("m")},
        profiles={"p": Profile("p", model="m", engine="sim", args=args)},
        placements={"chat": Placement("chat", "p", replicas=replicas, pool="sim")},
    )


def bad_finding() -> Finding:
    """A schema finding in line 7."""
    return Finding(
        "placements/chat.yaml",
        7,
        3,
        "replicas",
        "placement chat",
        "'two' is text",
        "write a whole number",
        Reason.SCHEMA_FAILED,
    )


@dataclass
class FakeSource:
    """Commits by name, oldest first; None is one that does not validate."""

    history: list[tuple[str, Desired | None]] = field(default_factory=list)
    gone: dict[str, Desired] = field(default_factory=dict)
    """Commits that are no longer in the branch's history but still load."""
    fetch_error: GitError | None = None
    has_remote: bool = True
    no_head: bool = False
    """The branch is gone."""
    in_force: list[Revision] = field(default_factory=list)
    inventories: dict[str, Desired] = field(default_factory=dict)
    """Commits that do not validate but whose Fleet and Node documents do."""

    def push(self, name: str, state: Desired | None) -> None:
        self.history.append((name, state))

    def fetch(self) -> None:
        if self.fetch_error:
            raise self.fetch_error

    def renew(self) -> bool:
        return False

    def keep(self, ref: str | None, revision: Revision) -> None:
        self.in_force = [revision]

    def kept(self, ref: str | None) -> list[Revision]:
        return self.in_force

    def resolve(self, ref: str | None) -> Revision:
        if self.no_head:
            raise GitError("ref 'main'", "it names no commit")
        if not self.history:
            raise GitError("HEAD", "the repository has no commit yet")
        return Revision(commit_id(self.history[-1][0]), "main", root_commit=ROOT)

    def load(self, revision: Revision) -> Desired:
        for name, state in self.history:
            if commit_id(name) == revision.commit:
                if state is None:
                    raise InvalidFleet(str(revision), "1 error", findings=(bad_finding(),))
                return state
        if revision.commit in self.gone:
            return self.gone[revision.commit]
        raise GitError(revision.commit, "no such commit")

    def load_inventory(self, revision: Revision) -> Desired:
        return self.inventories.get(revision.commit) or self.load(revision)

    def load_worktree(self) -> Desired:
        state = self.load(self.resolve(None))
        return replace(state, revision=replace(state.revision, dirty=True))

    def ancestors(self, commit: str) -> Iterator[Revision]:
        names = [commit_id(name) for name, _ in self.history]
        if commit not in names and commit in self.gone:
            yield Revision(commit, root_commit=ROOT)
            return
        if commit not in names:
            raise GitError(commit, "no such commit")
        for found in reversed(names[: names.index(commit) + 1]):
            yield Revision(found, root_commit=ROOT)

    def raw(self, commit: str) -> bytes:
        return commit.encode()

    def blame(self, revision: Revision, file: str, line: int) -> tuple[str, str] | None:
        return revision.commit, f"author of line {line}"


@dataclass
class FakePool:
    """Nodes in memory."""

    owner: str = ME
    answers: dict[str, NodeAnswer] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    leases: list[tuple[str, tuple[str, ...], Mapping[str, Any]]] = field(default_factory=list)
    looks: list[tuple[str, ...]] = field(default_factory=list)
    on_look: Callable[[], None] = lambda: None
    lost: set[str] = field(default_factory=set)
    """Nodes that renew no lease: it ran out, or another has taken it meanwhile."""

    def look(self, desired: Desired, *, remember: bool = True) -> Observed:
        self.on_look()
        self.looks.append(tuple(sorted(desired.nodes)))
        return Observed(self.owner, {name: self._look(name) for name in sorted(desired.nodes)})

    def _look(self, name: str) -> NodeLook:
        if name in self.silent or name not in self.answers:
            return NodeLook(name, error=LookError.UNREACHABLE, detail="refused")
        return NodeLook(name, answer=self.answers[name])

    def lease(
        self,
        desired: Desired,
        nodes: Sequence[str],
        action: str,
        *,
        epochs: Mapping[str, int] | None = None,
        **fields: Any,
    ) -> Mapping[str, LeaseResult]:
        self.leases.append((action, tuple(nodes), fields))
        return {name: self._lease(desired, name, action, fields) for name in nodes}

    def _lease(
        self, desired: Desired, name: str, action: str, fields: Mapping[str, Any]
    ) -> LeaseResult:
        answer = self.answers[name]
        old = answer.lease or Lease(desired.fleet.id)
        if action == "acquire" and old.owner not in ("", self.owner) and old.remaining_s > 0:
            return LeaseResult(name, None, Reason.LEASE_HELD, f"{old.owner} holds it")
        if action == "renew" and name in self.lost:
            return LeaseResult(name, None, Reason.FENCED, "it has expired")
        left = 0.0 if action == "release" else 60.0
        stored = to_json(replace(old, owner=self.owner, epoch=old.epoch + 1, remaining_s=left))
        lease = from_json(Lease, {**stored, **fields})
        self.answers[name] = replace(answer, lease=lease)
        return LeaseResult(name, lease)

    def request(self, desired: Desired, node: str, op: str, **fields: Any) -> dict[str, Any]:
        raise AssertionError(f"nothing but apply talks to nodes ({op} to {node})")

    def actions(self) -> list[str]:
        """Lease actions in order, renewals left out."""
        return [action for action, _, _ in self.leases]


def answer(name: str, *shards: Shard, lease: Lease | None = None) -> NodeAnswer:
    """A node that holds `shards`."""
    return NodeAnswer(
        "1.0",
        f"machine-{name}",
        "boot",
        agent="/agent",
        python="python3",
        root="/root",
        shards=shards,
        lease=lease,
    )


def ready_shard(state: Desired, replica: str, on: str, gpu: int = 0, suffix: str = "x") -> Shard:
    """A ready launch of `replica` from `state`'s profile."""
    placement = state.placements["chat"]
    resolved: ResolvedProfile = state.resolved(placement)
    ordinal = int(replica.rpartition("-")[2])
    place = Place(0, on, f"machine-{on}", (f"{on}-gpu-{gpu}",), {"http": 20000 + gpu}, "127.0.0.1")
    record = Record(
        format="1.0",
        fleet=FLEET,
        launch=f"{replica}-{suffix}",
        replica=replica,
        seq=1,
        rank=0,
        places=(place,),
        boot_id="boot",
        fingerprint=fingerprint(resolved),
        profile=to_json(resolved),
    )
    labels = Labels("chat", ordinal, replica, revision=state.revision.commit)
    return Shard(
        launch=record.launch,
        record=record,
        labels=labels,
        phase=Phase.RUNNING,
        alive=True,
        supervised=True,
        health=Health(ok=True, age_s=1.0, ready_for_s=100.0),
        fresh=True,
        ever_ready=True,
        started_age_s=200.0,
        boot_id="boot",
    )


@dataclass
class Clock:
    """Moves on by a tick at each reading."""

    now: float = 0.0
    tick: float = 0.01

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


class World:
    """Everything that a pass touches."""

    def __init__(self, *names: str) -> None:
        self.source = FakeSource()
        self.pool = FakePool(answers={name: answer(name) for name in names or ("a", "b", "c")})
        self.clock = Clock()
        self.applied: list[Plan] = []
        self.epochs: list[Mapping[str, int]] = []
        self.result = Outcome.DONE
        self.on_apply: Callable[[], None] = lambda: None
        self._next = 0

    def suffix(self) -> str:
        self._next += 1
        return f"n{self._next:04d}"

    def apply(
        self,
        plan: Plan,
        desired: Desired,
        pool: object,
        *,
        epochs: Mapping[str, int],
        on_step: object,
        cancelled: Callable[[], bool],
    ) -> ApplyReport:
        self.applied.append(plan)
        self.epochs.append(epochs)
        self.on_apply()
        nodes = [
            (step, shard.node)
            for step in plan.steps
            if isinstance(step, StartStep)
            for shard in step.shards
        ]
        return ApplyReport(
            tuple(StepResult("start", step.launch, on, self.result) for step, on in nodes)
        )

    def run_ready(self, state: Desired) -> None:
        """Both replicas of `state` run and are ready, on a and b."""
        for i, name in enumerate(("a", "b")):
            old = self.pool.answers[name]
            shard = ready_shard(state, f"chat-{i}", name)
            self.pool.answers[name] = replace(old, shards=(shard,))

    def in_force(self, commit: str, *nodes: str, owner: str = "", left: float = 0.0) -> None:
        """The leases name `commit`."""
        for name in nodes or tuple(self.pool.answers):
            lease = Lease(FLEET, owner, 3, left, root_commit=ROOT, revision=commit)
            self.pool.answers[name] = replace(self.pool.answers[name], lease=lease)

    @property
    def edges(self) -> Edges:
        return Edges(
            source=self.source,
            pool=self.pool,
            owner=self.pool.owner,
            apply=self.apply,
            ids=self.suffix,
            clock_s=self.clock,
            now=lambda: "2026-03-01T10:00:00Z",
        )


LOOK_ONLY = Request(act=False)
APPROVED = ApprovedChange("chat-0", "p1:a", "")
