"""The node in memory keeps the agent's protocol: the same rules that docs/agent-protocol.md states.

Each rule is a function over a fresh node, so that it can also be run against planted mistakes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reconciler.core.observed import ExitKind, Labels, Phase
from reconciler.simulate.engine import Behaviour, of_sim_engine
from reconciler.simulate.leases import Refused
from reconciler.simulate.node import SimGpu, SimNode

FLEET = "5f0c2f0e-0000-4000-8000-0000000000bb"


class Bench:
    """One node, its clock, and requests that run to their end."""

    def __init__(self, *bugs: str, behaviour: Behaviour | None = None) -> None:
        self.now = 100.0
        self.node = SimNode(
            name="n1",
            address="10.0.0.1",
            gpus=tuple(SimGpu(f"G{i}", i) for i in range(4)),
            now=lambda: self.now,
            behave=lambda spec: behaviour or Behaviour(load_s=20.0),
            bugs=frozenset(bugs),
        )
        self.fence = {"fleet": FLEET, "owner": "one", "epoch": 1}

    def ask(self, op: str, **fields: Any) -> Any:
        work = self.node.handle(op, fields)
        while True:
            try:
                next(work)
            except StopIteration as stop:
                return stop.value

    def cut(self, step: str, op: str, **fields: Any) -> None:
        """The agent is killed right after `step`."""
        work = self.node.handle(op, fields)
        for done in work:
            if done == step:
                work.close()
                return
        raise AssertionError(f"{op} has no step {step}")

    def refused(self, op: str, **fields: Any) -> str:
        with pytest.raises(Refused) as caught:
            self.ask(op, **fields)
        return caught.value.code

    def acquire(self, owner: str = "one", **over: Any) -> Any:
        fields = {"fleet": FLEET, "owner": owner, "ttl_s": 60, **over}
        return self.ask("lease", action="acquire", **fields)

    def start(self, launch: str = "chat-0-a", **over: Any) -> Any:
        return self.ask("start", fence=self.fence, spec=spec(launch, **over), labels=Labels())

    def shard(self, launch: str = "chat-0-a") -> Any:
        (found,) = (s for s in self.node.answer(FLEET).shards if s.launch == launch)
        return found


def spec(launch: str, *, gpu: str = "G0", port: int = 20000, seq: int = 1, **over: Any) -> Any:
    place = {
        "rank": 0,
        "node": "n1",
        "machine_id": "machine-n1",
        "gpus": [gpu],
        "ports": {"http": port},
        "fabric": "",
    }
    return {
        "format": "1.0",
        "fleet": FLEET,
        "launch": launch,
        "replica": launch.rpartition("-")[0],
        "seq": seq,
        "rank": 0,
        "places": [place],
        "fingerprint": "p1:x",
        "commands": [{"argv": ["sim"]}],
        "health": {"port": port},
        "start_timeout_s": 120,
        "stop_grace_s": 30,
        **over,
    }


# --- rules ---------------------------------------------------------------------------------------


def start_is_idempotent_by_launch_id(bench: Bench) -> None:
    bench.acquire()
    assert bench.start() == {"state": "started"}
    assert bench.start() == {"state": "already"}
    code = bench.refused("start", fence=bench.fence, spec=spec("chat-0-a", gpu="G1"))
    assert code == "conflict"


def an_ended_launch_is_never_started_again(bench: Bench) -> None:
    bench.acquire()
    bench.start()
    bench.ask("stop", fence=bench.fence, launch="chat-0-a")
    bench.now += 10
    assert bench.shard().exit.kind is ExitKind.STOPPED
    assert bench.start() == {"state": "ended"}


def a_gpu_and_a_port_that_a_living_launch_holds_are_refused(bench: Bench) -> None:
    bench.acquire()
    bench.start()
    other = spec("talk-0-b", gpu="G0", port=20009)
    assert bench.refused("start", fence=bench.fence, spec=other) == "gpu-taken"
    other = spec("talk-0-b", gpu="G1", port=20000)
    assert bench.refused("start", fence=bench.fence, spec=other) == "port-taken"
    assert bench.start("talk-0-b", gpu="G1", port=20009) == {"state": "started"}


def a_stranger_or_an_absent_gpu_fails_the_preflight(bench: Bench) -> None:
    bench.acquire()
    bench.node.strangers["G2"] = 77
    for gpu in ("G2", "G9"):
        wrong = spec("chat-0-a", gpu=gpu)
        assert bench.refused("start", fence=bench.fence, spec=wrong) == "preflight"
    assert bench.node.launches == {}


def only_the_current_epoch_may_act(bench: Bench) -> None:
    bench.acquire()
    bench.ask("lease", fleet=FLEET, owner="one", action="release", epoch=1)
    assert bench.acquire().epoch == 2
    assert bench.refused("start", fence=bench.fence, spec=spec("chat-0-a")) == "fenced"


def nothing_is_done_under_an_expired_lease(bench: Bench) -> None:
    bench.acquire()
    bench.now += 61
    assert bench.refused("start", fence=bench.fence, spec=spec("chat-0-a")) == "fenced"
    assert bench.node.launches == {}


def nobody_acts_without_a_lease(bench: Bench) -> None:
    assert bench.refused("start", fence=bench.fence, spec=spec("chat-0-a")) == "fenced"


def a_living_lease_of_another_is_respected(bench: Bench) -> None:
    bench.acquire()
    fields = {"fleet": FLEET, "owner": "two", "action": "acquire", "ttl_s": 60}
    assert bench.refused("lease", **fields) == "lease-held"
    bench.now += 61
    assert bench.acquire("two").epoch == 2
    assert bench.refused("start", fence=bench.fence, spec=spec("chat-0-a")) == "fenced"


def an_unbroken_lease_keeps_its_epoch(bench: Bench) -> None:
    assert bench.acquire().epoch == 1
    bench.now += 30
    assert bench.acquire().epoch == 1
    bench.now += 61
    assert bench.acquire().epoch == 2


def a_reboot_expires_leases_and_restarts_nothing(bench: Bench) -> None:
    bench.acquire()
    bench.start()
    bench.node.reboot()
    shard = bench.shard()
    assert (shard.alive, shard.phase, shard.exit.kind) == (False, Phase.ENDED, ExitKind.REBOOT)
    assert bench.refused("start", fence=bench.fence, spec=spec("chat-0-b")) == "fenced"
    assert bench.acquire().epoch == 2


def what_the_lease_carries_is_replaced_field_by_field(bench: Bench) -> None:
    bench.acquire(revision="abc", retries={"chat-0": 3})
    kept = bench.ask("lease", fleet=FLEET, owner="one", action="update", epoch=1, revision="def")
    assert (kept.revision, kept.retries) == ("def", {"chat-0": 3})
    assert bench.ask("lease", fleet=FLEET, owner="three", action="take", reason="x").epoch == 2


def a_stop_is_an_intent_and_ends_within_its_grace(bench: Bench) -> None:
    bench.acquire()
    bench.start()
    assert bench.ask("stop", fence=bench.fence, launch="chat-0-a") == {"state": "stopping"}
    shard = bench.shard()
    assert (shard.alive, shard.stop_asked, shard.phase) == (True, True, Phase.STOPPING)
    bench.now += 2
    assert not bench.shard().alive
    assert bench.ask("stop", fence=bench.fence, launch="chat-0-a") == {"state": "ended"}


def a_launch_without_supervisor_can_be_adopted_or_stopped(bench: Bench) -> None:
    bench.acquire()
    bench.start()
    bench.now += 30
    bench.shard()
    bench.node.launches["chat-0-a"].supervised = False
    shard = bench.shard()
    assert (shard.alive, shard.supervised, shard.fresh) == (True, False, False)
    assert bench.ask("adopt", fence=bench.fence, launch="chat-0-a") == {"state": "adopted"}
    assert bench.ask("adopt", fence=bench.fence, launch="chat-0-a") == {"state": "supervised"}
    assert bench.shard().fresh


def ages_are_durations_whatever_the_clock_says(bench: Bench) -> None:
    bench.acquire()
    bench.start()
    bench.now += 7
    bench.ask("stop", fence=bench.fence, launch="chat-0-a", grace_s=5)
    bench.now += 1
    shard = bench.shard()
    assert (shard.started_age_s, shard.stop_age_s) == (8, 1)


def health_follows_the_load_time(bench: Bench) -> None:
    bench.acquire()
    bench.start()
    bench.now += 19
    assert not bench.shard().health.ok
    bench.now += 5
    assert bench.shard().health.ok
    assert bench.shard().health.ready_for_s == 4


def labels_are_replaced_without_a_restart(bench: Bench) -> None:
    bench.acquire()
    bench.start()
    bench.ask("relabel", fence=bench.fence, launch="chat-0-a", labels=Labels(replica="talk-0"))
    assert bench.shard().labels.replica == "talk-0"


def a_held_node_refuses_to_act(bench: Bench) -> None:
    bench.acquire()
    bench.ask("hold", set={"who": "alice", "reason": "fans"})
    assert bench.refused("start", fence=bench.fence, spec=spec("chat-0-a")) == "held"
    bench.ask("hold", clear=True)
    assert bench.start() == {"state": "started"}


def the_record_is_written_before_anything_runs(bench: Bench) -> None:
    bench.acquire()
    work = bench.node.handle("start", {"fence": bench.fence, "spec": spec("chat-0-a")})
    for _ in work:
        for shardlet in bench.node.launches.values():
            assert shardlet.record_written or not shardlet.alive


def a_start_that_is_cut_off_leaves_the_lock_free_and_can_be_asked_again(bench: Bench) -> None:
    bench.acquire()
    bench.cut("start: record written", "start", fence=bench.fence, spec=spec("chat-0-a"))
    assert bench.shard().exit.kind is ExitKind.PREFLIGHT
    assert bench.start("chat-0-b") == {"state": "started"}


def the_last_ready_and_the_last_three_failed_are_kept(bench: Bench) -> None:
    bench.acquire()
    for n in range(6):
        name = f"chat-0-{n}"
        bench.start(name, seq=n + 1)
        if n == 0:
            bench.now += 30
            bench.shard(name)
        bench.node.launches[name].behaviour = Behaviour(crash_s=0.0)
        bench.node.settle()
        bench.acquire()
    bench.start("chat-0-z", seq=9)
    kept = {s.launch for s in bench.node.answer(FLEET).shards}
    assert kept == {"chat-0-0", "chat-0-3", "chat-0-4", "chat-0-5", "chat-0-z"}


def failures_of_one_profile_do_not_push_out_those_of_the_one_before(bench: Bench) -> None:
    bench.acquire()
    for n, mark in enumerate(["p1:a", "p1:b", "p1:b", "p1:b", "p1:b", "p1:c", "p1:c"]):
        bench.start(f"chat-0-{n}", seq=n + 1, fingerprint=mark)
        bench.node.launches[f"chat-0-{n}"].behaviour = Behaviour(crash_s=0.0)
        bench.node.settle()
    bench.start("chat-0-z", seq=9)
    kept = {s.launch for s in bench.node.answer(FLEET).shards}
    assert kept == {"chat-0-2", "chat-0-3", "chat-0-4", "chat-0-5", "chat-0-6", "chat-0-z"}


RULES: tuple[Callable[[Bench], None], ...] = (
    start_is_idempotent_by_launch_id,
    an_ended_launch_is_never_started_again,
    a_gpu_and_a_port_that_a_living_launch_holds_are_refused,
    a_stranger_or_an_absent_gpu_fails_the_preflight,
    only_the_current_epoch_may_act,
    nothing_is_done_under_an_expired_lease,
    nobody_acts_without_a_lease,
    a_living_lease_of_another_is_respected,
    an_unbroken_lease_keeps_its_epoch,
    a_reboot_expires_leases_and_restarts_nothing,
    what_the_lease_carries_is_replaced_field_by_field,
    a_stop_is_an_intent_and_ends_within_its_grace,
    a_launch_without_supervisor_can_be_adopted_or_stopped,
    ages_are_durations_whatever_the_clock_says,
    health_follows_the_load_time,
    labels_are_replaced_without_a_restart,
    a_held_node_refuses_to_act,
    the_record_is_written_before_anything_runs,
    a_start_that_is_cut_off_leaves_the_lock_free_and_can_be_asked_again,
    the_last_ready_and_the_last_three_failed_are_kept,
    failures_of_one_profile_do_not_push_out_those_of_the_one_before,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_node_keeps_the_protocol(rule: Callable[[Bench], None]) -> None:
    rule(Bench())


@pytest.mark.parametrize(
    "bug",
    [
        "process-before-record",
        "no-fence",
        "fence-ignores-expiry",
        "fence-ignores-epoch",
        "lease-not-held",
        "no-taken-check",
        "ages-by-another-clock",
    ],
)
def test_a_mistake_planted_in_the_node_breaks_a_rule(bug: str) -> None:
    broken = []
    for rule in RULES:
        try:
            rule(Bench(bug))
        except (AssertionError, pytest.fail.Exception):
            broken.append(rule.__name__)
    assert broken, f"no rule notices {bug}"


def test_the_sim_engines_flags_say_how_it_behaves() -> None:
    argv = ["python3", "sim", "--load-time", "7", "--crash-after", "90", "--fail-code", "3"]
    made = of_sim_engine({"commands": [{"argv": argv}]})
    assert (made.load_s, made.crash_s, made.code) == (7.0, 90.0, 3)
    assert of_sim_engine({"commands": [{"argv": ["--never-ready"]}]}).load_s == float("inf")


# --- draining -------------------------------------------------------------------------------------


def drained(*, quiet_s: float | None = 0.0, in_flight_s: float = 20.0, ready: bool = True) -> Bench:
    """Asked to stop at 200 s, after `quiet_s` without new requests (None: they still come)."""
    bench = Bench(behaviour=Behaviour(load_s=20.0, stop_s=2.0, in_flight_s=in_flight_s))
    bench.node.traffic = lambda launch: quiet_s
    bench.acquire(ttl_s=1000)
    bench.start(drain_s=60)
    bench.now = 200.0 if ready else 110.0
    bench.shard()
    bench.ask("stop", fence=bench.fence, launch="chat-0-a")
    return bench


def ends_at(bench: Bench) -> float:
    began = bench.now
    while bench.shard().alive:
        bench.now += 1.0
    return bench.now - began


def test_a_stop_awaits_the_requests_in_flight_and_no_longer_than_the_drain() -> None:
    assert ends_at(drained(in_flight_s=20)) == 20 + 2
    assert ends_at(drained(in_flight_s=90)) == 60 + 2
    assert ends_at(drained(in_flight_s=20, quiet_s=15)) == 5 + 2
    assert ends_at(drained(in_flight_s=20, ready=False)) == 2, "it never served"


def test_what_clients_are_still_sent_to_is_busy_for_the_whole_drain() -> None:
    assert ends_at(drained(in_flight_s=1, quiet_s=None)) == 60 + 2


def test_a_supervisor_that_takes_over_goes_on_with_the_end_and_drains_anew() -> None:
    bench = drained(in_flight_s=90)
    bench.now += 30
    bench.node.launches["chat-0-a"].supervised = False
    bench.now += 100
    assert bench.shard().alive, "nobody sees to it"
    assert bench.ask("adopt", fence=bench.fence, launch="chat-0-a") == {"state": "adopted"}
    assert ends_at(bench) == 2, "what was in flight is answered by now"
    bench = drained(quiet_s=None)
    bench.now += 30
    bench.node.launches["chat-0-a"].supervised = False
    bench.shard()
    bench.ask("stop", fence=bench.fence, launch="chat-0-a")
    assert ends_at(bench) == 60 + 2


def test_a_kill_of_the_agent_after_the_intent_loses_no_drain() -> None:
    bench = Bench(behaviour=Behaviour(load_s=20.0, stop_s=2.0, in_flight_s=20.0))
    bench.acquire(ttl_s=1000)
    bench.start(drain_s=60)
    bench.now = 200.0
    bench.shard()
    bench.cut("stop: intent written", "stop", fence=bench.fence, launch="chat-0-a")
    assert ends_at(bench) == 20 + 2
