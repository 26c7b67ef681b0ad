"""Apply executes and never chooses: order within a replica, everything else at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from reconciler.core.changes import (
    AdoptStep,
    Change,
    Plan,
    Reason,
    RelabelStep,
    ShardSpec,
    StartStep,
    Step,
    StopStep,
    Symbol,
)
from reconciler.core.model import Desired, Fleet, Revision
from reconciler.core.observed import Labels, Lease, LookError
from reconciler.nodes.apply import ApplyReport, Outcome, StepResult, apply
from reconciler.nodes.protocol import LeaseResult, NodeRefused, NodeUnseen, ReplyLost
from reconciler.nodes.secretstore import SecretStore
from tests.support.waiting import until

Answer = Callable[[str, str, Mapping[str, Any]], dict[str, Any]]


def obey(node: str, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A node that does what it is told."""
    return {"state": {"start": "started", "stop": "stopping"}.get(op, "")}


@dataclass
class Nodes:
    """What apply needs of a pool, written down."""

    answer: Answer = obey
    owner: str = "me"
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    fields: list[Mapping[str, Any]] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)
    renewed: list[tuple[str, ...]] = field(default_factory=list)
    lease_reason: Reason | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    busy: set[str] = field(default_factory=set)

    def request(self, desired: Desired, node: str, op: str, **fields: Any) -> dict[str, Any]:
        with self.lock:
            assert node not in self.busy, f"two requests at once to {node}"
            self.busy.add(node)
            launch = fields.get("launch") or fields["spec"]["launch"]
            self.calls.append((op, launch, node))
            self.fields.append(fields)
        try:
            return self.answer(node, op, fields)
        finally:
            with self.lock:
                self.busy.discard(node)

    def started(self, node: str, spec: Mapping[str, Any], labels: Labels) -> None:
        self.noted.append(f"{spec['launch']}@{node}")

    def lease(
        self,
        desired: Desired,
        nodes: Sequence[str],
        action: str,
        *,
        epochs: Mapping[str, int] | None = None,
        **fields: Any,
    ) -> Mapping[str, LeaseResult]:
        self.renewed.append(tuple(nodes))
        lease = None if self.lease_reason else Lease("f", self.owner, 1, 60)
        return {n: LeaseResult(n, lease, self.lease_reason, "taken by another") for n in nodes}


def start(replica: str, *nodes: str) -> StartStep:
    shards = tuple(
        ShardSpec(n, {"launch": f"{replica}-new"}, Labels(replica=replica)) for n in nodes
    )
    return StartStep(replica, f"{replica}-new", 2, "p1:x", shards)


def stop(replica: str, *nodes: str) -> StopStep:
    return StopStep(replica, f"{replica}-old", nodes, "stale")


def plan(*steps: Step, repairs: tuple[Step, ...] = ()) -> Plan:
    change = Change("x", "x", Symbol.START, "", steps=steps)
    return Plan(Revision("c"), (change,), repairs=repairs)


def run(nodes: Nodes, made: Plan, *, lease_s: int = 60, **options: Any) -> ApplyReport:
    desired = Desired(Revision("c"), Fleet("f", "fleet-id", lease_s=lease_s))
    epochs = options.pop("epochs", dict.fromkeys("abcdefgh", 7))
    return apply(made, desired, nodes, epochs=epochs, **options)


def outcomes(report: ApplyReport) -> list[tuple[str, str, str]]:
    return [(r.kind, r.node, r.result.value) for r in report.results]


def test_steps_of_a_replica_go_in_order_and_repairs_first() -> None:
    nodes = Nodes()
    made = plan(stop("chat-0", "a"), start("chat-0", "a"), repairs=(stop("chat-0", "b"),))
    report = run(nodes, made)
    assert nodes.calls == [
        ("stop", "chat-0-old", "b"),
        ("stop", "chat-0-old", "a"),
        ("start", "chat-0-new", "a"),
    ]
    assert report.complete
    assert [r.code for r in report.results] == ["stopping", "stopping", "started"]


def test_every_request_carries_the_fence() -> None:
    nodes = Nodes()
    labels = RelabelStep("chat-0", "chat-0-old", ("c",), Labels(placement="talk"))
    made = plan(start("chat-1", "a"), stop("chat-2", "b"), labels, AdoptStep("x-1", ("d",)))
    assert run(nodes, made).complete
    for fields in nodes.fields:
        assert (fields["fleet"], fields["owner"], fields["epoch"]) == ("fleet-id", "me", 7)
    sent = {op: fields for (op, _, _), fields in zip(nodes.calls, nodes.fields, strict=True)}
    assert sent["relabel"]["labels"]["placement"] == "talk"
    assert sent["start"]["labels"]["replica"] == "chat-1"
    assert nodes.noted == ["chat-1-new@a"], "a start is remembered before it is sent"


def test_all_ranks_of_a_start_go_out_at_once() -> None:
    barrier = threading.Barrier(3, timeout=5)

    def together(node: str, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        barrier.wait()
        return obey(node, op, fields)

    assert run(Nodes(together), plan(start("chat-0", "a", "b", "c"))).complete


def test_a_mute_node_holds_up_only_its_own_replicas() -> None:
    others = threading.Event()

    def mute(node: str, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        if node == "a":
            assert others.wait(5), "the others waited for the mute node"
            raise ReplyLost("node a", LookError.UNREACHABLE, "no answer")
        return obey(node, op, fields)

    def note(result: StepResult) -> None:
        if result.subject == "chat-9-new":
            others.set()

    steps = [start("chat-0", "a"), start("chat-1", "a"), start("chat-2", "a")]
    report = run(Nodes(mute), plan(*steps, stop("chat-9", "b"), start("chat-9", "b")), on_step=note)
    assert outcomes(report) == [
        ("start", "a", "lost"),
        ("start", "a", "skipped"),
        ("start", "a", "skipped"),
        ("stop", "b", "done"),
        ("start", "b", "done"),
    ]
    assert report.results[1].reason is Reason.NODE_UNREACHABLE


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("fenced", Reason.FENCED),
        ("held", Reason.NODE_HELD),
        ("preflight", Reason.PREFLIGHT_FAILED),
        ("gpu-taken", Reason.PREFLIGHT_FAILED),
        ("port-taken", Reason.PREFLIGHT_FAILED),
        ("io", Reason.NODE_UNSUITABLE),
        ("conflict", Reason.START_FAILED),
    ],
)
def test_a_refusal_is_a_result_with_the_reason_that_holds_show(code: str, reason: Reason) -> None:
    def refuse(node: str, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        raise NodeRefused(f"node {node}", code, "no", ["GPU-1 is taken"])

    (result,) = run(Nodes(refuse), plan(start("chat-0", "a"))).results
    assert (result.result, result.code, result.reason) == (Outcome.REFUSED, code, reason)
    assert result.message == "no: GPU-1 is taken"


def test_after_a_step_that_was_not_done_the_replica_waits_and_others_go_on() -> None:
    def refuse(node: str, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        if op == "stop":
            raise NodeRefused(f"node {node}", "held", "a person works here")
        return obey(node, op, fields)

    nodes = Nodes(refuse)
    report = run(nodes, plan(stop("chat-0", "a"), start("chat-0", "b"), start("chat-1", "b")))
    assert outcomes(report) == [
        ("stop", "a", "refused"),
        ("start", "b", "skipped"),
        ("start", "b", "done"),
    ]
    assert ("start", "chat-0-new", "b") not in nodes.calls


def test_a_node_that_fenced_us_gets_nothing_more_in_this_pass() -> None:
    def fence(node: str, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        if node == "a":
            raise NodeRefused("node a", "fenced", "epoch 7 is not the lease in force")
        return obey(node, op, fields)

    nodes = Nodes(fence)
    report = run(nodes, plan(*(start(f"chat-{i}", "a") for i in range(4)), start("chat-9", "b")))
    assert [node for _, _, node in nodes.calls].count("a") == 1
    assert report.fenced == ("a",)
    skipped = [r for r in report.results if r.result is Outcome.SKIPPED]
    assert len(skipped) == 3
    assert {(r.code, r.reason) for r in skipped} == {("fenced", Reason.FENCED)}
    assert report.results[-1].result is Outcome.DONE


def test_a_node_whose_lease_is_not_held_gets_nothing() -> None:
    nodes = Nodes()
    report = run(nodes, plan(start("chat-0", "a"), start("chat-1", "b")), epochs={"b": 1})
    assert [(r.node, r.result, r.reason) for r in report.results] == [
        ("a", Outcome.SKIPPED, Reason.LEASE_HELD),
        ("b", Outcome.DONE, None),
    ]
    assert [node for _, _, node in nodes.calls] == ["b"]


def test_an_unreachable_node_is_a_failure_that_has_changed_nothing() -> None:
    def gone(node: str, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        raise NodeUnseen("node a", LookError.HOST_KEY, "shows another key", "see its document")

    (result,) = run(Nodes(gone), plan(start("chat-0", "a"))).results
    assert (result.result, result.reason) == (Outcome.FAILED, Reason.HOST_KEY_MISMATCH)
    assert result.message == "shows another key; see its document"


def test_a_step_that_a_cancel_finds_under_way_is_ended_on_all_of_its_nodes() -> None:
    stopped = threading.Event()

    def answer(node: str, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        if node == "a":
            stopped.set()
        # b is busy with another replica when the cancel comes, so that its rank has to wait.
        assert stopped.wait(10)
        return obey(node, op, fields)

    made = plan(stop("job-0", "b"), stop("wide-0", "a", "b"), start("chat-0", "b"))
    nodes = Nodes(answer)
    report = run(nodes, made, cancelled=stopped.is_set)
    done = {(r.kind, r.subject, r.node): r.result.value for r in report.results}
    assert done["stop", "wide-0-old", "a"] == done["stop", "wide-0-old", "b"] == "done"
    assert done["start", "chat-0-new", "b"] == "skipped"


def test_nothing_is_sent_after_a_cancel() -> None:
    stopped = threading.Event()

    def slow(node: str, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        stopped.set()
        return obey(node, op, fields)

    nodes = Nodes(slow)
    made = plan(stop("chat-0", "a"), start("chat-0", "a"))
    report = run(nodes, made, cancelled=stopped.is_set)
    assert outcomes(report) == [("stop", "a", "done"), ("start", "a", "skipped")]


def test_results_come_to_the_calling_thread_as_they_happen() -> None:
    seen: list[tuple[str, bool]] = []
    here = threading.current_thread()
    steps = [start(f"chat-{i}", "abcdefgh"[i]) for i in range(8)]
    report = run(
        Nodes(),
        plan(*steps),
        on_step=lambda r: seen.append((r.node, threading.current_thread() is here)),
    )
    assert sorted(seen) == [(r.node, True) for r in report.results]


def test_leases_are_renewed_while_acting_and_a_lost_one_ends_the_node() -> None:
    nodes = Nodes(lease_reason=Reason.FENCED)

    def until_renewed(node: str, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        # By the second renewal the answer to the first one has been read.
        until(lambda: len(nodes.renewed) >= 2, "two renewals")
        return obey(node, op, fields)

    nodes.answer = until_renewed
    report = run(nodes, plan(stop("chat-0", "a"), start("chat-0", "a")), lease_s=1)
    assert "a" in nodes.renewed[0]
    assert "a" not in nodes.renewed[1]
    assert outcomes(report) == [("stop", "a", "done"), ("start", "a", "skipped")]
    assert report.results[1].code == "fenced"


def test_a_thousand_steps_on_one_silent_node_cost_one_request() -> None:
    def gone(node: str, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        raise NodeUnseen("node a", LookError.UNREACHABLE, "gone")

    nodes = Nodes(gone)
    report = run(nodes, plan(*(stop(f"chat-{i}", "a") for i in range(1000))))
    assert len(nodes.calls) == 1
    assert len(report.results) == 1000


# --- A stop that waits for a check -------------------------------------------------------------


def checked_stop(replica: str, *nodes: str) -> StopStep:
    shards = tuple(
        ShardSpec(n, {"launch": f"{replica}-check", "rank": i}, Labels())
        for i, n in enumerate(nodes)
    )
    return StopStep(replica, f"{replica}-old", nodes, "stale", check=shards)


def finding(told: Mapping[str, Mapping[str, Any]]) -> Answer:
    """Nodes that answer a check with `told`, by name."""
    return lambda node, op, fields: told.get(node, {}) if op == "check" else obey(node, op, fields)


def test_a_launch_is_stopped_once_every_node_could_start_its_successor() -> None:
    nodes = Nodes()
    report = run(nodes, plan(checked_stop("chat-0", "a", "b")))
    assert sorted(nodes.calls[:2]) == [
        ("check", "chat-0-check", "a"),
        ("check", "chat-0-check", "b"),
    ]
    assert {f["replaces"] for f in nodes.fields[:2]} == {"chat-0-old"}
    assert outcomes(report) == [("stop", "a", "done"), ("stop", "b", "done")]


def test_a_finding_on_one_node_leaves_the_launch_running_and_tells_all_of_them() -> None:
    said = {"a": {"findings": ["path /m: absent", "RAM: 1 MiB free"]}, "b": {"findings": ["x"]}}
    nodes = Nodes(finding(said))
    report = run(nodes, plan(checked_stop("chat-0", "a", "b"), start("chat-0", "a")))
    assert {op for op, _, _ in nodes.calls} == {"check"}
    refused = [r for r in report.results if r.result is Outcome.REFUSED]
    assert [(r.node, r.reason, r.message) for r in refused] == [
        ("a", Reason.PREFLIGHT_FAILED, "path /m: absent; RAM: 1 MiB free"),
        ("b", Reason.PREFLIGHT_FAILED, "x"),
    ]
    skipped = [r for r in report.results if r.result is Outcome.SKIPPED]
    assert [r.kind for r in skipped] == ["stop", "stop", "start"]
    assert skipped[0].reason is Reason.PREFLIGHT_FAILED
    assert "left running" in skipped[0].message


def test_a_model_of_another_size_on_one_node_leaves_the_launch_running() -> None:
    nodes = Nodes(finding({"a": {"sizes": {"/m": 10}}, "b": {"sizes": {"/m": 9}}}))
    report = run(nodes, plan(checked_stop("chat-0", "a", "b")))
    assert {op for op, _, _ in nodes.calls} == {"check"}
    assert report.results[0].message == "/m differs: 10 bytes on a, 9 bytes on b"


def several(replica: str, *nodes: str) -> StartStep:
    """A start over several nodes; the launch has not begun anywhere."""
    shards = tuple(
        ShardSpec(n, {"launch": f"{replica}-new", "rank": i}, Labels()) for i, n in enumerate(nodes)
    )
    return StartStep(replica, f"{replica}-new", 2, "p1:x", shards)


def test_a_start_on_several_nodes_is_sent_once_all_of_them_could() -> None:
    nodes = Nodes(finding({"a": {"sizes": {"/m": 7}}, "b": {"sizes": {"/m": 7}}}))
    report = run(nodes, plan(several("chat-0", "a", "b"), start("chat-1", "c")))
    asked = [(op, node) for op, launch, node in nodes.calls if launch == "chat-0-new"]
    assert sorted(asked[:2]) == [("check", "a"), ("check", "b")]
    assert sorted(asked[2:]) == [("start", "a"), ("start", "b")]
    assert [op for op, launch, _ in nodes.calls if launch == "chat-1-new"] == ["start"]
    assert all("replaces" not in fields for fields in nodes.fields)
    assert report.complete


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"b": {"findings": ["path /m: No such file or directory"]}}, "path /m: No such file"),
        (
            {"a": {"sizes": {"/m": 7}}, "b": {"sizes": {"/m": 5}}},
            "/m differs: 7 bytes on a, 5 bytes on b",
        ),
    ],
)
def test_one_node_that_could_not_keeps_the_start_from_all_of_them(
    told: Mapping[str, Any], said: str
) -> None:
    nodes = Nodes(finding(told))
    report = run(nodes, plan(several("chat-0", "a", "b")))
    assert {op for op, _, _ in nodes.calls} == {"check"}
    assert nodes.noted == []
    (failed,) = [r for r in report.results if r.kind == "check"]
    assert (failed.result, failed.reason) == (Outcome.REFUSED, Reason.PREFLIGHT_FAILED)
    assert said in failed.message
    skipped = [r for r in report.results if r.kind == "start"]
    assert [(r.node, r.result) for r in skipped] == [
        ("a", Outcome.SKIPPED),
        ("b", Outcome.SKIPPED),
    ]
    assert "not started: it could not start on" in skipped[0].message


def test_a_check_without_an_answer_stops_nothing() -> None:
    def silent(node: str, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        if op == "check":
            raise NodeUnseen("node a", LookError.UNREACHABLE, "silent")
        return obey(node, op, fields)

    nodes = Nodes(silent)
    report = run(nodes, plan(checked_stop("chat-0", "a")))
    assert [op for op, _, _ in nodes.calls] == ["check"]
    assert outcomes(report) == [("check", "a", "failed"), ("stop", "a", "skipped")]


def secret_start(replica: str, *nodes: str) -> StartStep:
    """The first rank needs one secret more than the others."""
    specs = [{"launch": f"{replica}-new", "secrets": names} for names in (["key", "tls"], ["key"])]
    ranked = zip(nodes, [specs[0], *[specs[1]] * len(nodes)], strict=False)
    shards = tuple(ShardSpec(node, spec, Labels(replica=replica)) for node, spec in ranked)
    return StartStep(replica, f"{replica}-new", 2, "p1:x", shards)


def secret_folder(tmp_path: Path, **values: str) -> SecretStore:
    tmp_path.chmod(0o700)
    for name, value in values.items():
        (tmp_path / name).write_text(value)
        (tmp_path / name).chmod(0o600)
    return SecretStore(tmp_path)


def test_each_rank_gets_its_secrets_beside_the_spec_and_no_result_has_them(tmp_path: Path) -> None:
    nodes, store = Nodes(), secret_folder(tmp_path, key="canary-88\n", tls="canary-89")
    report = run(nodes, plan(secret_start("chat-0", "a", "b")), secrets=store)
    assert report.complete
    sent = dict(zip(nodes.calls, nodes.fields, strict=True))
    starts = [fields for (op, _, _), fields in sent.items() if op == "start"]
    assert all("secrets" not in fields for (op, _, _), fields in sent.items() if op == "check")
    assert sorted((fields["spec"]["secrets"], fields["secrets"]) for fields in starts) == [
        (["key"], {"key": "canary-88"}),
        (["key", "tls"], {"key": "canary-88", "tls": "canary-89"}),
    ]
    assert "canary" not in repr(report)
    assert all("canary" not in repr(noted) for noted in nodes.noted)


def test_a_missing_secret_stops_the_start_before_anything_is_sent(tmp_path: Path) -> None:
    # Only the first rank lacks one: the others must not start without it.
    nodes, store = Nodes(), secret_folder(tmp_path, key="canary-88")
    report = run(nodes, plan(secret_start("chat-0", "a", "b")), secrets=store)
    assert (nodes.calls, nodes.noted) == ([], [])
    assert {r.reason for r in report.results} == {Reason.PREFLIGHT_FAILED}
    assert {(r.kind, r.result) for r in report.results} == {
        ("check", Outcome.REFUSED),
        ("start", Outcome.SKIPPED),
    }
    assert f"{tmp_path}/tls" in report.results[0].message


def test_what_runs_is_left_running_when_its_successor_lacks_a_secret(tmp_path: Path) -> None:
    nodes = Nodes()
    after = secret_start("chat-0", "a")
    before = replace(stop("chat-0", "a"), check=after.shards)
    report = run(nodes, plan(before, after), secrets=SecretStore(tmp_path))
    assert nodes.calls == []
    assert not report.complete
    assert any(f"{tmp_path}/key" in result.message for result in report.results)
