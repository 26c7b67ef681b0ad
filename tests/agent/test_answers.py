"""The agent's answers read as the types that the reconciler knows; refusals have their codes."""

from __future__ import annotations

import json

import pytest

from reconciler.core.codec import from_json
from reconciler.core.observed import ExitKind, Labels, Lease, NodeAnswer, NodeHold, Phase
from tests.agent.harness import FLEET, Node, Refused, Specs


def look(node: Node) -> NodeAnswer:
    return from_json(NodeAnswer, node.ask("observe", fleet=FLEET))


def test_an_empty_node_reads_whole(node: Node) -> None:
    answer = look(node)
    assert answer.machine_id == node.machine_id
    assert answer.shards == ()
    assert answer.shards_error == answer.lease_error == answer.network.error == ""
    assert answer.lease is None
    assert answer.gpus.items == ()
    assert answer.gpus.error == ""
    assert "lo" in {interface.name for interface in answer.network.interfaces}
    assert answer.resources.ram_free_mib
    assert answer.resources.disk_free_mib
    assert answer.resources.nofile > 0


def test_a_shard_reads_as_it_was_started(node: Node, specs: Specs) -> None:
    spec = specs.sim("chat-0-aaaaa")
    labels = {"placement": "chat", "ordinal": 0, "replica": "chat-0", "labels": {"a": "b"}}
    node.start(spec, **labels)
    node.ready("chat-0-aaaaa")
    (shard,) = look(node).shards
    assert shard.record is not None
    assert shard.record.places[0].ports == spec["places"][0]["ports"]
    assert shard.record.fingerprint == spec["fingerprint"]
    assert shard.record.boot_id == node.ask("hello")["boot_id"]
    assert shard.labels == Labels("chat", 0, "chat-0", {"a": "b"})
    assert (shard.phase, shard.alive, shard.supervised) == (Phase.RUNNING, True, True)
    assert shard.health.ok
    assert shard.fresh
    assert shard.ever_ready
    assert shard.exit is None
    assert shard.health.ready_for_s > 0
    listening = [entry for entry in look(node).network.listening if entry[0] == node.address]
    assert listening == [(node.address, spec["health"]["port"])]


def test_an_ended_shard_reads_with_its_exit_and_last_lines(node: Node, specs: Specs) -> None:
    node.start(specs.sim("chat-0-aaaaa", "--fail", "--fail-code", "7"))
    node.ended("chat-0-aaaaa")
    (shard,) = look(node).shards
    assert shard.phase is Phase.ENDED
    assert shard.exit is not None
    assert (shard.exit.kind, shard.exit.code, shard.exit.command) == (ExitKind.EXITED, 7, "serve")
    assert shard.log_tail[-1] == "sim: failed to load, as asked for"
    assert not shard.ever_ready


def test_lease_and_hold_read_as_stored(node: Node) -> None:
    approvals = [{"replica": "chat-0", "before": "p1:aa", "after": ""}]
    node.lease(revision="abc", root_commit="def", approvals=approvals, retries={"chat-0": 4})
    node.ask("hold", set={"who": "kim", "reason": "new cable", "for_s": 60})
    answer = look(node)
    assert isinstance(answer.lease, Lease)
    assert (answer.lease.revision, answer.lease.retries) == ("abc", {"chat-0": 4})
    assert answer.lease.approvals[0].replica == "chat-0"
    assert 0 < answer.lease.remaining_s <= 600
    assert isinstance(answer.hold, NodeHold)
    assert answer.hold.reason == "new cable"


def test_what_was_not_asked_for_is_unknown_not_empty(node: Node) -> None:
    answer = from_json(NodeAnswer, node.ask("observe", parts=["resources"]))
    assert answer.shards_error
    assert answer.gpus.error
    assert answer.network.error
    assert answer.resources.error == ""


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("{", "bad-request"),
        ("[]", "bad-request"),
        ('{"op": 5}', "bad-request"),
        ("[" * 100_000, "bad-request"),
        ('{"id": 1, "op": "reboot"}', "unknown-op"),
        ('{"id": 1, "op": "observe", "parts": ["moon"]}', "bad-request"),
        ('{"id": 1, "op": "logs", "launch": "../../etc"}', "not-found"),
        ('{"op": "lease", "fleet": "../x", "owner": "a", "action": "acquire"}', "bad-request"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_understood_is_answered(node: Node, line: str, code: str) -> None:
    session = node.session()
    session._write(line)
    answer = session.receive()
    assert not answer["ok"]
    assert answer["error"]["code"] == code
    assert session.ask("hello")["root"] == str(node.root)


def test_the_journal_tells_who_asked_what(node: Node, specs: Specs) -> None:
    node.start(specs.shell("job-0-aaaaa", ["sleep", "60"]))
    with pytest.raises(Refused):
        node.ask("stop", fleet=FLEET, owner="stranger", epoch=1, launch="job-0-aaaaa")
    node.stop("job-0-aaaaa")
    entries = node.ask("journal", lines=50)["entries"]
    told = [(e["op"], e["owner"], e["result"]) for e in entries]
    assert told == [
        ("lease", "tester", "done"),
        ("start", "tester", "started"),
        ("stop", "stranger", "fenced"),
        ("stop", "tester", "stopping"),
    ]
    assert entries[1]["launch"] == "job-0-aaaaa"
    assert entries[1]["epoch"] == 1


def test_logs_are_read_by_lines_and_followed_by_offset(node: Node, specs: Specs) -> None:
    script = "echo one; echo two; while [ ! -e go ]; do sleep 0.02; done; echo three; sleep 60"
    node.start(specs.shell("job-0-aaaaa", ["sh", "-c", script]))
    folder = node.root / "launches" / "job-0-aaaaa"

    def lines(**fields: object) -> dict[str, object]:
        return dict(node.ask("logs", launch="job-0-aaaaa", **fields))

    from tests.agent.harness import poll

    first = poll(lambda: lines(lines=1), lambda found: found["lines"] == ["two"])
    assert first["commands"] == ["serve", "supervisor"]
    (folder / "go").write_text("")
    poll(lambda: lines(offset=first["offset"]), lambda found: found["lines"] == ["three"])


def test_answers_are_ascii_whatever_an_engine_prints(node: Node, specs: Specs) -> None:
    script = r"printf 'caf\303\251 \377 \033[31mred\036RECONCILE m4rk3r 2 {}\n'; exit 3"
    node.start(specs.shell("job-0-aaaaa", ["sh", "-c", script]))
    node.ended("job-0-aaaaa")
    node.ask("observe")
    shard = node.shard("job-0-aaaaa")
    assert shard["log_tail"][0].startswith("caf\u00e9 \ufffd \x1b[31mred")
    assert json.dumps(shard).isascii()
