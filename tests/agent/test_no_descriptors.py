"""A supervisor that cannot read whether a stop was asked for ends nothing by a guess."""

from __future__ import annotations

import resource
import time

from tests.agent.harness import Node, Specs, gone

LAUNCH = "chat-0-aaaaa"


def test_a_supervisor_without_a_free_descriptor_takes_that_for_no_stop(
    node: Node, specs: Specs
) -> None:
    """EMFILE and ENFILE come before 'no such file': the stop that nobody asked for seemed there."""
    node.start(specs.sim(LAUNCH))
    engine = node.ready(LAUNCH)["pids"][0]
    supervisor = node.supervisor(LAUNCH)
    limits = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (1, limits[1]))
    try:
        end = time.monotonic() + 4
        while time.monotonic() < end:
            assert not gone(engine)
            time.sleep(0.1)
    finally:
        if not gone(supervisor):
            resource.prlimit(supervisor, resource.RLIMIT_NOFILE, limits)
    assert not gone(supervisor)
    shard = node.ready(LAUNCH)
    assert not shard["stop_asked"]
    assert shard["pids"] == [engine]


def test_what_stands_in_the_place_of_an_intent_and_cannot_be_read_is_no_stop(
    node: Node, specs: Specs
) -> None:
    """As a disk that answers with I/O errors."""
    node.start(specs.sim(LAUNCH))
    engine = node.ready(LAUNCH)["pids"][0]
    intent = node.root / "launches" / LAUNCH / "intent.json"
    intent.mkdir()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        assert not gone(engine)
        assert not node.shard(LAUNCH)["stop_asked"]
        time.sleep(0.1)
    intent.rmdir()
    node.stop(LAUNCH)
    node.ended(LAUNCH)
