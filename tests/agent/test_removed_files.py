"""What somebody removes under a living shard is made again, and a log bounds itself in any case."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from reconciler.agent import health, logs
from tests.agent.harness import Node, Refused, Specs, gone, poll
from tests.support.waiting import until

LAUNCH = "chat-0-aaaaa"
MOST = logs.MAX_BYTES


def test_a_removed_lock_brings_no_second_supervisor_and_is_made_again(
    node: Node, specs: Specs
) -> None:
    """Two would take the shard from each other, and the exit would be lost between them."""
    node.start(specs.sim(LAUNCH))
    node.ready(LAUNCH)
    supervisor = node.supervisor(LAUNCH)
    lock = node.root / "launches" / LAUNCH / "lock"
    lock.unlink()
    assert node.shard(LAUNCH)["supervised"]
    assert node.adopt(LAUNCH) == "supervised"
    until(lock.exists, "the lock is there again")
    fresh = node.until(LAUNCH, lambda shard: shard["fresh"])
    assert fresh["health"]["ok"]
    assert node.supervisor(LAUNCH) == supervisor
    node.stop(LAUNCH)
    assert node.ended(LAUNCH)["exit"]["code"] == 0
    until(lambda: gone(supervisor), "the supervisor has ended")


def test_a_removed_status_is_written_again(node: Node, specs: Specs) -> None:
    node.start(specs.sim(LAUNCH))
    node.ready(LAUNCH)
    status = node.root / "launches" / LAUNCH / "status.json"
    status.unlink()
    until(status.exists, "the status is there again")
    assert node.shard(LAUNCH)["health"]["ok"]


def test_a_shard_whose_folder_was_removed_is_alive_and_can_be_stopped(
    node: Node, specs: Specs
) -> None:
    node.start(specs.sim(LAUNCH))
    pid = node.ready(LAUNCH)["pids"][0]
    folder = node.root / "launches" / LAUNCH
    folder.rename(node.folder / "away")
    shard = node.until(LAUNCH, lambda shard: shard["record_error"] == "absent")
    assert shard["alive"]
    # Its old supervisor may see the intent before the new one has begun.
    with suppress(Refused):
        node.stop(LAUNCH)
    until(lambda: gone(pid), "the engine has ended")


@pytest.fixture
def flood(node: Node, specs: Specs) -> Path:
    """The log of an engine that says 100 MB a second."""
    write = "while :; do head -c 10000000 /dev/zero; sleep 0.1; done"
    node.start(specs.shell(LAUNCH, ["/bin/sh", "-c", write]))
    node.until(LAUNCH, lambda shard: shard["phase"] == "running")
    return node.root / "launches" / LAUNCH / "serve.log"


def size(log: Path) -> int:
    return log.stat().st_blocks * 512


def test_an_engine_that_floods_its_log_fills_no_disk(node: Node, flood: Path) -> None:
    copy = Path(f"{flood}.1")
    until(copy.exists, "the log was cut once")
    # How far it grows between two looks depends on the machine; that it is cut again does not.
    seen = [size(flood)]

    def cuts() -> int:
        seen.append(size(flood))
        return sum(later < earlier for earlier, later in pairwise(seen))

    poll(cuts, lambda found: found >= 3, 30)
    poll(lambda: size(flood) + size(copy), lambda found: found <= 4 * MOST, 30)
    node.stop(LAUNCH, grace_s=0)
    assert node.ended(LAUNCH)["exit"]["kind"] == "stopped"


def test_a_log_that_was_removed_under_its_writer_is_bounded_too(node: Node, specs: Specs) -> None:
    size = 3 * MOST
    write = f"head -c {size} /dev/zero; exec sleep 600"
    node.start(specs.shell(LAUNCH, ["/bin/sh", "-c", f"sleep 1; {write}"]))
    pid = node.until(LAUNCH, lambda shard: shard["phase"] == "running")["pids"][0]
    (node.root / "launches" / LAUNCH / "serve.log").unlink()
    path = f"/proc/{pid}/fd/1"
    comm = Path(f"/proc/{pid}/comm")
    until(lambda: comm.read_text().strip() == "sleep", "all of it was written", 30)
    poll(lambda: os.stat(path).st_size, lambda size: size <= MOST)


def test_a_name_server_that_is_gone_makes_no_shard_unhealthy() -> None:
    """The name was resolved when the shard became ready; it is asked again once it is refused."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert health.Exchange("name.invalid", port, "/").reply is not None
        health._RESOLVED[("name.invalid", port)] = socket.getaddrinfo(
            "127.0.0.1", port, type=socket.SOCK_STREAM
        )[0]
        kept = health.Exchange("name.invalid", port, "/")
        assert kept.reply is None, "it is connected without the name server"
        kept.give_up("enough")
    refused = health.Exchange("name.invalid", port, "/")
    while refused.reply is None:
        refused.step()
    assert health.Exchange("name.invalid", port, "/").reply is not None, "it is asked again"
