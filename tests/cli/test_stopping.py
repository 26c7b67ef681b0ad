"""Signals: the first at a step, the second at once; leases are given back by the first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import click
import pytest

from reconciler.cli.app import run
from reconciler.cli.leasing import leases
from reconciler.cli.stopping import Interrupted, Stop, end_by, exit_code, handled
from reconciler.loop.daemon import Daemon, Schedule
from reconciler.loop.passes import Request, run_pass
from reconciler.loop.trigger import Trigger
from reconciler.loop.waiting import run_until_settled
from tests.cli.fakes import World, commit_id, desired
from tests.cli.test_daemon import Told, running


def fleet() -> World:
    world = World()
    world.source.push("one", desired("one"))
    return world


def test_a_signal_during_a_step_is_noted_and_the_pass_gives_its_leases_back() -> None:
    w, stop = fleet(), Stop(tell=False)
    w.on_apply = lambda: stop.handle(signal.SIGTERM)
    run_pass(w.edges, Request(cancelled=stop.cancelled, abrupt=stop.abrupt))
    assert (stop.number, w.pool.actions()[-1]) == (signal.SIGTERM, "release")


def test_a_signal_while_looking_ends_at_once_and_nothing_is_asked_of_a_node() -> None:
    w, stop = fleet(), Stop(tell=False)

    class Fetching(type(w.source)):  # type: ignore[misc]
        def fetch(self) -> None:
            stop.handle(signal.SIGINT)

    w.source = Fetching(w.source.history)
    with pytest.raises(Interrupted):
        run_pass(w.edges, Request(cancelled=stop.cancelled, abrupt=stop.abrupt))
    assert (w.pool.looks, w.pool.leases) == ([], [])


def test_a_signal_that_came_before_a_look_ends_there_too() -> None:
    stop = Stop(tell=False)
    stop.handle(signal.SIGINT)
    with pytest.raises(Interrupted), stop.abrupt():
        raise AssertionError("not reached")


def test_a_wait_that_is_interrupted_gives_the_leases_back_and_says_what_is_not_ready() -> None:
    w, stop = fleet(), Stop(tell=False)
    request = Request(cancelled=stop.cancelled, abrupt=stop.abrupt)
    report = run_until_settled(
        w.edges,
        request,
        timeout_s=3600,
        pause=lambda _: stop.handle(signal.SIGTERM),
        on_report=lambda _: None,
    )
    assert w.pool.actions()[-1] == "release"
    assert len(w.applied) == 1
    assert "still" in report.unsettled


def test_a_wait_that_is_interrupted_in_a_look_gives_the_leases_back() -> None:
    w, stop = fleet(), Stop(tell=False)

    def interrupt() -> None:
        if w.applied:
            stop.handle(signal.SIGTERM)

    w.pool.on_look = interrupt
    request = Request(cancelled=stop.cancelled, abrupt=stop.abrupt)
    with pytest.raises(Interrupted):
        run_until_settled(
            w.edges, request, timeout_s=3600, pause=lambda _: None, on_report=lambda _: None
        )
    assert w.pool.actions()[-1] == "release"


def test_a_daemon_that_is_interrupted_in_a_look_gives_the_leases_back() -> None:
    world, trigger = running(), Trigger()
    stop = Stop(trigger.stop, tell=False)
    told = Told(world, Trigger(), passes=99)

    def interrupt() -> None:
        if told.reports:
            stop.handle(signal.SIGTERM)

    world.pool.on_look = interrupt
    schedule = Schedule(interval_s=0.01, busy_s=0.01)
    request = Request(abrupt=stop.abrupt)
    loop = Daemon(world.edges, request, schedule, trigger, told, lambda: 0.0)
    with pytest.raises(Interrupted):
        loop.run()
    assert trigger.stopping
    assert world.pool.actions()[-1] == "release"
    assert commit_id("one")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_the_process_at_once(number: int) -> None:
    program = textwrap.dedent(
        """
        import os, signal, time
        from reconciler.cli.stopping import Stop, handled
        stop = Stop()
        with handled(stop.handle):
            print("ready", flush=True)
            while True:
                time.sleep(60)
        """
    )
    pipe = subprocess.PIPE
    child = subprocess.Popen([sys.executable, "-c", program], stdout=pipe, stderr=pipe, bufsize=0)
    assert child.stdout is not None
    assert child.stderr is not None
    with child:
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(number)
        assert child.stderr.readline() == b"\n"
        assert b"once more to end at once" in child.stderr.readline()
        assert child.poll() is None
        child.send_signal(number)
        assert child.wait(10) == -number


@contextmanager
def before(number: int, handler: object) -> Iterator[None]:
    old = signal.signal(number, handler)  # type: ignore[arg-type]
    try:
        yield
    finally:
        signal.signal(number, old)


def test_a_signal_that_is_ignored_stays_ignored_and_others_get_their_handler_back() -> None:
    stop = Stop(tell=False)
    with before(signal.SIGHUP, signal.SIG_IGN):
        old = signal.getsignal(signal.SIGTERM)
        with handled(stop.handle):
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.number == 0
        assert signal.getsignal(signal.SIGTERM) is old


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_any_command_that_a_signal_ends_leaves_as_its_shell_expects(number: int) -> None:
    undone: list[str] = []

    @click.command()
    def asking() -> None:
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            undone.append("given back")

    tree = click.Group(commands={"asking": asking})
    assert run(["asking"], tree) == 128 + number
    assert undone == ["given back"]


@pytest.mark.parametrize("note", ["", "What was started goes on."])
def test_only_who_started_something_says_that_it_goes_on(
    note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def asking() -> None:
        error = Interrupted(signal.SIGINT)
        if note:
            error.add_note(note)
        raise error

    assert run(["asking"], click.Group(commands={"asking": asking})) == 130
    assert capsys.readouterr().err.strip() == f"Interrupted. {note}".strip()


def test_a_persons_command_gives_its_leases_back_before_it_ends_by_a_signal() -> None:
    w = fleet()
    session = SimpleNamespace(pool=w.pool)

    def approve() -> None:
        with leases(session, desired("one"), ["a"], "why"):  # type: ignore[arg-type]
            os.kill(os.getpid(), signal.SIGTERM)
            assert w.pool.actions() == ["acquire"], "what is under way is not cut"

    with pytest.raises(Interrupted):
        approve()
    assert w.pool.actions() == ["acquire", "release"]


def test_the_exit_code_is_that_of_the_signal_through_every_wrapping() -> None:
    wrapped = click.Abort()
    wrapped.__cause__ = Interrupted(signal.SIGTERM)
    assert exit_code(wrapped) == 143
    assert exit_code(KeyboardInterrupt()) == 130
    with before(signal.SIGUSR1, signal.SIG_DFL), pytest.raises(Interrupted):
        end_by(signal.SIGUSR1)
