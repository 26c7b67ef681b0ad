"""One of eight GPUs is gone: it is named, its replica does not go back, and nobody else moves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from reconciler.core.observed import GpuProcess, GpuSeen, GpusPart, XidSeen
from tests.core.ask_diff import judged
from tests.core.ask_plan import chat, gpus, hold, planned, started, stopped
from tests.core.build_world import World, gpu_ids, gpus_part

NODE = "gpu-a"
GONE = "GPU-gpu-a-3"
Sees = Callable[[list[GpuSeen]], list[GpuSeen]]
XID = "Xid 79, GPU has fallen off the bus; reboot the node"


def full(replicas: int = 8) -> World:
    """One node of eight GPUs, each with a replica; that on GPU 3 has just died."""
    world = chat(0, gpus=8, nodes=1).edit_placement("chat", replicas=replicas)
    for ordinal, gpu in enumerate(gpu_ids(NODE)[:replicas]):
        state = "crashed" if gpu == GONE else "ready"
        world = world.launch(f"chat-{ordinal}", on=NODE, state=state, gpus=(gpu,))
    return world


def shown(world: World) -> list[GpuSeen]:
    """All GPUs with the processes of the living launches on them."""
    on = {
        gpu: built.launch
        for built in world.launches
        for place in built.places
        for gpu in place.gpus
        if built.shards[NODE].alive
    }
    return [
        dataclasses.replace(g, processes=(GpuProcess(1000 + g.index, launch=on[g.uuid]),))
        if g.uuid in on
        else g
        for g in gpus_part(NODE, world.nodes[NODE]).items
    ]


def shifted(items: list[GpuSeen]) -> list[GpuSeen]:
    left = [g for g in items if g.uuid != GONE]
    return [dataclasses.replace(g, index=index) for index, g in enumerate(left)]


def unlisted(items: list[GpuSeen]) -> list[GpuSeen]:
    why = f"NVML no longer lists it: {XID}"
    xids = (XidSeen(79, text="GPU has fallen off the bus.", fatal=True),)
    return [*shifted(items), GpuSeen(GONE, -1, error=why, xids=xids)]


def lost(items: list[GpuSeen]) -> list[GpuSeen]:
    return [GpuSeen(GONE, 3, error=f"lost: {XID}") if g.uuid == GONE else g for g in items]


def nameless(items: list[GpuSeen]) -> list[GpuSeen]:
    return [GpuSeen("", 3, error="lost") if g.uuid == GONE else g for g in items]


def still_answers(items: list[GpuSeen]) -> list[GpuSeen]:
    return [dataclasses.replace(g, error=XID) if g.uuid == GONE else g for g in items]


@pytest.mark.parametrize("sees", [shifted, unlisted, lost, nameless, still_answers])
def test_the_gpu_is_named_and_only_its_replica_waits(sees: Sees) -> None:
    world = full()
    world = world.answers_with(NODE, gpus=GpusPart(tuple(sees(shown(world)))))
    [quarantine] = judged(world).quarantines
    assert (quarantine.node, quarantine.gpus) == (NODE, (GONE,))
    made = planned(world)
    assert stopped(made) == []
    assert started(made) == {}
    assert "7 of 8" in " ".join(made.warnings)
    assert "free GPUs" in hold(made, "replica chat-3").message


@pytest.mark.parametrize("sees", [shifted, unlisted, lost, nameless, still_answers])
def test_its_replica_goes_to_a_gpu_that_works(sees: Sees) -> None:
    world = full(7)
    world = world.answers_with(NODE, gpus=GpusPart(tuple(sees(shown(world)))))
    made = planned(world)
    assert stopped(made) == []
    assert gpus(made, "chat-3") == (gpu_ids(NODE)[7:],)
