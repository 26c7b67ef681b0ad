"""Only the holder of the living lease may act, under its current epoch; the node sees to it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.agent.harness import FLEET, OWNER, Node, Refused, Specs

OTHER_FLEET = "0d2b6a38-0000-4000-8000-000000000000"


def code_of(node: Node, op: str, /, **fields: object) -> str:
    with pytest.raises(Refused) as refusal:
        node.ask(op, **fields)
    return refusal.value.code


def test_epochs_rise_and_an_unbroken_lease_keeps_its_own(node: Node) -> None:
    assert node.lease()["epoch"] == 1
    assert node.lease()["epoch"] == 1
    node.ask("lease", fleet=FLEET, action="release", owner=OWNER, epoch=1)
    assert node.lease()["epoch"] == 2
    node.lease(ttl_s=0)
    assert node.lease()["epoch"] == 3


def test_a_living_lease_keeps_others_out(node: Node) -> None:
    node.lease()
    with pytest.raises(Refused, match="tester holds the lease") as refusal:
        node.lease(owner="other")
    assert refusal.value.code == "lease-held"


def test_an_expired_lease_is_lost_and_cannot_be_renewed(node: Node) -> None:
    node.lease(ttl_s=0.05)
    time.sleep(0.1)
    assert code_of(node, "lease", fleet=FLEET, action="renew", owner=OWNER, epoch=1) == "fenced"
    assert node.lease(owner="other")["epoch"] == 2


def test_a_lease_of_another_boot_has_expired(node: Node) -> None:
    node.lease()
    node.boot()
    node.reconnect()
    assert node.lease(owner="other")["epoch"] == 2


def test_what_must_outlive_the_reconciler_is_kept_until_it_is_replaced(node: Node) -> None:
    node.lease(revision="aaa", departed={"gpu-z": "bbb"})
    kept = node.lease(revision="ccc")
    assert (kept["revision"], kept["departed"]) == ("ccc", {"gpu-z": "bbb"})
    fields = {"fleet": FLEET, "action": "update", "owner": OWNER, "epoch": 1, "departed": {}}
    assert node.ask("lease", **fields)["departed"] == {}
    node.ask("lease", fleet=FLEET, action="release", owner=OWNER, epoch=1)
    assert node.lease(owner="other")["revision"] == "ccc"


def test_an_update_does_not_prolong_the_lease(node: Node) -> None:
    node.lease(ttl_s=30)
    updated = node.ask(
        "lease", fleet=FLEET, action="update", owner=OWNER, epoch=1, ttl_s=600, revision="a"
    )
    assert updated["remaining_s"] <= 30


def test_take_needs_a_reason_and_raises_the_epoch(node: Node) -> None:
    node.lease()
    take = {"fleet": FLEET, "action": "take", "owner": "kim"}
    assert code_of(node, "lease", **take) == "bad-request"
    assert node.ask("lease", **take, reason="control host died")["epoch"] == 2
    fenced = {"fleet": FLEET, "owner": OWNER, "epoch": 1, "launch": "chat-0-aaaaa"}
    assert code_of(node, "stop", **fenced) == "fenced"


def test_a_damaged_lease_is_taken_as_held_until_a_person_takes_it(node: Node) -> None:
    node.lease(revision="abc")
    path = node.root / f"lease-{FLEET}.json"
    whole = path.read_bytes()
    for size in range(len(whole) - 2):
        path.write_bytes(whole[:size])
        if size % 40 == 0:
            assert (
                code_of(node, "lease", fleet=FLEET, action="acquire", owner=OWNER) == "lease-held"
            )
    answer = node.ask("observe", parts=[], fleet=FLEET)
    assert "damaged" in answer["lease_error"]
    assert answer["lease"] is None
    taken = node.ask("lease", fleet=FLEET, action="take", owner="kim", reason="damaged")
    assert taken["epoch"] > 1


def test_a_lost_lease_file_does_not_bring_old_epochs_back(node: Node) -> None:
    node.lease()
    node.ask("lease", fleet=FLEET, action="take", owner=OWNER, reason="test")
    (node.root / f"lease-{FLEET}.json").unlink()
    assert node.lease()["epoch"] == 3


def test_fleets_do_not_block_each_other(node: Node) -> None:
    node.lease()
    other = node.ask("lease", fleet=OTHER_FLEET, action="acquire", owner="other", ttl_s=60)
    assert other["epoch"] == 1
    assert node.ask("observe", parts=[], fleet=OTHER_FLEET)["lease"]["owner"] == "other"
    assert node.ask("observe", parts=[], fleet=FLEET)["lease"]["owner"] == OWNER


@pytest.mark.parametrize("op", ["start", "stop", "relabel", "adopt"])
def test_whoever_does_not_hold_the_lease_is_fenced(node: Node, specs: Specs, op: str) -> None:
    spec = specs.shell("job-0-aaaaa", ["sleep", "60"])
    node.start(spec)
    epoch = node.lease()["epoch"]
    fields = {"spec": spec, "labels": {}, "launch": "job-0-aaaaa"}
    stale = [
        {"fleet": FLEET, "owner": OWNER, "epoch": epoch - 1},
        {"fleet": FLEET, "owner": OWNER, "epoch": epoch + 1},
        {"fleet": FLEET, "owner": "other", "epoch": epoch},
        {"fleet": OTHER_FLEET, "owner": OWNER, "epoch": epoch},
    ]
    for fence in stale:
        assert code_of(node, op, **fence, **fields) in ("fenced", "bad-request")
    node.lease(ttl_s=0)
    expired = {"fleet": FLEET, "owner": OWNER, "epoch": epoch}
    assert code_of(node, op, **expired, **fields) == "fenced"
    assert node.shard("job-0-aaaaa")["alive"]
    assert not node.shard("job-0-aaaaa")["stop_asked"]


def test_a_node_on_hold_refuses_to_act(node: Node, specs: Specs) -> None:
    node.start(specs.shell("job-0-aaaaa", ["sleep", "60"]))
    node.ask("hold", set={"who": "kim", "reason": "new cable"})
    fence = node.fence()
    with pytest.raises(Refused, match="held by kim: new cable"):
        node.ask("stop", **fence, launch="job-0-aaaaa")
    assert code_of(node, "start", **fence, spec=specs.shell("b-0-aaaaa", ["true"])) == "held"
    assert node.ask("hold", clear=True) is None
    assert node.stop("job-0-aaaaa") == "stopping"


def test_a_hold_of_one_launch_leaves_the_others_alone(node: Node, specs: Specs) -> None:
    for launch in ("job-0-aaaaa", "job-1-aaaaa"):
        node.start(specs.shell(launch, ["sleep", "60"]))
    node.ask("hold", set={"who": "kim", "reason": "gdb", "launch": "job-0-aaaaa", "for_s": 600})
    assert code_of(node, "stop", **node.fence(), launch="job-0-aaaaa") == "held"
    assert node.stop("job-1-aaaaa") == "stopping"


def test_a_hold_ends_by_itself_and_a_damaged_one_does_not(node: Node) -> None:
    node.ask("hold", set={"who": "kim", "reason": "", "for_s": 0.05})
    time.sleep(0.1)
    assert node.ask("observe", parts=[])["hold"] is None
    Path(node.root / "hold.json").write_text("{")
    assert "damaged" in node.ask("observe", parts=[])["hold"]["reason"]
