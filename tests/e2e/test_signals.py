"""Real processes, real signals: the leases are free at once and another reconciler can act."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.world import World, until


@contextmanager
def started(world: World, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """`reconcile ARGV` in the background; killed if the test leaves it alive."""
    process = subprocess.Popen(
        [sys.executable, "-m", "reconciler.cli", *argv],
        cwd=world.repo,
        env=world.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def led(world: World) -> list[str]:
    """The owners of living leases, as `reconcile lease` shows them."""
    leases = world.reconcile("lease", "show", "--output", "json", code=0).json()["leases"]
    return [one["owner"] for one in leases.values() if one and one["remaining_s"] > 0]


def acts_under_another_name(world: World) -> None:
    """A second reconciler, which never heard of the first, is not told to wait."""
    world.forget()
    world.placement(replicas=2, labels={"by": "another"})
    world.commit("another")
    ran = world.reconcile()
    assert "LeaseHeld" not in ran.out + ran.err, ran
    assert world.commit_in_force() == world.git("rev-parse", "HEAD"), ran


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_a_wait_ends_with_its_signal_and_its_leases_are_free(world: World, number: int) -> None:
    world.profile(args=("--load-time", "120"))
    world.placement(replicas=2)
    world.commit()
    with started(world, "--wait", "--timeout", "300") as process:
        until("both are on the way", lambda: len(world.living()) == 2)
        until("it leads", lambda: led(world))
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 128 + number, (out, err)
    assert "Interrupted. What was started goes on" in err
    assert led(world) == []
    assert len(world.living()) == 2, "what was started goes on"
    acts_under_another_name(world)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_a_daemon_ends_well_by_either_signal_and_its_leases_are_free(
    world: World, number: int
) -> None:
    world.placement(replicas=2)
    world.commit()
    with started(world, "daemon") as process:
        until("in force", lambda: world.commit_in_force() is not None)
        until("it leads", lambda: led(world))
        process.send_signal(number)
        assert process.wait(20) == 0
    assert led(world) == []
    acts_under_another_name(world)


def test_a_pass_that_waits_for_a_frozen_node_ends_at_once_by_the_second_signal(
    world: World,
) -> None:
    world.placement(replicas=2)
    world.commit()
    world.converge()
    world.fleet(observe_timeout_s=60)
    world.placement(replicas=2, restart="now")
    world.commit("a restart, and a long deadline")
    with started(world, "--wait") as process:
        until("it leads", lambda: led(world))
        world.nodes.freeze("gpu-b")
        try:
            for _ in range(2):
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(3)
                except subprocess.TimeoutExpired:
                    continue
            assert process.wait(5) in (-signal.SIGTERM, 128 + signal.SIGTERM)
        finally:
            world.nodes.thaw("gpu-b")
    assert json.loads(world.reconcile("observe").out)
