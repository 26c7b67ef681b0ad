"""Questions to a probe child that overlap with other work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.agent import package
from reconciler.agent.observe_host import HostLooks
from reconciler.agent.probes import Probe

DEADLINE_S = 20.0


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Probe]:
    """The `system` probe, run from a file as on a node."""
    agent = tmp_path / "agent.pyz"
    agent.write_bytes(package.build()[0])
    made = Probe(str(agent), "system")
    yield made
    made.close()


def test_a_question_that_nobody_waited_for_does_not_answer_the_next_one(probe: Probe) -> None:
    probe.begin({"resources": "/"})
    probe.begin({"paths": ["/"]})
    reply = probe.finish(DEADLINE_S)
    assert reply.error == ""
    assert [list(part) for part in reply.parts] == [["paths"]]


def test_an_answer_is_given_once(probe: Probe) -> None:
    assert probe.ask({"paths": ["/"]}, DEADLINE_S).error == ""
    again = probe.finish(DEADLINE_S)
    assert (again.parts, again.error) == ([], "system: not asked")


def test_what_is_not_asked_for_is_not_told_and_the_rest_is(probe: Probe, tmp_path: Path) -> None:
    host = HostLooks(probe, str(tmp_path))
    host.begin(["resources"])
    assert list(host.finish(["resources"], DEADLINE_S)) == ["resources"]
    host.begin([])
    assert host.finish([], DEADLINE_S) == {}
    for _ in range(2):
        host.begin(["network", "shards"])
        (network,) = host.finish(["network", "shards"], DEADLINE_S).values()
        assert network["error"] == ""
        assert "lo" in {interface["name"] for interface in network["interfaces"]}


def test_no_answer_is_unknown_and_never_empty(probe: Probe, tmp_path: Path) -> None:
    host = HostLooks(probe, str(tmp_path))
    host.begin(["network", "resources"])
    found = host.finish(["network", "resources"], 0.0)
    assert {name: part["error"][:24] for name, part in found.items()} == {
        "network": "system did not answer wi",
        "resources": "system did not answer wi",
    }
