"""A node whose root is another one now: what was started in the former one is looked after."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.agent.harness import FLEET, OWNER, Node, Refused, Specs, gone, poll

LAUNCH = "chat-0-aaaaa"


def agent_of(node: Node) -> Node:
    """Another reconciler's agent, which still uses the former root alone."""
    other = Node.__new__(Node)
    other.__dict__.update(node.__dict__)
    other.root, other.previous, other._main = node.previous[0], [], None
    other.env = {**node.env, "RECONCILE_ROOT": str(other.root)}
    return other


@pytest.fixture
def moved(node: Node, specs: Specs, tmp_path: Path) -> Node:
    """A ready launch; then the root is another one."""
    node.start(specs.sim(LAUNCH))
    node.ready(LAUNCH)
    node.move(tmp_path / "new")
    return node


def test_what_runs_in_a_former_root_is_seen_and_stopped_there(moved: Node) -> None:
    shard = moved.shard(LAUNCH)
    assert (shard["health"]["ok"], shard["supervised"], shard["record_error"]) == (True, True, "")
    assert shard["former_root"] == str(moved.previous[0])
    assert moved.ask("logs", launch=LAUNCH)["commands"][0] == "serve"
    assert moved.stop(LAUNCH) == "stopping"
    assert moved.ended(LAUNCH)["exit"]["kind"] == "stopped"
    assert poll(moved.processes, lambda left: not left) == []
    assert not (moved.root / "launches").exists(), "a stop writes where the launch lies"


def test_a_launch_in_a_former_root_is_adopted_and_relabelled_there(moved: Node) -> None:
    (engine,) = moved.shard(LAUNCH)["pids"]
    status = moved.previous[0] / "launches" / LAUNCH / "status.json"
    os.kill(json.loads(status.read_text())["supervisor"]["pid"], signal.SIGKILL)
    moved.until(LAUNCH, lambda s: not s["supervised"])
    assert moved.adopt(LAUNCH) == "adopted"
    assert moved.ready(LAUNCH)["pids"] == [engine]
    moved.ask("relabel", **moved.fence(), launch=LAUNCH, labels={"placement": "talk"})
    assert moved.shard(LAUNCH)["labels"]["placement"] == "talk"
    assert json.loads(status.read_text())["adopted"] is True
    moved.stop(LAUNCH, grace_s=0)
    moved.ended(LAUNCH)
    assert gone(engine)


def test_gpus_and_ports_of_a_former_root_stay_taken(moved: Node, specs: Specs) -> None:
    record = moved.shard(LAUNCH)["record"]
    port = record["places"][0]["ports"]["http"]
    with pytest.raises(Refused) as refused:
        moved.start(specs.shell("talk-0-aaaaa", ["sleep", "600"], port=port))
    assert refused.value.code == "port-taken"
    gpus: dict[str, object] = {"gpu_source": "declared", "gpu_index": {"g0": 0}}
    for launch, code in (("one-0-a", ""), ("two-0-a", "gpu-taken")):
        spec = specs.shell(launch, ["sleep", "600"], **gpus)
        spec["places"][0]["gpus"] = ["g0"]
        if code:
            with pytest.raises(Refused) as refused:
                moved.start(spec)
            assert refused.value.code == code
        else:
            moved.start(spec)
            moved.move(moved.folder / "third")


def test_a_start_writes_into_the_root_of_today_alone(moved: Node, specs: Specs) -> None:
    former = moved.previous[0] / "launches"
    before = sorted(former.iterdir())
    moved.start(specs.sim("talk-0-aaaaa"))
    assert moved.ready("talk-0-aaaaa")["health"]["ok"]
    assert [path.name for path in (moved.root / "launches").iterdir()] == ["talk-0-aaaaa"]
    assert sorted(former.iterdir()) == before
    assert sorted(moved.shards()) == [LAUNCH, "talk-0-aaaaa"]
    assert "former_root" not in moved.shard("talk-0-aaaaa")


def test_the_same_start_asked_again_after_the_move_is_the_one_that_runs(
    node: Node, specs: Specs, tmp_path: Path
) -> None:
    spec = specs.sim(LAUNCH)
    node.start(spec)
    node.move(tmp_path / "new")
    assert node.start(spec) == "already"
    node.stop(LAUNCH, grace_s=0)
    node.ended(LAUNCH)
    assert node.start(spec) == "ended"


def test_a_former_root_that_is_a_link_to_the_root_is_no_other_one(
    node: Node, specs: Specs, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(node.root)
    node.previous = [tmp_path / "link"]
    node.reconnect()
    assert node.start(specs.sim(LAUNCH)) == "started"
    assert list(node.shards()) == [LAUNCH]


def test_of_a_copied_root_the_folder_with_the_supervisor_is_the_launch(
    moved: Node, specs: Specs
) -> None:
    shutil.copytree(moved.previous[0] / "launches", moved.root / "launches")
    shard = moved.shard(LAUNCH)
    assert (shard["supervised"], shard["health"]["ok"]) == (True, True)
    assert moved.adopt(LAUNCH) == "supervised"


def test_a_former_root_that_cannot_be_listed_leaves_the_node_unseen(moved: Node) -> None:
    launches = moved.previous[0] / "launches"
    launches.rename(launches.with_name("aside"))
    launches.write_text("no folder")
    try:
        answer = moved.ask("observe", parts=["shards"])
        assert str(launches) in answer["shards_error"]
        assert "shards" not in answer
    finally:
        launches.unlink()
        launches.with_name("aside").rename(launches)


# --- The lease ----------------------------------------------------------------------------------


def test_the_lease_goes_on_with_its_epoch_and_what_it_keeps(node: Node, tmp_path: Path) -> None:
    epoch = node.lease(revision="abc")["epoch"]
    node.move(tmp_path / "new")
    assert node.ask("observe", parts=[])["lease"]["revision"] == "abc"
    lease = node.lease()
    assert (lease["epoch"], lease["revision"]) == (epoch, "abc")


def test_who_still_holds_the_former_root_keeps_others_out_of_the_new_one(
    node: Node, tmp_path: Path
) -> None:
    node.lease(owner="other")
    node.move(tmp_path / "new")
    with pytest.raises(Refused) as refused:
        node.lease()
    assert refused.value.code == "lease-held"
    assert "other" in refused.value.message


def test_who_still_uses_the_former_root_is_kept_out_by_the_holder_of_the_new_one(
    moved: Node,
) -> None:
    mine = moved.lease()
    other = agent_of(moved)
    with pytest.raises(Refused) as refused:
        other.lease(owner="other")
    assert refused.value.code == "lease-held"
    stop = {"fleet": FLEET, "owner": "other", "epoch": mine["epoch"], "launch": LAUNCH}
    with pytest.raises(Refused) as refused:
        other.ask("stop", **stop)
    assert refused.value.code == "fenced"


def test_a_lease_that_was_given_in_the_former_root_meanwhile_fences_the_new_one(
    moved: Node, specs: Specs
) -> None:
    fence = moved.fence()
    other = agent_of(moved)
    other.ask("lease", fleet=FLEET, action="take", owner="other", reason="test", ttl_s=600)
    with pytest.raises(Refused) as refused:
        moved.ask("start", **fence, spec=specs.sim("talk-0-aaaaa"), labels={})
    assert refused.value.code == "fenced"
    with pytest.raises(Refused) as refused:
        moved.ask("lease", fleet=FLEET, action="renew", owner=OWNER, epoch=fence["epoch"])
    assert refused.value.code == "fenced"


def test_two_roots_with_a_living_lease_each_let_nobody_act_but_by_a_take(
    node: Node, tmp_path: Path
) -> None:
    """They lived apart until the document named the former root: no epoch tells of the other."""
    node.lease(owner="other")
    node.move(tmp_path / "new")
    former, node.previous = node.previous, []
    fence = node.fence()
    node.previous = former
    node.reconnect()
    with pytest.raises(Refused) as refused:
        node.ask("stop", **fence, launch=LAUNCH)
    assert refused.value.code == "fenced"
    assert "former root" in refused.value.message
    take = {"fleet": FLEET, "action": "take", "owner": OWNER, "reason": "other is gone"}
    assert node.ask("lease", **take, ttl_s=60)["epoch"] == fence["epoch"] + 1
    node.lease()


def test_a_damaged_lease_in_a_former_root_is_held_until_it_is_taken(
    node: Node, tmp_path: Path
) -> None:
    node.lease()
    node.move(tmp_path / "new")
    (node.previous[0] / f"lease-{FLEET}.json").write_text("{")
    with pytest.raises(Refused) as refused:
        node.lease()
    assert refused.value.code == "lease-held"
    node.ask("lease", fleet=FLEET, action="take", owner=OWNER, reason="damaged")
    assert node.lease()["epoch"] > 1


def test_a_hold_in_a_former_root_still_holds_and_is_cleared(moved: Node, specs: Specs) -> None:
    hold = agent_of(moved)
    hold.ask("hold", set={"who": "ada", "reason": "measuring"})
    assert moved.ask("observe", parts=[])["hold"]["who"] == "ada"
    with pytest.raises(Refused) as refused:
        moved.stop(LAUNCH)
    assert refused.value.code == "held"
    moved.ask("hold", clear=True)
    assert moved.stop(LAUNCH) == "stopping"


def test_old_records_of_a_former_root_go_as_those_of_the_root_do(
    node: Node, specs: Specs, tmp_path: Path
) -> None:
    def run_and_stop(launch: str, seq: int) -> None:
        node.start(specs.shell(launch, ["sleep", "600"], seq=seq))
        node.stop(launch, grace_s=0)
        node.ended(launch)

    run_and_stop("chat-0-s1", 1)
    node.move(tmp_path / "new")
    run_and_stop("chat-0-s2", 2)
    assert sorted(node.shards()) == ["chat-0-s1", "chat-0-s2"], "it is the last that was ready"
    node.start(specs.sim("chat-0-s3", seq=3))
    assert sorted(node.shards()) == ["chat-0-s2", "chat-0-s3"]
    assert not (node.previous[0] / "trash").exists()
