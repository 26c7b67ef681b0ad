"""What a plan's starts would meet is asked of their nodes, and told by launch and node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reconciler.core.changes import Change, Plan, ShardSpec, StartStep, Step, StopStep, Symbol
from reconciler.core.model import Desired, Fleet, Revision
from reconciler.core.observed import Labels
from reconciler.errors import NodeError
from reconciler.nodes.asking import ask
from reconciler.nodes.secretstore import SecretStore, Snapshot

DESIRED = Desired(Revision("c"), Fleet("f", "fleet-id"))


@dataclass
class Nodes:
    """Each answers as it is told to."""

    says: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    asked: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)

    def request(self, desired: Desired, node: str, op: str, **fields: Any) -> dict[str, Any]:
        self.asked.append((node, op, fields))
        if node not in self.says:
            raise NodeError(f"node {node}", "does not answer")
        return dict(self.says[node])

    def each(self, nodes: list[str], work: Callable[[str], Any]) -> list[Any]:
        return [work(node) for node in nodes]


def shards(launch: str, *nodes: str) -> tuple[ShardSpec, ...]:
    return tuple(ShardSpec(n, {"launch": launch, "rank": i}, Labels()) for i, n in enumerate(nodes))


def plan(*steps: Step) -> Plan:
    return Plan(Revision("c"), (Change("chat-0", "chat", Symbol.START, "", steps=steps),))


def start(*nodes: str, launch: str = "new") -> StartStep:
    return StartStep("chat-0", launch, 2, "p1:x", shards(launch, *nodes))


def test_a_start_that_every_node_is_fit_for_is_not_mentioned() -> None:
    nodes = Nodes({"a": {"findings": [], "sizes": {"/m": 5}}, "b": {"sizes": {"/m": 5}}})
    assert ask(plan(start("a", "b")), DESIRED, nodes) == {}
    assert [(node, op) for node, op, _ in nodes.asked] == [("a", "check"), ("b", "check")]


def test_all_that_each_node_found_is_told_by_launch_and_node() -> None:
    nodes = Nodes({"a": {"findings": ["no shm", "no path"]}, "b": {}})
    assert ask(plan(start("a", "b"), start("b", launch="other")), DESIRED, nodes) == {
        "new": {"a": "no shm; no path"}
    }


def test_half_a_model_on_one_of_two_nodes_is_found() -> None:
    nodes = Nodes({"a": {"sizes": {"/m": 5}}, "b": {"sizes": {"/m": 2}}})
    found = ask(plan(start("a", "b")), DESIRED, nodes)
    assert found == {"new": {"a": "/m differs: 5 bytes on a, 2 bytes on b"}}


def test_what_makes_way_is_no_obstacle_to_its_successor() -> None:
    nodes = Nodes({"a": {"findings": ["no path"]}})
    stop = StopStep("chat-0", "old", ("a",), "stale", check=shards("new", "a"))
    assert ask(plan(stop), DESIRED, nodes) == {"old": {"a": "no path"}}
    assert [fields["replaces"] for _, _, fields in nodes.asked] == ["old"]


def test_a_node_that_does_not_answer_is_not_unfit() -> None:
    assert ask(plan(start("a")), DESIRED, Nodes()) == {}


def test_a_secret_that_this_machine_lacks_is_told_where_it_has_a_folder_of_them(
    tmp_path: Path,
) -> None:
    spec = {"launch": "new", "rank": 0, "secrets": ["hf-token"]}
    step = StartStep("chat-0", "new", 2, "p1:x", (ShardSpec("a", spec, Labels()),))
    nodes = Nodes({"a": {"findings": ["no shm"]}})
    tmp_path.chmod(0o700)
    known = Snapshot(SecretStore(tmp_path))
    said = ask(plan(step), DESIRED, nodes, known)["new"]["a"]
    assert said.startswith(f"no shm; secret hf-token ({tmp_path}/hf-token): there is no such file")
    assert ask(plan(step), DESIRED, nodes) == {"new": {"a": "no shm"}}
    file = tmp_path / "hf-token"
    file.write_text("value\n")
    file.chmod(0o600)
    again = Snapshot(SecretStore(tmp_path))
    assert ask(plan(step), DESIRED, nodes, again) == {"new": {"a": "no shm"}}
