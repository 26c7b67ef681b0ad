"""A plan and a pass report with one of everything that can be shown.

`python -m tests.report.samples` writes the golden transcripts anew; read the difference before
committing it: people and scripts read these outputs.
"""

from __future__ import annotations

import json
from pathlib import Path

from reconciler.core.changes import (
    Capacity,
    Change,
    GuardVerdict,
    Hold,
    Plan,
    Reason,
    Seat,
    ShardSpec,
    StartStep,
    StopStep,
    Summary,
    Symbol,
)
from reconciler.core.model import Revision
from reconciler.core.observed import ApprovedChange, Labels
from reconciler.core.verdict import FieldChange
from reconciler.report.passreport import (
    Condition,
    ConditionKind,
    Finding,
    HeadError,
    Health,
    NodeStatus,
    PassReport,
    PlacementStatus,
    ReplicaStatus,
    Revisions,
    StepOutcome,
    Sync,
)
from reconciler.report.plan_json import plan_json
from reconciler.report.plan_markdown import plan_markdown
from reconciler.report.plan_text import plan_text
from reconciler.report.report_json import report_json, status_json
from reconciler.report.status_text import status_text

GOLDEN = Path(__file__).parent / "golden"
OBSERVED_AT = "2026-03-01T10:00:00Z"
COMMIT = "8f2c1e0a4b7d5c3e9f1a2b3c4d5e6f708192a3b4"
OLD, NEW = "p1:" + "a" * 64, "p1:" + "b" * 64
REVISION = Revision(commit=COMMIT, ref="main", root_commit="1" * 40)


def gpus(node: str, count: int = 4) -> Seat:
    """A seat with declared GPUs."""
    return Seat(node, tuple(f"{node}-gpu-{i}" for i in range(count)))


def start_step() -> StartStep:
    """A start whose command and environment carry secrets."""
    spec = {
        "commands": [
            {
                "name": "serve",
                "argv": ["vllm", "serve", "/models/llama", "--api-key", "canary-secret-1"],
                "env": {"HF_TOKEN": "canary-secret-2", "NCCL_DEBUG": "WARN"},
            }
        ]
    }
    shard = ShardSpec("gpu-a", spec, Labels(placement="llama", ordinal=2, replica="llama-2"))
    return StartStep("llama-2", "llama-2-k3f9a", 1, NEW, (shard,))


def full_plan() -> Plan:
    """One change of every symbol, a hold, a failed guard, a dip in capacity and a warning."""
    return Plan(
        revision=REVISION,
        changes=(
            Change(
                address="llama-2",
                placement="llama",
                symbol=Symbol.START,
                verdict="missing",
                reason="wanted, and nothing of it runs",
                after=NEW,
                after_seats=(gpus("gpu-a"),),
                steps=(start_step(),),
            ),
            Change(
                address="old-0",
                placement="old",
                symbol=Symbol.STOP,
                verdict="surplus",
                reason="no placement wants it",
                before=OLD,
                before_seats=(gpus("gpu-b"),),
                waits="4 of 12 replicas would go, limit 30%",
                waits_for=Reason.BLAST_RADIUS,
            ),
            Change(
                address="chat-0",
                placement="chat",
                symbol=Symbol.STOP_FIRST,
                verdict="stale",
                reason="the profile has changed",
                changes=(
                    FieldChange("profile.args[1]", "--max-model-len=8192", "--max-model-len=16384"),
                    FieldChange("profile.env.HF_TOKEN", "canary-secret-3", "canary-secret-4"),
                ),
                before=OLD,
                after=NEW,
                before_seats=(gpus("gpu-c", 8), gpus("gpu-d", 8)),
                after_seats=(gpus("gpu-c", 8), gpus("gpu-d", 8)),
                steps=(StopStep("chat-0", "chat-0-aaaaa", ("gpu-c", "gpu-d"), "stale"),),
                load_minutes=12,
            ),
            Change(
                address="chat-1",
                placement="chat",
                symbol=Symbol.START_FIRST,
                verdict="misplaced",
                reason="pool l40s is not h100",
                before=OLD,
                after=OLD,
                before_seats=(gpus("gpu-e", 8),),
                after_seats=(gpus("gpu-f", 8),),
                waits="chat-0 is being replaced",
                waits_for=Reason.MAX_UNAVAILABLE,
            ),
            Change(
                address="embed-0",
                placement="embed",
                symbol=Symbol.RELABEL,
                reason="renamed from vectors-0",
                before=OLD,
                after=OLD,
                before_seats=(gpus("gpu-g", 1),),
                after_seats=(gpus("gpu-g", 1),),
            ),
            Change(
                address="odd-0",
                placement="odd",
                symbol=Symbol.UNKNOWN,
                verdict="unknown",
                reason="its record has no fingerprint; stop it by `reconcile stop odd-0-zzzzz`",
                before_seats=(gpus("gpu-g", 1),),
            ),
        ),
        holds=(
            Hold(
                subject="replica big-0",
                placement="big",
                reason=Reason.NO_CAPACITY,
                message="0 of 3 nodes fit: 2 have 2 free GPUs of 8, 1 is cordoned",
                nodes={
                    "gpu-a": "2 free GPUs of 8",
                    "gpu-b": "2 free GPUs of 8",
                    "gpu-c": "cordoned: \x1b[2J fan",
                },
            ),
        ),
        guards=(
            GuardVerdict(
                name="removed",
                scope="model llama, pool h100",
                limit="30%",
                value="4 of 12",
                passed=False,
                message="`reconcile approve` lets exactly these through",
                changes=(ApprovedChange("old-0", OLD),),
            ),
            GuardVerdict("replaced", "model chat, pool h100", "100%", "2 of 2", passed=True),
        ),
        capacity=(
            Capacity("chat", "chat-70b", wanted=2, ready=2, lowest=1),
            Capacity("embed", "bge", wanted=1, ready=1, lowest=1),
        ),
        warnings=("placement chat: an upgrade would now build another command",),
        summary=Summary(start=1, stop=1, replace=2, relabel=1, unknown=1, held=1, unchanged=9),
        plan_digest="d1:0123456789abcdef",
    )


def empty_plan() -> Plan:
    """A converged fleet's plan."""
    return Plan(revision=REVISION, summary=Summary(unchanged=12), plan_digest="d1:00")


def full_report() -> PassReport:
    """A pass over a bad head, with one placement mid-rollout and one node down."""
    return PassReport(
        owner="ops@control",
        observed_at=OBSERVED_AT,
        revisions=Revisions(head="f" * 40, in_force=COMMIT, applied="", ref="main"),
        exit_code=3,
        working_on=REVISION,
        head_error=HeadError(
            reason="SchemaFailed",
            message="1 finding",
            revision="main@sha1:ffffffffff",
            author="Kim <kim@example.org>",
            findings=(
                Finding(
                    file="catalog/llama.yaml",
                    line=7,
                    subject="profile llama-70b",
                    message="parallel.tp is text ('8') where an integer belongs",
                    hint="write 8 without quotes",
                    reason="SchemaFailed",
                    commit="f" * 40,
                    author="Kim",
                ),
            ),
        ),
        plan=full_plan(),
        placements=(
            PlacementStatus(
                placement="chat",
                model="chat-70b",
                profile="chat-70b-h100",
                sync=Sync.OUT_OF_SYNC,
                health=Health.HEALTHY,
                wanted=2,
                ready=2,
                conditions=(
                    Condition(ConditionKind.READY, True),
                    Condition(ConditionKind.RECONCILING, True),
                ),
                replicas=(
                    ReplicaStatus(
                        replica="chat-0",
                        verdict="stale",
                        reason="the profile has changed",
                        ready=True,
                        launch="chat-0-aaaaa",
                        nodes=("gpu-c", "gpu-d"),
                        endpoint="10.0.0.3:20000",
                        changes=(FieldChange("profile.env.HF_TOKEN", "canary-secret-5", ""),),
                        started_age_s=900.0,
                        ready_for_s=600.0,
                    ),
                ),
            ),
            PlacementStatus(
                placement="big",
                model="big-405b",
                profile="big-405b-h100",
                sync=Sync.OUT_OF_SYNC,
                health=Health.MISSING,
                wanted=1,
                ready=0,
                conditions=(
                    Condition(ConditionKind.READY, False, Reason.NO_CAPACITY, "0 of 3 nodes fit"),
                    Condition(ConditionKind.BLOCKED, True, Reason.NO_CAPACITY, "0 of 3 nodes fit"),
                ),
                replicas=(ReplicaStatus("big-0", "missing", "nothing of it runs"),),
            ),
        ),
        nodes=(
            NodeStatus("gpu-a", "active", seen=True, look_ms=2.0),
            NodeStatus(
                "gpu-b",
                "active",
                seen=False,
                error="NodeUnreachable",
                detail="10.0.0.2:22: connection refused; is sshd running?",
            ),
            NodeStatus("gpu-c", "cordoned", seen=True, held_by="kim: replaces a fan"),
        ),
        steps=(
            StepOutcome("start", "llama-2-k3f9a", "gpu-a", "done", took_s=0.2),
            StepOutcome("stop", "chat-0-aaaaa", "gpu-d", "lost", "timeout", "no reply in 5 s"),
        ),
        durations_s={"look": 0.05, "plan": 0.01, "total": 0.4},
    )


def transcripts() -> dict[str, str]:
    """Golden file → what it must hold."""

    def shown(data: object) -> str:
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"

    plan, empty, report = full_plan(), empty_plan(), full_report()
    return {
        "plan.txt": plan_text(plan),
        "plan.json": shown(plan_json(plan, observed_at=OBSERVED_AT)),
        "plan.md": plan_markdown(plan),
        "plan-empty.txt": plan_text(empty),
        "plan-empty.md": plan_markdown(empty),
        "status.txt": status_text(report),
        "status.json": shown(status_json(report)),
        "report.json": shown(report_json(report)),
    }


if __name__ == "__main__":
    for name, text in transcripts().items():
        (GOLDEN / name).write_text(text)
