"""What a node's own `check` would find, as far as an observation tells.

A forecast asks this where a pass would ask the node.

Paths, programs, versions and secrets are in no observation, so of these nothing is known here; what
`place` has refused already (a stranger on a GPU, a port that is taken) does not come this far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reconciler.core.observed import NodeAnswer, Resources

A_LITTLE_LESS = 0.9
"""An "80 GB" card has 79.6 GiB: the agent lets a tenth less pass, and so does this."""


def findings(
    spec: Mapping[str, Any], seen: NodeAnswer, free: Resources, *, replaces: bool
) -> list[str]:
    """In the agent's words. `free`: what is free by now; `replaces`: another launch ends first, and
    what memory it gives back cannot be told."""
    needs = {k: v for k, v in (spec.get("needs") or {}).items() if v and not isinstance(v, bool)}
    return [
        *_interface(spec, seen),
        *_adapters(spec, seen),
        *_gpu_memory(spec, seen, needs),
        *([] if replaces else _memory(needs, free)),
        *([] if spec.get("mode") == "system" else _limits(needs, seen.resources)),
    ]


def _network(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    found = spec.get("network")
    return found if isinstance(found, Mapping) else {}


def _interface(spec: Mapping[str, Any], seen: NodeAnswer) -> Iterator[str]:
    wanted = str(_network(spec).get("interface") or "")
    have = {interface.name: interface for interface in seen.network.interfaces}
    if not wanted or not have:
        return
    if wanted not in have:
        yield f"interface {wanted} is not here ({', '.join(sorted(have))} are)"
    elif not have[wanted].up:
        yield f"interface {wanted} is down"


def _adapters(spec: Mapping[str, Any], seen: NodeAnswer) -> Iterator[str]:
    have = {(a.name, a.port): a for a in seen.network.adapters}
    for wanted in _network(spec).get("adapters") or () if have else ():
        adapter = have.get((wanted["name"], wanted["port"]))
        named = f"adapter {wanted['name']}:{wanted['port']}"
        if adapter is None:
            names = ", ".join(f"{name}:{port}" for name, port in sorted(have))
            yield f"{named} is not here ({names} are)"
        elif adapter.state and adapter.state.lower() != "active":
            yield f"{named} is {adapter.state.lower()}, not active"


def _gpu_memory(
    spec: Mapping[str, Any], seen: NodeAnswer, needs: Mapping[str, Any]
) -> Iterator[str]:
    need_gib = needs.get("gpu_memory_gib", 0)
    have = {gpu.uuid: gpu.memory_mib for gpu in seen.gpus.items}
    for place in spec["places"]:
        for uuid in place["gpus"] if place["rank"] == spec["rank"] else ():
            memory = have.get(uuid)
            if memory and memory < need_gib * 1024 * A_LITTLE_LESS:
                yield f"GPU {uuid} has {memory} MiB, the profile needs {need_gib} GiB"


def _memory(needs: Mapping[str, Any], free: Resources) -> Iterator[str]:
    told = (("ram_gib", free.ram_free_mib, "RAM"), ("shm_gib", free.shm_free_mib, "/dev/shm"))
    for name, mib, what in told:
        need = needs.get(name, 0)
        if need and mib is not None and mib < need * 1024:
            yield f"{what}: {mib} MiB free, the profile needs {need} GiB"


def _limits(needs: Mapping[str, Any], have: Resources) -> Iterator[str]:
    """A limit that the node has not told (0, empty) is let through."""
    if have.nofile and needs.get("nofile", 0) > have.nofile:
        yield f"nofile: at most {have.nofile}, the profile needs {needs['nofile']}"
    need = str(needs.get("memlock", ""))
    if need and have.memlock and not _enough(have.memlock, need):
        yield f"memlock: {have.memlock}, the profile needs {need}"


def _enough(have: str, need: str) -> bool:
    if have == "unlimited":
        return True
    known = have.split()[0]
    return need.isdigit() and known.isdigit() and int(known) >= int(need)
