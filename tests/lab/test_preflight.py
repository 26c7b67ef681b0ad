"""Before a start over several machines: each is asked, and a worker tries to reach its leader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.core.build import build_specs
from reconciler.core.changes import Change, Plan, Reason, Seat, ShardSpec, StartStep, Symbol
from reconciler.core.codec import to_json
from reconciler.core.fingerprint import fingerprint
from reconciler.core.model import Model, Placement, Profile
from reconciler.nodes.apply import ApplyReport, Outcome, apply
from tests.lab.test_faults import records, wipe
from tests.lab.world import World
from tools.labfleet import LabFleet

pytestmark = pytest.mark.lab

MODEL = "/srv/weights.gguf"


@pytest.fixture
def world(lab: LabFleet, tmp_path: Path) -> Iterator[World]:
    world = World(lab, tmp_path)
    yield world
    world.close()
    for name in lab.names:
        if lab.is_cut(name):
            lab.join(name)
        lab.ssh(name, f"rm -f {MODEL}")
        if records(lab, name).exists():
            lab.power_cut(name)
            wipe(records(lab, name))
            lab.start(name)


def two_ranks(world: World, leader: str, worker: str) -> tuple[ShardSpec, ...]:
    """A launch over both nodes that loads MODEL."""
    profile = Profile("wide", model="chat", engine="sim", gpu_class="lab", nodes=2)
    placement = Placement("wide", "wide", nodes=(leader, worker))
    world.desired = replace(
        world.desired,
        models={"chat": Model("chat", path=MODEL)},
        profiles={"wide": profile},
        placements={"wide": placement},
    )
    resolved = world.desired.resolved(placement)
    return build_specs(
        desired=world.desired,
        placement=placement,
        resolved=resolved,
        seats=[Seat(node, (f"{node}-gpu-0",)) for node in (leader, worker)],
        ports={"http": 20000, "sync": 20001},
        replica="wide-0",
        ordinal=0,
        launch="wide-0-aaaaa",
        seq=1,
        fingerprint=fingerprint(resolved),
        answers={node: world.answer(node) for node in (leader, worker)},
    )


def carry_out(world: World, shards: tuple[ShardSpec, ...]) -> ApplyReport:
    step = StartStep("wide-0", "wide-0-aaaaa", 1, "p1:x", shards)
    change = Change("wide-0", "wide", Symbol.START, "", steps=(step,))
    nodes = [shard.node for shard in shards]
    epochs = {node: world.fence(node)["epoch"] for node in nodes}
    plan = Plan(world.desired.revision, (change,))
    return apply(plan, world.desired, world.pool, epochs=epochs)


def test_half_a_model_on_one_machine_keeps_all_ranks_from_starting(
    world: World, lab: LabFleet
) -> None:
    leader, worker = lab.names[:2]
    shards = two_ranks(world, leader, worker)
    lab.ssh(leader, f"head -c 5000 /dev/zero > {MODEL}")
    lab.ssh(worker, f"head -c 3000 /dev/zero > {MODEL}")
    report = carry_out(world, shards)
    (failed,) = [r for r in report.results if r.result is Outcome.REFUSED]
    assert failed.reason is Reason.PREFLIGHT_FAILED
    assert failed.message == f"{MODEL} differs: 5000 bytes on {leader}, 3000 bytes on {worker}"
    assert [world.shard(node, "wide-0-aaaaa") for node in (leader, worker)] == [None, None]
    lab.ssh(worker, f"head -c 5000 /dev/zero > {MODEL}")
    assert carry_out(world, shards).complete
    world.until_ready(leader, "wide-0-aaaaa")


@pytest.mark.parametrize("cable", [False, True], ids=["silent", "cable"])
def test_a_leader_that_no_packet_reaches_is_found_before_anything_starts(
    world: World, lab: LabFleet, cable: bool
) -> None:
    leader, worker = lab.names[:2]
    _, second = two_ranks(world, leader, worker)
    lab.ssh(worker, f"head -c 5000 /dev/zero > {MODEL}")
    assert world.ask(worker, "check", spec=to_json(second.spec))["findings"] == []
    lab.cut(leader, cable=cable)
    (found,) = world.ask(worker, "check", spec=to_json(second.spec))["findings"]
    assert found.startswith(f"leader's address {lab.node(leader).address}")
    lab.join(leader)
    lab.wait_ssh(leader)
    assert world.ask(worker, "check", spec=to_json(second.spec))["findings"] == []
