"""What every node promises (docs/agent-protocol.md), over both implementations of it.

The simulator stands in for nodes in a hundred thousand seeds; this is what makes its answers worth
something.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.core.model import Desired, Fleet, GpuInventory, Node, Revision
from reconciler.core.observed import ExitKind, Phase
from reconciler.nodes.pool import NodePool, PoolSettings
from tests.contract.targets import Target, real_target, sim_target
from tests.support.desired import FLEET_ID
from tests.support.fixtures import StartFleet


def in_memory() -> Target:
    gpus = GpuInventory("none", 8, "declared")
    node = Node(name="node-1", address="127.0.0.2", pool="p", gpus=gpus)
    fleet = Fleet(name="f", id=FLEET_ID)
    return sim_target(Desired(Revision(commit="0" * 40), fleet, {"node-1": node}))


@pytest.fixture(params=["memory", "sshd"])
def target(
    request: pytest.FixtureRequest, start_fleet: StartFleet, tmp_path: Path
) -> Iterator[Target]:
    if request.param == "memory":
        yield in_memory()
        return
    settings = PoolSettings(home=tmp_path, retry_base_s=0.01)
    with NodePool(owner="a", settings=settings) as pool:
        yield real_target(start_fleet(1), pool)


@pytest.fixture
def led(target: Target) -> Target:
    """A node on which owner `a` holds the lease."""
    target.lease("a")
    return target


# --- Looking ----------------------------------------------------------------------------------


def test_an_empty_node_says_who_it_is_and_that_nothing_runs(target: Target) -> None:
    answer = target.observe()
    assert answer.machine_id == target.machine_id
    assert answer.boot_id
    assert answer.format.startswith("1.")
    assert (answer.shards, answer.shards_error, answer.lease) == ((), "", None)


def test_an_unknown_request_is_refused_by_name(target: Target) -> None:
    assert target.refused("frobnicate") == "unknown-op"


# --- The lease --------------------------------------------------------------------------------


def test_the_owner_of_a_living_lease_keeps_its_epoch(target: Target) -> None:
    first = target.lease("a")
    assert first["epoch"] >= 1
    assert target.lease("a")["epoch"] == first["epoch"]
    renewed = target.lease("a", "renew", epoch=first["epoch"], ttl_s=120)
    assert (renewed["epoch"], renewed["owner"]) == (first["epoch"], "a")
    assert 100 < renewed["remaining_s"] <= 120


def test_a_living_lease_of_another_is_not_given_away(led: Target) -> None:
    assert led.refused("lease", "b", action="acquire", ttl_s=60) == "lease-held"
    lease = led.observe().lease
    assert lease is not None
    assert (lease.owner, lease.epoch) == ("a", led.epochs["a"])


def test_a_released_lease_is_given_on_with_a_higher_epoch(led: Target) -> None:
    epoch = led.epochs["a"]
    released = led.lease("a", "release", epoch=epoch)
    assert released["remaining_s"] <= 0
    assert led.lease("b")["epoch"] > epoch


def test_an_expired_lease_is_given_on_and_its_owner_fenced(target: Target) -> None:
    target.lease("a", ttl_s=0.2)
    target.pass_time(0.3)
    spec = target.spec()
    assert target.refused("start", spec=spec, labels={}) == "fenced"
    target.lease("b")
    assert target.epochs["b"] > target.epochs["a"]
    assert target.refused("start", "a", spec=spec, labels={}) == "fenced"
    assert target.shard(spec["launch"]) is None
    assert target.start(spec, "b") == {"state": "started"}


def test_the_epoch_fences_also_the_same_owner(target: Target) -> None:
    target.lease("a", ttl_s=0.2)
    slept = target.epochs["a"]
    target.pass_time(0.3)
    target.lease("a")
    assert target.epochs["a"] > slept, "an interrupted lease is another lease"
    spec = target.spec()
    assert target.refused("start", "a", epoch=slept, spec=spec, labels={}) == "fenced"


def test_nobody_acts_without_a_lease(target: Target) -> None:
    assert target.refused("start", spec=target.spec(), labels={}) == "fenced"
    assert target.refused("stop", launch="chat-0-x1") == "fenced"


def test_renew_release_and_update_are_fenced(led: Target) -> None:
    for action in ("renew", "release", "update"):
        asked: dict[str, Any] = {"action": action, "ttl_s": 60}
        assert led.refused("lease", "a", **asked, epoch=led.epochs["a"] + 1) == "fenced"
        assert led.refused("lease", "b", **asked, epoch=led.epochs["a"]) == "fenced"


def test_what_must_outlive_the_reconciler_is_kept_by_the_lease(led: Target) -> None:
    kept = {
        "root_commit": "r" * 40,
        "revision": "c" * 40,
        "departed": {"gpu-z": "d" * 40},
        "approvals": [{"replica": "chat-1", "before": "p1:a", "after": ""}],
        "retries": {"chat-0": 3},
    }
    before = led.lease("a")["remaining_s"]
    updated = led.lease("a", "update", epoch=led.epochs["a"], **kept)
    assert updated["remaining_s"] <= before, "an update is no renewal"
    led.lease("a", "update", epoch=led.epochs["a"], revision="e" * 40)
    led.lease("a", "release", epoch=led.epochs["a"])
    led.lease("b")
    lease = led.observe().lease
    assert lease is not None
    assert (lease.revision, lease.root_commit) == ("e" * 40, "r" * 40)
    assert (dict(lease.departed), dict(lease.retries)) == (kept["departed"], kept["retries"])
    assert [a.replica for a in lease.approvals] == ["chat-1"]


def test_a_lease_is_taken_over_only_with_a_reason(led: Target) -> None:
    assert led.refused("lease", "b", action="take", ttl_s=60) == "bad-request"
    taken = led.lease("b", "take", reason="a's machine burnt down")
    assert taken["epoch"] > led.epochs["a"]
    assert led.refused("start", "a", spec=led.spec(), labels={}) == "fenced"


def test_a_reboot_ends_the_lease(led: Target) -> None:
    boot = led.observe().boot_id
    led.reboot()
    assert led.observe().boot_id != boot
    assert led.refused("start", spec=led.spec(), labels={}) == "fenced"
    before = led.epochs["a"]
    assert led.lease("b")["epoch"] > before


# --- Start ------------------------------------------------------------------------------------


def test_a_start_is_seen_with_all_that_was_said(led: Target) -> None:
    spec = led.spec(restart="again")
    assert led.start(spec, labels={"team": "search"}) == {"state": "started"}
    shard = led.until(lambda: alive(led, spec), "the shard is alive")
    record, labels = shard.record, shard.labels
    assert record is not None
    assert labels is not None
    for name in ("fleet", "launch", "replica", "seq", "rank", "restart", "fingerprint", "mode"):
        assert getattr(record, name) == spec[name], name
    assert record.profile == spec["profile"]
    (place,) = record.places
    assert (place.machine_id, place.gpus, dict(place.ports)) == (
        led.machine_id,
        (led.gpus[0],),
        {"http": 20000},
    )
    assert (labels.placement, labels.replica, dict(labels.labels)) == (
        "chat",
        "chat-0",
        {"team": "search"},
    )
    assert record.boot_id == led.observe().boot_id
    assert not shard.stop_asked


def alive(target: Target, spec: Any) -> Any:
    shard = target.shard(spec["launch"])
    return shard if shard and shard.alive and shard.phase is Phase.RUNNING else None


def ended(target: Target, spec: Any) -> Any:
    shard = target.shard(spec["launch"])
    return shard if shard and not shard.alive and shard.exit else None


def test_a_start_that_is_asked_again_starts_nothing_twice(led: Target) -> None:
    spec = led.spec()
    assert led.start(spec) == {"state": "started"}
    first = led.until(lambda: alive(led, spec), "the shard is alive")
    for _ in range(3):
        assert led.start(spec) == {"state": "already"}
    again = led.shard(spec["launch"])
    assert again is not None
    assert again.pids == first.pids


def test_the_same_launch_with_another_spec_is_a_conflict_and_untouched(led: Target) -> None:
    spec = led.spec()
    led.start(spec)
    first = led.until(lambda: alive(led, spec), "the shard is alive")
    assert led.refused("start", spec={**spec, "seq": 9}, labels={}) == "conflict"
    again = led.shard(spec["launch"])
    assert again is not None
    assert (again.pids, again.record) == (first.pids, first.record)


def test_an_ended_launch_is_never_started_again(led: Target) -> None:
    spec = led.spec()
    led.start(spec)
    led.until(lambda: alive(led, spec), "the shard is alive")
    led.act("stop", launch=spec["launch"])
    led.until(lambda: ended(led, spec), "the shard has ended")
    assert led.start(spec) == {"state": "ended"}
    led.pass_time(0.1)
    assert alive(led, spec) is None


def test_a_gpu_is_never_given_twice(led: Target) -> None:
    first, second = led.spec(gpu=1, port=20000), led.spec(gpu=1, port=20010)
    led.start(first)
    assert led.refused("start", spec=second, labels={}) == "gpu-taken"
    assert led.shard(second["launch"]) is None, "a refused start leaves no record"
    assert led.start(led.spec(gpu=2, port=20020)) == {"state": "started"}


def test_a_port_is_never_given_twice(led: Target) -> None:
    led.start(led.spec(gpu=1, port=20000))
    second = led.spec(gpu=2, port=20000)
    assert led.refused("start", spec=second, labels={}) == "port-taken"
    assert led.shard(second["launch"]) is None


def test_what_has_ended_holds_no_gpu_and_no_port(led: Target) -> None:
    first = led.spec(gpu=1)
    led.start(first)
    led.until(lambda: alive(led, first), "the first is alive")
    led.act("stop", launch=first["launch"])
    led.until(lambda: ended(led, first), "the first has ended")
    assert led.start(led.spec(gpu=1, seq=2)) == {"state": "started"}


# --- Stop -------------------------------------------------------------------------------------


def test_a_stop_returns_at_once_and_ends_the_shard(led: Target) -> None:
    spec = led.spec()
    led.start(spec)
    led.until(lambda: alive(led, spec), "the shard is alive")
    assert led.act("stop", launch=spec["launch"]) == {"state": "stopping"}
    shard = led.shard(spec["launch"])
    assert shard is not None
    assert shard.stop_asked
    shard = led.until(lambda: ended(led, spec), "the shard has ended")
    assert shard.exit.kind is ExitKind.STOPPED
    assert shard.phase is Phase.ENDED
    assert shard.pids == ()


def test_a_stop_may_be_asked_twice(led: Target) -> None:
    spec = led.spec()
    led.start(spec)
    led.until(lambda: alive(led, spec), "the shard is alive")
    led.act("stop", launch=spec["launch"])
    assert led.act("stop", launch=spec["launch"])["state"] in ("stopping", "ended")
    led.until(lambda: ended(led, spec), "the shard has ended")
    assert led.act("stop", launch=spec["launch"]) == {"state": "ended"}


def test_what_is_not_there_is_not_found(led: Target) -> None:
    for op in ("stop", "relabel", "adopt"):
        labels = {"labels": {}} if op == "relabel" else {}
        assert led.refused(op, launch="chat-9-none", **labels) == "not-found"


# --- Relabel, adopt, hold ---------------------------------------------------------------------


def test_a_relabel_changes_what_is_seen_and_nothing_that_runs(led: Target) -> None:
    spec = led.spec()
    led.start(spec)
    first = led.until(lambda: alive(led, spec), "the shard is alive")
    new = {"placement": "talk", "ordinal": 4, "replica": "talk-4", "revision": "f" * 40}
    for _ in range(2):
        assert led.act("relabel", launch=spec["launch"], labels=new) == {}
    shard = led.shard(spec["launch"])
    assert shard is not None
    assert shard.labels is not None
    assert (shard.labels.placement, shard.labels.ordinal) == ("talk", 4)
    assert (shard.record, shard.pids) == (first.record, first.pids)


def test_a_supervised_launch_needs_no_adoption(led: Target) -> None:
    spec = led.spec()
    led.start(spec)
    led.until(lambda: alive(led, spec), "the shard is alive")
    assert led.act("adopt", launch=spec["launch"]) == {"state": "supervised"}
    led.act("stop", launch=spec["launch"])
    led.until(lambda: ended(led, spec), "the shard has ended")
    assert led.act("adopt", launch=spec["launch"]) == {"state": "ended"}


def test_a_held_node_refuses_to_act_until_it_is_cleared(led: Target) -> None:
    hold = {"who": "ada", "reason": "new fans", "for_s": 60, "launch": ""}
    led.client.request("hold", set=hold)
    seen = led.observe().hold
    assert seen is not None
    assert (seen.who, seen.reason) == ("ada", "new fans")
    spec = led.spec()
    assert led.refused("start", spec=spec, labels={}) == "held"
    led.client.request("hold", clear=True)
    assert led.observe().hold is None
    assert led.start(spec) == {"state": "started"}


def test_a_reboot_ends_what_ran_and_starts_nothing_by_itself(led: Target) -> None:
    spec = led.spec()
    led.start(spec)
    led.until(lambda: alive(led, spec), "the shard is alive")
    led.reboot()
    shard = led.until(lambda: ended(led, spec), "the shard reads ended")
    assert shard.exit.kind is ExitKind.REBOOT
    led.lease("a")
    assert led.start(spec) == {"state": "ended"}
    assert led.start(led.spec(seq=2)) == {"state": "started"}


# --- Asking before acting -----------------------------------------------------------------------


def test_a_check_needs_no_lease_and_leaves_nothing(target: Target) -> None:
    assert target.client.request("check", spec=target.spec())["findings"] == []
    assert target.observe().shards == ()


def test_a_check_says_what_a_start_would_refuse(led: Target) -> None:
    held = led.spec()
    led.start(held)
    found = led.client.request("check", spec=led.spec(port=23917))["findings"]
    assert len(found) == 1
    assert held["launch"] in found[0]


def test_what_the_replaced_launch_holds_does_not_count_in_a_check(led: Target) -> None:
    held = led.spec()
    led.start(held)
    asked = led.spec(port=23917)
    told = led.client.request("check", spec=asked, replaces=held["launch"])
    assert told["findings"] == []


def test_a_held_node_says_so_in_a_check(led: Target) -> None:
    led.client.request("hold", set={"who": "ann", "reason": "new fans", "for_s": 60})
    assert "new fans" in " ".join(led.client.request("check", spec=led.spec())["findings"])
    led.client.request("hold", clear=True)


# --- Another root of the records ------------------------------------------------------------------


def test_what_lies_in_a_former_root_is_seen_acted_on_and_holds_what_it_holds(led: Target) -> None:
    spec = led.spec(gpu=1, port=20000)
    led.start(spec)
    first = led.until(lambda: alive(led, spec), "the shard is alive")
    assert first.former_root == ""
    former = led.move_root(told=True)
    shard = alive(led, spec)
    assert shard is not None
    assert (shard.former_root, shard.record, shard.pids) == (former, first.record, first.pids)
    assert led.start(spec) == {"state": "already"}
    assert led.refused("start", spec=led.spec(gpu=1, port=20010), labels={}) == "gpu-taken"
    assert led.refused("start", spec=led.spec(gpu=2, port=20000), labels={}) == "port-taken"
    assert led.act("adopt", launch=spec["launch"]) == {"state": "supervised"}
    led.act("relabel", launch=spec["launch"], labels={"placement": "talk", "replica": "talk-0"})
    seen = led.shard(spec["launch"])
    assert seen is not None
    assert seen.labels is not None
    assert seen.labels.placement == "talk"
    led.act("stop", launch=spec["launch"])
    over = led.until(lambda: ended(led, spec), "the shard has ended")
    assert (over.exit.kind, over.former_root) == (ExitKind.STOPPED, former)
    assert led.start(spec) == {"state": "ended"}


def test_what_is_started_after_a_move_lies_in_the_new_root(led: Target) -> None:
    led.move_root(told=True)
    spec = led.spec()
    led.start(spec)
    shard = led.until(lambda: alive(led, spec), "the shard is alive")
    assert shard.former_root == ""
    led.act("stop", launch=spec["launch"])
    led.until(lambda: ended(led, spec), "the shard has ended")


def test_the_lease_outlasts_a_move_of_the_root(led: Target) -> None:
    led.lease("a", "update", epoch=led.epochs["a"], revision="e" * 40)
    led.move_root(told=True)
    lease = led.observe().lease
    assert lease is not None
    assert (lease.owner, lease.epoch, lease.revision) == ("a", led.epochs["a"], "e" * 40)
    assert led.refused("lease", "b", action="acquire", ttl_s=60) == "lease-held"
    led.lease("a", "release", epoch=led.epochs["a"])
    assert led.lease("b")["epoch"] > led.epochs["a"]


def test_a_hold_in_a_former_root_holds_until_it_is_cleared(led: Target) -> None:
    led.client.request("hold", set={"who": "ann", "reason": "new fans", "for_s": 60})
    led.move_root(told=True)
    seen = led.observe().hold
    assert seen is not None
    assert (seen.who, seen.reason) == ("ann", "new fans")
    assert led.refused("start", spec=led.spec(), labels={}) == "held"
    led.client.request("hold", clear=True)
    assert led.observe().hold is None
    spec = led.spec()
    assert led.start(spec) == {"state": "started"}
    led.until(lambda: alive(led, spec), "the shard is alive")
    led.act("stop", launch=spec["launch"])
    led.until(lambda: ended(led, spec), "the shard has ended")


def test_what_lives_in_a_root_that_nobody_names_shows_without_its_record(led: Target) -> None:
    spec = led.spec(gpu=1)
    led.start(spec)
    first = led.until(lambda: alive(led, spec), "the shard is alive")
    led.move_root(told=False)
    assert led.observe().lease is None
    led.lease("a")
    shard = led.shard(spec["launch"])
    assert shard is not None
    assert (shard.record, shard.record_error, shard.labels) == (None, "absent", None)
    assert (shard.alive, shard.supervised, shard.fresh) == (True, False, False)
    assert set(shard.pids) >= set(first.pids)
    assert led.refused("start", spec=spec, labels={}) == "conflict"
    other = led.spec(gpu=2, port=20020)
    assert led.refused("start", spec=other, labels={}) == "gpu-taken", "which it holds is not known"


# --- Secrets --------------------------------------------------------------------------------------


def test_a_start_brings_exactly_the_secrets_that_its_spec_names(led: Target) -> None:
    spec = led.spec(secrets=["hf_token"])
    for wrong in (None, {}, {"other": "v"}, {"hf_token": "v", "other": "v"}):
        given = {} if wrong is None else {"secrets": wrong}
        assert led.refused("start", spec=spec, labels={}, **given) == "bad-request"
    assert led.shard(spec["launch"]) is None, "a refused start leaves no record"
    assert led.start(spec, secrets={"hf_token": "v"}) == {"state": "started"}


def test_a_spec_without_secrets_takes_none(led: Target) -> None:
    refused = led.refused("start", spec=led.spec(), labels={}, secrets={"hf_token": "v"})
    assert refused == "bad-request"


def test_secrets_are_no_part_of_what_a_launch_is(led: Target) -> None:
    spec = led.spec(secrets=["hf_token"])
    led.start(spec, secrets={"hf_token": "v"})
    shard = led.until(lambda: alive(led, spec), "the shard is alive")
    assert "hf_token" not in str(shard.record)
    assert led.start(spec, secrets={"hf_token": "another"}) == {"state": "already"}
    assert led.start(spec) == {"state": "already"}
    led.act("stop", launch=spec["launch"])
    led.until(lambda: ended(led, spec), "the shard has ended")
    assert led.start(spec) == {"state": "ended"}


def test_a_check_asks_for_no_secrets(led: Target) -> None:
    spec = led.spec(secrets=["hf_token"])
    assert led.client.request("check", spec=spec)["findings"] == []
