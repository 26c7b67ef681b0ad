"""A pass publishes before it stops; files change only when they must; a hook stops nothing."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.core.changes import StopStep
from reconciler.errors import Exit
from reconciler.loop.hook import run_hook
from reconciler.loop.passes import Request, run_pass
from reconciler.loop.publish import LOCK, MARKER, Publisher
from reconciler.loop.seams import Edges
from reconciler.nodes.apply import ApplyReport, Outcome, StepResult
from reconciler.report.events import changes_of_state
from reconciler.report.passreport import EndpointsStatus, PassReport
from tests.cli.fakes import LOOK_ONLY, World, commit_id, desired
from tests.support.waiting import until


class Publishing:
    """A world of two ready replicas whose endpoints are published in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.world = World()
        self.world.source.push("one", desired("one"))
        self.world.run_ready(desired("one"))
        self.world.in_force(commit_id("one"))
        self.folder = folder / "endpoints"
        self.hook: tuple[str, ...] = ()
        self.hook_timeout_s = 5.0
        self.stopped: list[list[str]] = []
        self.result = Outcome.DONE

    @property
    def edges(self) -> Edges:
        publisher = Publisher(self.folder, self.hook, self.hook_timeout_s)
        return replace(self.world.edges, publisher=publisher, apply=self.apply)

    def apply(self, plan, desired, pool, *, epochs, on_step, cancelled):  # type: ignore[no-untyped-def]
        """What is published at the moment of a stop."""
        stops = [s for s in plan.steps if isinstance(s, StopStep)]
        self.stopped.append(self.launches())
        return ApplyReport(
            tuple(StepResult("stop", s.launch, n, self.result) for s in stops for n in s.nodes)
        )

    def run(self, request: Request | None = None) -> PassReport:
        return run_pass(self.edges, request or Request())

    def status(self) -> EndpointsStatus:
        found = self.run().endpoints
        assert found is not None
        return found

    def launches(self) -> list[str]:
        data = json.loads((self.folder / "endpoints.json").read_text())
        return sorted(e["launch"] for entries in data["models"].values() for e in entries)

    def files(self) -> dict[str, tuple[int, bytes]]:
        found = self.folder.glob("[!.]*")
        return {p.name: (p.stat().st_ino, p.read_bytes()) for p in sorted(found)}

    def remove_one(self) -> None:
        """One replica fewer is wanted."""
        self.world.source.push("two", desired("two", replicas=1))

    def script(self, text: str) -> None:
        """The hook, as a shell script."""
        path = self.folder.parent / "hook"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        self.hook = (str(path), "an argument")


@pytest.fixture
def publishing(tmp_path: Path) -> Publishing:
    return Publishing(tmp_path)


BOTH = ["chat-0-x", "chat-1-x"]


# --- The order --------------------------------------------------------------------------------


def test_an_entry_has_left_when_its_stop_is_sent(publishing: Publishing) -> None:
    publishing.run()
    assert publishing.launches() == BOTH
    publishing.remove_one()
    publishing.run()
    assert publishing.stopped[-1] == ["chat-0-x"]
    assert publishing.launches() == ["chat-0-x"]


@pytest.mark.parametrize("result", [Outcome.SKIPPED, Outcome.REFUSED, Outcome.FAILED])
def test_an_entry_whose_stop_reached_no_node_comes_back(
    publishing: Publishing, result: Outcome
) -> None:
    publishing.run()
    publishing.remove_one()
    publishing.result = result
    publishing.run()
    assert publishing.stopped[-1] == ["chat-0-x"]
    assert publishing.launches() == BOTH


def test_a_stop_that_may_have_arrived_keeps_its_entry_out(publishing: Publishing) -> None:
    publishing.run()
    publishing.remove_one()
    publishing.result = Outcome.LOST
    publishing.run()
    assert publishing.launches() == ["chat-0-x"]


def test_a_cancelled_pass_takes_nothing_out(publishing: Publishing) -> None:
    publishing.run()
    publishing.remove_one()
    publishing.result = Outcome.SKIPPED
    publishing.run(Request(cancelled=lambda: True))
    assert publishing.stopped[-1] == publishing.launches() == BOTH


def test_the_hook_has_ended_when_the_stop_is_sent(publishing: Publishing) -> None:
    publishing.script('cp endpoints.json "$RECONCILE_ENDPOINTS_DIR/../seen"')
    publishing.run()
    publishing.remove_one()
    publishing.run()
    seen = json.loads((publishing.folder.parent / "seen").read_text())
    assert [e["launch"] for e in seen["models"]["m"]] == publishing.stopped[-1]


def test_a_hook_that_takes_long_has_the_leases_renewed_before_apply(
    publishing: Publishing,
) -> None:
    publishing.run()
    publishing.remove_one()
    publishing.world.clock.tick = 30.0
    publishing.run()
    assert "renew" in publishing.world.pool.actions()


# --- What publishes ---------------------------------------------------------------------------


def test_a_dry_run_publishes_nothing(publishing: Publishing) -> None:
    assert publishing.run(LOOK_ONLY).endpoints is None
    assert not publishing.folder.exists()


def test_a_pass_with_nothing_to_do_publishes(publishing: Publishing) -> None:
    report = publishing.run()
    assert publishing.stopped == []
    assert report.exit_code == Exit.OK
    assert publishing.launches() == BOTH
    assert report.endpoints is not None
    assert [(c.name, c.state, c.count) for c in report.endpoints.counts] == [("m", "ready", 2)]


def test_an_invalid_head_keeps_on_publishing_what_is_in_force(publishing: Publishing) -> None:
    publishing.world.source.push("bad", None)
    assert publishing.run().endpoints is not None
    assert publishing.launches() == BOTH


def test_without_any_revision_the_files_stay_as_they_are(publishing: Publishing) -> None:
    publishing.run()
    before = publishing.files()
    publishing.world.source.history.clear()
    assert publishing.run().endpoints is None
    assert publishing.files() == before


def test_nodes_out_of_sight_lose_no_entry_also_for_a_reconciler_that_starts_over(
    publishing: Publishing,
) -> None:
    publishing.run()
    publishing.world.pool.silent = {"a", "b", "c"}
    status = publishing.status()
    assert publishing.launches() == BOTH
    assert len(status.kept) == 2
    assert "unreachable since 2026-03-01T10:00:00Z (NodeUnreachable)" in status.kept[0]


# --- Files ------------------------------------------------------------------------------------


def test_files_are_written_only_on_change(publishing: Publishing) -> None:
    assert publishing.status().changed
    before = publishing.files()
    assert set(before) == {"endpoints.json", "prometheus-sd.json", "litellm.yaml"}
    assert not publishing.status().changed
    assert publishing.files() == before, "a file was written again"


def test_a_change_replaces_the_file_so_that_a_reader_sees_the_old_or_the_new(
    publishing: Publishing,
) -> None:
    publishing.run()
    with (publishing.folder / "endpoints.json").open() as reader:
        publishing.remove_one()
        publishing.run()
        assert len(json.load(reader)["models"]["m"]) == 2
    assert len(publishing.launches()) == 1
    assert not list(publishing.folder.glob(".endpoints.json.*"))


def test_everyone_may_read_the_files_whatever_the_umask(publishing: Publishing) -> None:
    old = os.umask(0o077)
    try:
        publishing.run()
    finally:
        os.umask(old)
    mode = (publishing.folder / "endpoints.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o644


def test_a_file_that_somebody_removed_is_written_again(publishing: Publishing) -> None:
    publishing.run()
    (publishing.folder / "litellm.yaml").unlink()
    assert publishing.status().changed
    assert (publishing.folder / "litellm.yaml").exists()


def test_a_damaged_file_is_made_anew_and_told(publishing: Publishing) -> None:
    publishing.run()
    (publishing.folder / "endpoints.json").write_text("{")
    report = publishing.run()
    assert publishing.launches() == BOTH
    assert any("damaged" in note for note in report.notes)


def unreadable(path: Path) -> None:
    path.unlink()
    path.mkdir()


def of_another_fleet(path: Path) -> None:
    path.write_text('{"format_version": "1.0", "fleet": "other", "models": {}}')


def of_a_newer_build(path: Path) -> None:
    path.write_text('{"format_version": "2.0", "models": {}}')


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (unreadable, "Is a directory"),
        (of_another_fleet, "one folder a fleet"),
        (of_a_newer_build, "left as it is"),
    ],
)
def test_what_cannot_be_read_or_is_not_ours_is_not_written_over(
    publishing: Publishing, spoil: Callable[[Path], None], says: str
) -> None:
    publishing.run()
    spoil(publishing.folder / "endpoints.json")
    before = sorted(p.stat().st_mtime_ns for p in publishing.folder.glob("[!.]*"))
    report = publishing.run()
    assert report.endpoints is not None
    assert says in report.endpoints.error
    assert report.exit_code == Exit.PARTIAL
    assert sorted(p.stat().st_mtime_ns for p in publishing.folder.glob("[!.]*")) == before


def test_a_folder_that_cannot_be_written_stops_no_stop(publishing: Publishing) -> None:
    publishing.folder.parent.mkdir(exist_ok=True)
    publishing.run()
    (publishing.folder / "endpoints.json").unlink()
    (publishing.folder / "endpoints.json").mkdir()
    publishing.remove_one()
    publishing.launches = lambda: []  # type: ignore[method-assign]
    publishing.run()
    assert len(publishing.stopped) == 1


def test_two_processes_do_not_write_at_once(publishing: Publishing) -> None:
    publishing.run()
    with (publishing.folder / LOCK).open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another process" in publishing.status().error
    assert publishing.status().error == ""


# --- The hook ---------------------------------------------------------------------------------


def runs(publishing: Publishing) -> int:
    log = publishing.folder.parent / "runs"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_the_hook_runs_once_a_change(publishing: Publishing) -> None:
    publishing.script("echo $1 >> ../runs")
    publishing.run()
    publishing.run()
    assert runs(publishing) == 1
    publishing.remove_one()
    publishing.run()
    publishing.run()
    assert runs(publishing) == 2
    assert set((publishing.folder.parent / "runs").read_text().splitlines()) == {"an argument"}


def test_a_hook_that_is_new_runs_without_a_change(publishing: Publishing) -> None:
    publishing.run()
    publishing.script("echo x >> ../runs")
    publishing.run()
    assert runs(publishing) == 1


def test_a_hook_that_fails_is_told_and_tried_again_and_stops_nothing(
    publishing: Publishing,
) -> None:
    publishing.script("echo x >> ../runs; echo nginx: [emerg] no >&2; exit 3")
    first = publishing.run()
    assert first.exit_code == Exit.PARTIAL
    assert first.endpoints is not None
    assert first.endpoints.hook_error.endswith("hook ended with 3: nginx: [emerg] no")
    assert any("tried again at the next pass" in note for note in first.notes)
    publishing.remove_one()
    second = publishing.run()
    assert publishing.stopped[-1] == ["chat-0-x"]
    assert runs(publishing) == 2
    publishing.script("echo x >> ../runs")
    third = publishing.run()
    assert (runs(publishing), third.exit_code) == (3, Exit.OK)
    kinds = [e for e in changes_of_state(second, third) if e.kind == "endpoints"]
    assert [(e.before, e.after) for e in kinds] == [("hook failed", "published")]


def test_a_hook_that_hangs_is_killed_with_all_that_it_started(publishing: Publishing) -> None:
    publishing.script("sleep 600 & echo $! > ../child; wait")
    publishing.hook_timeout_s = 2
    began = time.monotonic()
    status = publishing.status()
    assert time.monotonic() - began < 30
    assert "was killed after" in status.hook_error
    child = int((publishing.folder.parent / "child").read_text())
    until(lambda: not _alive(child), "what the hook started to end")


def _alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def test_what_a_hook_leaves_in_the_background_does_not_hold_up_the_pass(
    tmp_path: Path,
) -> None:
    began = time.monotonic()
    script = tmp_path / "hook"
    script.write_text("#!/bin/sh\nsleep 20 & echo $! > child\n")
    script.chmod(0o755)
    assert run_hook((str(script),), tmp_path, 10.0) == ""
    assert time.monotonic() - began < 10
    os.kill(int((tmp_path / "child").read_text()), 9)


def test_no_shell_reads_the_hooks_words(tmp_path: Path) -> None:
    assert run_hook(("touch", "a; touch b", "$HOME"), tmp_path, 10.0) == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["$HOME", "a; touch b"]


def test_a_hook_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert "cannot be started: No such file" in run_hook((str(tmp_path / "no"),), tmp_path, 1.0)


def test_a_control_machine_that_dies_before_the_hook_ends_runs_it_again(
    publishing: Publishing,
) -> None:
    publishing.script("echo x >> ../runs")
    publishing.run()
    (publishing.folder / MARKER).unlink()
    publishing.run()
    assert runs(publishing) == 2
