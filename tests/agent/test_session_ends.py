"""A session ends when its input does, whatever it has started: nothing of that holds its output."""

from __future__ import annotations

import time

from tests.agent.harness import Node, Specs, gone

LAUNCH = "chat-0-aaaaa"


def test_the_channel_closes_at_once_after_a_start_and_the_shard_lives_on(
    node: Node, specs: Specs
) -> None:
    """An engine or supervisor that kept the channel's output open would hold it for ever."""
    session = node.session()
    session.ask("start", **node.fence(), spec=specs.sim(LAUNCH), labels={})
    assert session.process.stdin is not None
    assert session.process.stdout is not None
    began = time.monotonic()
    session.process.stdin.close()
    assert session.process.stdout.read() == b"", "whoever holds the other end keeps this waiting"
    session.process.wait(5)
    assert time.monotonic() - began < 3  # 0.05 s alone; this is for a loaded machine
    engine = node.ready(LAUNCH)["pids"][0]
    assert not gone(engine)
