"""A fleet and what its nodes say, built in a few words: for tests of diff and plan.

Every call gives a new world; nothing in here decides what a right outcome is. A launch is started
from the profile as it stands at that call, so that a later `edit` makes it stale, as in life:

    world = (
        World()
        .with_nodes("gpu-a", "gpu-b")
        .profile("llama", gpus_per_node=1)
        .placement("chat", "llama", replicas=2)
        .launch("chat-0", on="gpu-a")
        .launch("chat-1", on="gpu-b", state="starting")
        .edit("llama", args=("--max-model-len", "4096"))
        .silent("gpu-b")
    )
    diff(world.desired, world.observed)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reconciler.core import observed as seen
from reconciler.core.codec import to_json
from reconciler.core.fingerprint import fingerprint
from reconciler.core.model import (
    AdapterPort,
    Desired,
    Fleet,
    GpuInventory,
    Model,
    Node,
    NodeFabric,
    NodeState,
    Placement,
    Profile,
    ResolvedProfile,
    Revision,
    Rollout,
)

FLEET_ID = "5f0c2f0e-0000-4000-8000-000000000001"
OWNER = "reconciler-test"
REVISION = Revision(commit="c0ffee" * 6 + "beef", ref="main", root_commit="0" * 40)

STATES: dict[str, dict[str, Any]] = {
    "ready": {
        "alive": True,
        "supervised": True,
        "fresh": True,
        "ever_ready": True,
        "phase": seen.Phase.RUNNING,
        "started_age_s": 3600.0,
        "health": seen.Health(ok=True, age_s=1.0, ready_for_s=3500.0),
    },
    "starting": {
        "alive": True,
        "supervised": True,
        "phase": seen.Phase.STARTING,
        "started_age_s": 20.0,
    },
    "unhealthy": {
        "alive": True,
        "supervised": True,
        "fresh": True,
        "ever_ready": True,
        "phase": seen.Phase.RUNNING,
        "started_age_s": 7200.0,
        "health": seen.Health(ok=False, age_s=1.0, failing_for_s=400.0, detail="HTTP 503"),
    },
    "failing": {
        "alive": True,
        "supervised": True,
        "fresh": True,
        "ever_ready": True,
        "phase": seen.Phase.RUNNING,
        "started_age_s": 7200.0,
        "health": seen.Health(ok=False, age_s=1.0, failing_for_s=20.0, detail="HTTP 503"),
    },
    "unsupervised": {
        "alive": True,
        "ever_ready": True,
        "phase": seen.Phase.RUNNING,
        "started_age_s": 3600.0,
        "health": seen.Health(ok=True, age_s=120.0),
    },
    "overdue": {
        "alive": True,
        "supervised": True,
        "phase": seen.Phase.STARTING,
        "started_age_s": 2000.0,
        "start_timeout_s": 1800.0,
    },
    "stopping": {
        "alive": True,
        "supervised": True,
        "ever_ready": True,
        "phase": seen.Phase.STOPPING,
        "stop_asked": True,
        "stop_age_s": 5.0,
        "started_age_s": 3600.0,
        "pids": (4242,),
    },
    "stuck": {
        "alive": True,
        "supervised": True,
        "ever_ready": True,
        "phase": seen.Phase.STOPPING,
        "stop_asked": True,
        "stop_age_s": 600.0,
        "started_age_s": 3600.0,
        "pids": (4242,),
    },
    "stopped": {
        "phase": seen.Phase.ENDED,
        "stop_asked": True,
        "stop_age_s": 70.0,
        "ever_ready": True,
        "started_age_s": 3600.0,
        "exit": seen.ShardExit(kind=seen.ExitKind.STOPPED, age_s=60.0),
    },
    "crashed": {
        "phase": seen.Phase.ENDED,
        "started_age_s": 400.0,
        "exit": seen.ShardExit(kind=seen.ExitKind.EXITED, code=1, age_s=300.0),
    },
    "timed-out": {
        "phase": seen.Phase.ENDED,
        "started_age_s": 2400.0,
        "exit": seen.ShardExit(kind=seen.ExitKind.TIMEOUT, age_s=300.0),
    },
    "vanished": {
        "phase": seen.Phase.RUNNING,
        "ever_ready": True,
        "started_age_s": 3600.0,
        "exit": seen.ShardExit(kind=seen.ExitKind.UNKNOWN, age_s=0.0),
    },
    "rebooted": {
        "phase": seen.Phase.RUNNING,
        "ever_ready": True,
        "started_age_s": 3600.0,
        "exit": seen.ShardExit(kind=seen.ExitKind.REBOOT, age_s=30.0),
        "boot_id": "boot-before",
    },
    "preflight": {
        "phase": seen.Phase.ENDED,
        "started_age_s": 30.0,
        "exit": seen.ShardExit(kind=seen.ExitKind.PREFLIGHT, message="no such path", age_s=30.0),
    },
}
"""What a node says of a shard in each state; `launch(…, **over)` changes single fields."""


@dataclass(frozen=True)
class LaunchBuilt:
    """One launch as the builder keeps it: node → shard, in rank order."""

    launch: str
    places: tuple[seen.Place, ...]
    shards: Mapping[str, seen.Shard]


@dataclass(frozen=True, repr=False)
class World:
    """A desired fleet and the nodes' state. Every method returns a new one."""

    fleet: Fleet = field(default_factory=lambda: Fleet(name="test", id=FLEET_ID))
    nodes: Mapping[str, Node] = field(default_factory=dict)
    models: Mapping[str, Model] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    placements: Mapping[str, Placement] = field(default_factory=dict)
    departed: frozenset[str] = frozenset()
    launches: tuple[LaunchBuilt, ...] = ()
    unseen: Mapping[str, seen.NodeLook] = field(default_factory=dict)
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Node → fields of its answer that are not the usual ones."""
    retries: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        """What a failing test needs to show; the whole is tens of kilobytes."""
        lines = [f"node {n.name} {n.state.value}" for n in self.nodes.values()]
        lines += [f"departed {n}" for n in sorted(self.departed)]
        lines += [
            f"silent {n} remembered={look.last is not None}" for n, look in self.unseen.items()
        ]
        lines += [f"{n} answers {sorted(over)}" for n, over in self.answers.items()]
        for p in self.placements.values():
            lines.append(f"placement {p.name} {p.replicas} suspend={p.suspend} {p.restart!r}")
        for b in self.launches:
            lines.append(f"{b.launch} at {[p.node for p in b.places]}")
            lines += [
                f"  {node}: alive={s.alive} exit={s.exit and s.exit.kind.value} {s.record_error}"
                f" {s.record and (s.record.fleet[:8], s.record.format, s.record.fingerprint[:8])}"
                f" labels={s.labels and s.labels.replica} boot={s.boot_id}"
                for node, s in b.shards.items()
            ]
        return "World(\n" + "\n".join(lines) + "\n)"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Hypothesis would print the fields otherwise."""
        printer.text(repr(self))

    # --- what is wanted ---

    def with_fleet(self, **over: Any) -> World:
        """Change fields of the Fleet document."""
        return self._with(fleet=dataclasses.replace(self.fleet, **over))

    def node(
        self, name: str, *, pool: str = "h100", gpus: int = 8, klass: str = "h100-80gb", **over: Any
    ) -> World:
        """One node. `fabrics=("ib-a",)` gives it an adapter on each; `state="cordoned"` works."""
        if isinstance(over.get("fabrics"), tuple):
            over["fabrics"] = {
                f: NodeFabric(kind="ib", adapters=(AdapterPort(f"mlx5_{i}"),), interface=f"ib{i}")
                for i, f in enumerate(over["fabrics"])
            }
        if "state" in over:
            over["state"] = NodeState(over["state"])
        inventory = GpuInventory(klass=klass, count=gpus)
        made = Node(
            name=name,
            address=f"10.0.0.{len(self.nodes) + 1}",
            pool=pool,
            gpus=over.pop("inventory", inventory),
            **over,
        )
        return self._with(nodes={**self.nodes, name: made})

    def with_nodes(self, *names: str, **over: Any) -> World:
        """Several nodes that are alike."""
        world = self
        for name in names:
            world = world.node(name, **over)
        return world

    def edit_node(self, name: str, **over: Any) -> World:
        """Change fields of a Node document."""
        if "state" in over:
            over["state"] = NodeState(over["state"])
        node = dataclasses.replace(self.nodes[name], **over)
        return self._with(nodes={**self.nodes, name: node})

    def depart(self, name: str) -> World:
        """Take a node's document out of the repo."""
        return self._with(departed=self.departed | {name})

    def model(self, name: str, **over: Any) -> World:
        """A model (or a change of one)."""
        old = self.models.get(name, Model(name=name, path=f"/models/{name}"))
        return self._with(models={**self.models, name: dataclasses.replace(old, **over)})

    def profile(self, name: str, *, model: str = "", engine: str = "sim", **over: Any) -> World:
        """A profile; its model, of the same name unless given, is made with it."""
        wanted = model or name
        world = self if wanted in self.models else self.model(wanted)
        made = Profile(name=name, model=wanted, engine=engine, **over)
        return world._with(profiles={**self.profiles, name: made})

    def edit(self, profile: str, **over: Any) -> World:
        """Change fields of a profile."""
        made = dataclasses.replace(self.profiles[profile], **over)
        return self._with(profiles={**self.profiles, profile: made})

    def placement(self, name: str, profile: str, *, pool: str = "h100", **over: Any) -> World:
        """A placement. `rollout={"max_unavailable": 2}` is understood."""
        if isinstance(over.get("rollout"), dict):
            over["rollout"] = Rollout(**over["rollout"])
        made = Placement(name=name, profile=profile, pool=pool, **over)
        return self._with(placements={**self.placements, name: made})

    def edit_placement(self, name: str, **over: Any) -> World:
        """Change fields of a placement."""
        if isinstance(over.get("rollout"), dict):
            over["rollout"] = Rollout(**over["rollout"])
        made = dataclasses.replace(self.placements[name], **over)
        return self._with(placements={**self.placements, name: made})

    def remove_placement(self, name: str) -> World:
        """Delete a placement's document."""
        left = {k: v for k, v in self.placements.items() if k != name}
        return self._with(placements=left)

    def rename_placement(self, old: str, new: str) -> World:
        """The same document under another name."""
        moved = dataclasses.replace(self.placements[old], name=new)
        return self.remove_placement(old)._with_placement(moved)

    # --- what is there ---

    def launch(
        self,
        replica: str,
        *,
        on: str | tuple[str, ...],
        state: str = "ready",
        seq: int = 0,
        ranks: Mapping[int, str] | None = None,
        absent: tuple[int, ...] = (),
        gpus: tuple[str, ...] | None = None,
        machine_ids: Mapping[str, str] | None = None,
        record: Mapping[str, Any] | None = None,
        record_error: str = "",
        labels: seen.Labels | None = None,
        name: str = "",
        profile: str = "",
        **over: Any,
    ) -> World:
        """One launch on the nodes `on`, in rank order, from its placement's profile as it is now.

        `ranks` gives single ranks another state, `absent` ranks have nothing on their node,
        `record` changes fields of the record, `record_error` makes it unreadable, `over` changes
        fields of every shard.
        """
        nodes = (on,) if isinstance(on, str) else on
        placement_name, _, ordinal = replica.rpartition("-")
        placement = self.placements.get(placement_name)
        resolved = self._resolved(profile or (placement.profile if placement else ""))
        seq = seq or 1 + max((b for b in self._seqs(replica)), default=0)
        launch = name or f"{replica}-s{seq}"
        per_node = resolved.profile.gpus_per_node
        port = 20000 + 10 * len(self.launches)
        places = tuple(
            seen.Place(
                rank=rank,
                node=node,
                machine_id=(machine_ids or {}).get(node, machine_id(node)),
                gpus=self._free_gpus(node, per_node) if gpus is None else gpus,
                ports={"http": port, "dist": port + 1},
                address=self.nodes[node].address if node in self.nodes else "",
                fabric=placement.fabric if placement else "",
            )
            for rank, node in enumerate(nodes)
        )
        shards = {}
        for rank, node in enumerate(nodes):
            if rank in absent:
                continue
            made = seen.Record(
                format=seen.FORMAT,
                fleet=self.fleet.id,
                launch=launch,
                replica=replica,
                seq=seq,
                rank=rank,
                places=places,
                boot_id=STATES[(ranks or {}).get(rank, state)].get("boot_id", boot_id(node)),
                restart=placement.restart if placement else "",
                fingerprint=fingerprint(resolved),
                profile=to_json(resolved),
            )
            made = dataclasses.replace(made, **(record or {}))
            fields = {
                "launch": launch,
                "rank": rank,
                "record": None if record_error else made,
                "record_error": record_error,
                "labels": labels
                or seen.Labels(placement=placement_name, ordinal=int(ordinal), replica=replica),
                "serves": rank == 0,
                "boot_id": boot_id(node),
                "stop_grace_s": float(resolved.profile.stop_grace_s),
                **STATES[(ranks or {}).get(rank, state)],
                **over,
            }
            shards[node] = seen.Shard(**fields)
        return self._with(launches=(*self.launches, LaunchBuilt(launch, places, shards)))

    def change_launch(self, launch: str, **over: Any) -> World:
        """Change fields of every shard of a launch (by its name, `chat-0-s1`)."""
        changed = tuple(
            dataclasses.replace(
                b, shards={n: dataclasses.replace(s, **over) for n, s in b.shards.items()}
            )
            if b.launch == launch
            else b
            for b in self.launches
        )
        return self._with(launches=changed)

    def forget_launch(self, launch: str) -> World:
        """Nothing of a launch is on any node any more."""
        return self._with(launches=tuple(b for b in self.launches if b.launch != launch))

    def silent(
        self,
        *names: str,
        remembered: bool = False,
        error: seen.LookError = seen.LookError.UNREACHABLE,
    ) -> World:
        """Nodes that give no answer; `remembered` keeps what they said at the last look."""
        looks = {
            n: seen.NodeLook(
                node=n,
                error=error,
                detail="no answer",
                last=self._answer(n) if remembered else None,
            )
            for n in names
        }
        return self._with(unseen={**self.unseen, **looks})

    def answers_with(self, name: str, **over: Any) -> World:
        """Change fields of a node's answer (`machine_id=…`, `shards_error=…`, `gpus=…`)."""
        return self._with(answers={**self.answers, name: {**self.answers.get(name, {}), **over}})

    def retry(self, replica: str, seq: int) -> World:
        """`reconcile retry`: failures of the replica up to `seq` are forgiven."""
        return self._with(retries={**self.retries, replica: seq})

    # --- the two sides ---

    @property
    def desired(self) -> Desired:
        """What git says."""
        return Desired(
            revision=REVISION,
            fleet=self.fleet,
            nodes=self.nodes,
            models=self.models,
            profiles=self.profiles,
            placements=self.placements,
            departed=self.departed,
        )

    @property
    def observed(self) -> seen.Observed:
        """What the nodes say; nodes that are `lost` are not looked at unless answers_with says."""
        looks: dict[str, seen.NodeLook] = {}
        for name, node in self.nodes.items():
            if name in self.unseen:
                looks[name] = self.unseen[name]
            elif node.state is not NodeState.LOST or name in self.answers:
                looks[name] = seen.NodeLook(node=name, answer=self._answer(name))
        return seen.Observed(owner=OWNER, nodes=looks)

    def fingerprint(self, placement: str) -> str:
        """Today's fingerprint of a placement."""
        return fingerprint(self.desired.resolved(self.placements[placement]))

    # --- inside ---

    def _with(self, **over: Any) -> World:
        return dataclasses.replace(self, **over)

    def _with_placement(self, made: Placement) -> World:
        return self._with(placements={**self.placements, made.name: made})

    def _resolved(self, profile: str) -> ResolvedProfile:
        made = self.profiles.get(profile) or next(iter(self.profiles.values()))
        return ResolvedProfile(made, self.models[made.model])

    def _seqs(self, replica: str) -> list[int]:
        """Of what was built for the replica, whatever its records say today."""
        names = [b.launch.rpartition("-s") for b in self.launches]
        known = [int(seq) for own, _, seq in names if own == replica and seq.isdecimal()]
        return known + [
            s.record.seq
            for b in self.launches
            for s in b.shards.values()
            if s.record and s.record.replica == replica
        ]

    def _free_gpus(self, node: str, count: int) -> tuple[str, ...]:
        taken = {
            g
            for b in self.launches
            for p in b.places
            if p.node == node and node in b.shards and b.shards[node].alive
            for g in p.gpus
        }
        total = self.nodes[node].gpus.count if node in self.nodes else 8
        return tuple([g for g in gpu_ids(node, total) if g not in taken][:count])

    def _answer(self, name: str) -> seen.NodeAnswer:
        shards = tuple(b.shards[name] for b in self.launches if name in b.shards)
        over = dict(self.answers.get(name, {}))
        fields: dict[str, Any] = {
            "format": seen.FORMAT,
            "machine_id": machine_id(name),
            "boot_id": boot_id(name),
            "hostname": name,
            "agent": "/var/lib/reconcile/agent-test.pyz",
            "root": "/var/lib/reconcile",
            "shards": shards,
            "gpus": gpus_part(name, self.nodes[name]),
            "resources": seen.Resources(ram_free_mib=512_000, shm_free_mib=64_000),
            "lease": seen.Lease(
                fleet=self.fleet.id,
                owner=OWNER,
                epoch=1,
                remaining_s=60.0,
                revision=REVISION.commit,
                retries=self.retries,
            ),
        }
        return seen.NodeAnswer(**{**fields, **over})


def machine_id(node: str) -> str:
    """The machine id that a built node answers with."""
    return f"machine-{node}"


def boot_id(node: str) -> str:
    """The boot id that a built node answers with."""
    return f"boot-{node}"


def gpu_ids(node: str, count: int = 8) -> tuple[str, ...]:
    """UUIDs of a built node's GPUs, in PCI order."""
    return tuple(f"GPU-{node}-{i}" for i in range(count))


def gpus_part(name: str, node: Node) -> seen.GpusPart:
    """All GPUs of a node, idle, in one NVLink group."""
    ids = node.gpus.ids or gpu_ids(name, node.gpus.count)
    items = tuple(
        seen.GpuSeen(uuid=u, index=i, memory_mib=81_559, used_mib=0, nvlink_group=0)
        for i, u in enumerate(ids)
    )
    return seen.GpusPart(items=items, driver="550.54", cuda="12.4")
