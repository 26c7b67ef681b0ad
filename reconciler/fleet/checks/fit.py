"""Placements that no pool can ever hold, told from the inventory alone.

An error where not even one replica could run on empty nodes; a warning where fewer replicas than
asked could. What is free at the moment is `plan`'s business, and a Hold there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import engines
from reconciler.core.build import allowed_gpus_mixed, check_capability
from reconciler.core.changes import Reason
from reconciler.core.model import Fleet, Node, Placement, ResolvedProfile
from reconciler.fleet.checks.engine import allows_loader_env, asked
from reconciler.fleet.findings import Finding, listed, quoted
from reconciler.fleet.repo import Entry, Repo
from reconciler.fleet.strictyaml import Path


@dataclass(frozen=True)
class Shape:
    """What decides whether a node can hold a rank; nodes of one shape are looked at once."""

    klass: str
    count: int
    memory_gib: int
    capability: str
    fabrics: tuple[tuple[str, str, int, bool], ...]
    """name, kind, number of adapters, has an address"""

    def fabric(self, name: str) -> tuple[str, str, int, bool] | None:
        return next((fabric for fabric in self.fabrics if fabric[0] == name), None)


def check(repo: Repo) -> Iterator[Finding]:
    """Findings about placements and about ports."""
    if repo.blind or repo.broken.get("Node"):
        return
    pools: dict[str, Counter[Shape]] = defaultdict(Counter)
    shapes: dict[str, Shape] = {}
    for name, node in repo.values("Node").items():
        shapes[name] = repo.memory.of(node, _shape)
        pools[node.pool][shapes[name]] += 1
    pools[""] = sum(pools.values(), Counter())
    fabrics = {fabric for shape in shapes.values() for fabric, *_ in shape.fabrics}
    fleet = next(iter(repo.values("Fleet").values()), None)
    nodes, profiles, models = repo.values("Node"), repo.values("Profile"), repo.values("Model")
    known, loader_env = frozenset(engines.names()), allows_loader_env(repo)
    ports = fleet.ports if fleet else None
    calm = repo.memory.calm_under(({**pools}, fabrics, ports, loader_env))
    for entry in repo.of("Placement").values():
        placement: Placement = entry.value
        profile = profiles.get(placement.profile)
        if profile is None or profile.model not in models:
            continue
        if profile.engine not in known:
            continue
        model = models[profile.model]
        if placement.selector or placement.nodes:
            candidates = Counter(
                shapes[name] for name, node in nodes.items() if chosen(placement, node)
            )
            resolved = ResolvedProfile(profile, model)
            yield from _placement(repo, entry, fleet, resolved, candidates, fabrics)
            continue
        values = placement, profile, model
        key = id(placement), id(profile), id(model)
        if key not in calm:
            resolved, candidates = ResolvedProfile(profile, model), pools[placement.pool]
            found = list(_placement(repo, entry, fleet, resolved, candidates, fabrics))
            if not found:
                calm[key] = values
            yield from found


def _placement(
    repo: Repo,
    entry: Entry,
    fleet: Fleet | None,
    resolved: ResolvedProfile,
    candidates: Mapping[Shape, int],
    fabrics: Collection[str],
) -> Iterator[Finding]:
    placement: Placement = entry.value
    if placement.fabric and placement.fabric not in fabrics:
        message = f"no node has fabric {quoted(placement.fabric)}"
        hint = repo.choices(placement.fabric, "fabrics", fabrics)
        yield repo.finding(entry, ("fabric",), message, hint)
        return
    if fleet is not None:
        block = asked(repo, resolved, fleet.allow_loader_env).ports
        yield from _ports(repo, entry, fleet, resolved, candidates, block)
    if candidates:
        yield from _fits(repo, entry, resolved, candidates)
    elif placement.selector or placement.nodes:
        yield from _nobody(repo, entry, placement)


def _shape(node: Node) -> Shape:
    return Shape(
        node.gpus.klass,
        node.gpus.count,
        node.gpus.memory_gib,
        node.gpus.capability,
        tuple(
            sorted(
                (name, fabric.kind, len(fabric.adapters), bool(fabric.address))
                for name, fabric in node.fabrics.items()
            )
        ),
    )


def chosen(placement: Placement, node: Node) -> bool:
    """Whether pool, names and labels of `placement` mean `node`."""
    return (
        (not placement.pool or node.pool == placement.pool)
        and (not placement.nodes or node.name in placement.nodes)
        and all(node.labels.get(key) == value for key, value in placement.selector.items())
    )


def _nobody(repo: Repo, entry: Entry, placement: Placement) -> Iterator[Finding]:
    known = repo.of("Node")
    if placement.nodes and not all(name in known for name in placement.nodes):
        return
    wanted = [f"{key}={value}" for key, value in placement.selector.items()]
    words = [f"pool {quoted(placement.pool)}"] if placement.pool else []
    words += [f"labels {listed(wanted)}"] if wanted else []
    words += [f"a name among {listed(placement.nodes)}"] if placement.nodes else []
    path: Path = ("selector",) if wanted else ("nodes",)
    message = f"no node has {' and '.join(words)}"
    hint = "look at the nodes' labels and pools"
    yield repo.finding(entry, path, message, hint, reason=Reason.INFEASIBLE)


# --- fitting ----------------------------------------------------------------------------------


def _fits(
    repo: Repo, entry: Entry, resolved: ResolvedProfile, candidates: Mapping[Shape, int]
) -> Iterator[Finding]:
    placement: Placement = entry.value
    profile = resolved.profile
    refusals: Counter[tuple[str, str]] = Counter()
    groups: dict[tuple[object, ...], int] = {}
    slots: dict[tuple[object, ...], int] = {}
    for shape, many in candidates.items():
        why = _refusal(placement, resolved, shape)
        if why is not None:
            refusals[why] += many
            continue
        like = _like(placement, resolved, shape)
        room = shape.count // profile.gpus_per_node if profile.gpus_per_node else 1
        groups[like] = groups.get(like, 0) + many
        slots[like] = slots.get(like, 0) + many * room
    where = _where(placement)
    if not groups or max(groups.values()) < profile.nodes:
        fitting = max(groups.values(), default=0)
        total = sum(candidates.values())
        said = [_share(count, total, why) for (_field, why), count in refusals.most_common()]
        if groups:
            said.insert(0, f"only {fitting} alike would do")
        message = f"no node of {where} can hold profile {profile.name}: "
        if profile.nodes > 1:
            message = f"{where} can never hold profile {profile.name} on {profile.nodes} nodes: "
        hint = "choose another pool or profile"
        yield repo.finding(
            entry,
            _path(placement, refusals),
            message + "; ".join(said),
            hint,
            reason=Reason.INFEASIBLE,
        )
        return
    yield from _enough(repo, entry, resolved, where, slots)
    yield from _weights(repo, entry, resolved, candidates)


def _share(count: int, total: int, why: str) -> str:
    """`all 3 have 8 GPUs, …`, `1 of 3 is of class …`, `its only one has …`."""
    verb, rest = why.split(" ", 1)
    verb = {"have": "has", "are": "is"}[verb] if count == 1 else verb
    if count == total:
        return f"{'its only one' if total == 1 else f'all {total}'} {verb} {rest}"
    return f"{count} of {total} {verb} {rest}"


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _refusal(
    placement: Placement, resolved: ResolvedProfile, shape: Shape
) -> tuple[str, str] | None:
    """The first thing that a node of this shape lacks: (field of the placement, words)."""
    profile = resolved.profile
    if profile.gpu_class and profile.gpus_per_node and shape.klass != profile.gpu_class:
        return "pool", f"are of class {shape.klass}, it needs {profile.gpu_class}"
    if shape.count < profile.gpus_per_node:
        return (
            "pool",
            f"have {_plural(shape.count, 'GPU')}, it needs {profile.gpus_per_node} per node",
        )
    needed = profile.needs.gpu_memory_gib
    if shape.memory_gib and shape.memory_gib < needed:
        return "pool", f"have {shape.memory_gib} GiB a GPU, it needs {needed}"
    if shape.capability:
        for problem in check_capability(resolved, shape.capability):
            return "profile", f"are of capability {shape.capability} ({problem.message})"
    if placement.fabric:
        fabric = shape.fabric(placement.fabric)
        if fabric is None:
            return "fabric", f"have no fabric {placement.fabric}"
        if profile.bootstrap == "fabric" and not fabric[3]:
            return "fabric", f"have no address on fabric {placement.fabric}"
    return None


def _like(placement: Placement, resolved: ResolvedProfile, shape: Shape) -> tuple[object, ...]:
    """What ranks of one replica must have in common."""
    if resolved.profile.nodes == 1:
        return ()
    klass = "" if allowed_gpus_mixed(resolved) else shape.klass
    fabric = shape.fabric(placement.fabric) if placement.fabric else None
    return (klass, fabric[1:3] if fabric else None)


def _enough(
    repo: Repo,
    entry: Entry,
    resolved: ResolvedProfile,
    where: str,
    slots: Mapping[tuple[object, ...], int],
) -> Iterator[Finding]:
    placement: Placement = entry.value
    profile = resolved.profile
    if not isinstance(placement.replicas, int) or not profile.gpus_per_node:
        return
    most = sum(many // profile.nodes for many in slots.values())
    if placement.replicas > most:
        each = profile.gpus_per_node * profile.nodes
        message = (
            f"{_plural(placement.replicas, 'replica')} of {_plural(each, 'GPU')}; {where} holds"
            f" at most {most} of them when it is empty"
        )
        hint = "the rest will be held: lower replicas or add nodes"
        yield repo.finding(
            entry, ("replicas",), message, hint, reason=Reason.NO_CAPACITY, warning=True
        )


def _weights(
    repo: Repo, entry: Entry, resolved: ResolvedProfile, candidates: Mapping[Shape, int]
) -> Iterator[Finding]:
    """Only a warning: engines may keep weights in host memory, and estimates err both ways."""
    profile, weights = resolved.profile, resolved.model.facts.weights_gib
    known = [shape.memory_gib for shape in candidates if shape.memory_gib]
    if not weights or not known or not profile.gpus_per_node:
        return
    memory = max(known) * profile.gpus_per_node * profile.nodes
    if weights > memory:
        message = (
            f"model {resolved.model.name} has {weights} GiB of weights, and a replica's GPUs"
            f" have {memory} GiB at most"
        )
        hint = "use more or larger GPUs, unless part of it is meant to stay in host memory"
        yield repo.finding(
            entry, ("profile",), message, hint, reason=Reason.INFEASIBLE, warning=True
        )


def _ports(
    repo: Repo,
    entry: Entry,
    fleet: Fleet,
    resolved: ResolvedProfile,
    candidates: Mapping[Shape, int],
    block: int,
) -> Iterator[Finding]:
    """`block`: ports of a launch."""
    have = fleet.ports.last - fleet.ports.first + 1
    profile = resolved.profile
    if have <= 0:
        return
    most = max((shape.count for shape in candidates), default=0)
    launches = most // profile.gpus_per_node if profile.gpus_per_node else 1
    if block > have:
        message = f"a launch of profile {profile.name} needs {block} ports, the fleet has {have}"
        hint = "widen 'ports' in fleet.yaml"
        yield repo.finding(entry, ("profile",), message, hint, reason=Reason.INFEASIBLE)
    elif block * launches > have:
        message = (
            f"{launches} launches of profile {profile.name} on one node need {block * launches}"
            f" ports, the fleet has {have}"
        )
        hint = "widen 'ports' in fleet.yaml"
        yield repo.finding(
            entry, ("profile",), message, hint, reason=Reason.INFEASIBLE, warning=True
        )


def _where(placement: Placement) -> str:
    if placement.nodes:
        return f"what it names ({listed(placement.nodes, 4)})"
    pool = f"pool {placement.pool}" if placement.pool else "the fleet"
    return f"{pool} with its selector" if placement.selector else pool


def _path(placement: Placement, refusals: Mapping[tuple[str, str], int]) -> Path:
    fields = {field for field, _ in refusals}
    if fields == {"fabric"}:
        return ("fabric",)
    if placement.nodes:
        return ("nodes",)
    return ("pool",) if placement.pool and fields != {"profile"} else ("profile",)
