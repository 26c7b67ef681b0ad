"""Commands on real sshd nodes: what a person does in a day, and the daemon as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reconciler.nodes.loopback import LoopbackFleet
from tests.cli.conftest import Cli, FleetRepo

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
Live = tuple[FleetRepo, LoopbackFleet]


def converge(cli: Cli, repo: FleetRepo) -> None:
    ran = cli("--yes", "--wait", "--timeout", "60s", repo=repo)
    assert ran.code == 0, ran.out + ran.err


def until(check: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.1)


def test_a_day(cli: Cli, live: Live, tmp_path: Path) -> None:
    """One fleet, many commands: starting nodes costs more than asking them."""
    repo, _ = live
    converge(cli, repo)

    again = cli("--dry-run", "--detailed-exitcode", repo=repo)
    assert (again.code, "nothing to do" in again.out) == (0, True)

    status = cli("status", "-o", "json", repo=repo).json
    chat = next(p for p in status["placements"] if p["placement"] == "chat")
    assert (chat["sync"], chat["health"], chat["ready"]) == ("Synced", "Healthy", 4)
    revisions = status["revisions"]
    assert revisions["head"] == revisions["in_force"] == revisions["applied"]

    observed = tmp_path / "observed.json"
    ran = cli("observe", repo=repo)
    assert ran.code == 0
    observed.write_text(ran.out)
    offline = cli("--dry-run", "--observed", str(observed), "--detailed-exitcode", repo=repo)
    assert (offline.code, "nothing to do" in offline.out) == (0, True)

    logs = cli("logs", "chat-0", repo=repo)
    assert logs.code == 0
    assert logs.out.strip()
    assert cli("logs", "chat-9", repo=repo).code == 1

    _names_that_are_near(cli, repo)

    doctor = cli("doctor", repo=repo)
    assert "sim-a" in doctor.out
    assert "8 of 8" in doctor.out

    journal = cli("journal", "sim-a", repo=repo)
    assert "start chat-0-" in journal.out

    leases = cli("lease", "show", "-o", "json", repo=repo).json["leases"]
    assert {lease["revision"] for lease in leases.values()} == {revisions["head"]}


def _names_that_are_near(cli: Cli, repo: FleetRepo) -> None:
    """A replica where a launch is meant, and the like: the answer lists what there is."""
    stop = cli("stop", "chat-0", "--yes", repo=repo)
    assert (stop.code, "name one of its launches: chat-0-" in stop.err) == (1, True)
    launch = next(w for w in cli("status", repo=repo).out.split() if w.startswith("(chat-0-"))
    unasked = cli("stop", launch.strip("():"), repo=repo)
    assert (unasked.code, "nothing was changed" in unasked.err) == (1, True)
    command = cli("logs", "chat-0", "--command", "foo", repo=repo)
    assert (command.code, "there are: " in command.err) == (1, True)
    assert "name one replica: chat-0, chat-1" in cli("logs", "chat", repo=repo).err
    assert "reconcile retry chat" in cli("retry", "chat-0", repo=repo).err
    leases = cli("lease", repo=repo)
    assert (leases.code, "free" in leases.out) == (0, True)
    held = cli("hold", "sim-a", "--for", "2h", "--reason", "a fan", repo=repo)
    assert "UTC (2h)." in held.out
    assert "for another 2h" in cli("status", repo=repo).out
    assert cli("hold", "sim-a", "--clear", repo=repo).code == 0
    _a_hold_of_one_launch(cli, repo)


def _a_hold_of_one_launch(cli: Cli, repo: FleetRepo) -> None:
    placements = cli("status", "-o", "json", repo=repo).json["placements"]
    shown = next(r for p in placements for r in p["replicas"] if r["replica"] == "chat-0")
    launch, node = shown["launch"], shown["nodes"][0]
    wrong = cli("hold", node, "--launch", "chat-77", "--reason", "x", repo=repo)
    assert (wrong.code, f"lives on {node}" in wrong.err) == (1, True)
    held = cli("hold", node, "--launch", "chat-0", "--reason", "a look", repo=repo)
    assert (held.code, f"{launch} on {node} is held" in held.out) == (0, True), held.err
    assert f"launch {launch} is held by" in cli("status", repo=repo).out
    assert f"launch {launch} is held by" in cli("doctor", repo=repo).out
    other = cli("hold", node, "--launch", "chat-9-aaaaa", "--clear", repo=repo)
    assert other.code == 1
    ended = cli("hold", node, "--launch", launch, "--clear", repo=repo)
    assert (ended.code, ended.out) == (0, f"{launch} on {node} is no longer held.\n")


def test_an_edit_reads_stale_with_its_field_also_for_a_new_process(cli: Cli, live: Live) -> None:
    repo, _ = live
    converge(cli, repo)
    repo.replace("catalog/sim.yaml", "--context, 4096", "--context, 8192")
    repo.commit("longer context")
    ran = cli("--dry-run", "-o", "json", repo=repo)
    stale = [c for c in ran.json["changes"] if c["verdict"] == "stale"]
    assert stale
    assert {path for c in stale for path in c["changed_paths"]} == {"profile.args[3]"}


def test_the_guard_holds_a_deleted_placement_until_exactly_that_is_approved(
    cli: Cli, live: Live
) -> None:
    repo, _ = live
    converge(cli, repo)
    text = (repo.folder / "placements/sim.yaml").read_text()
    repo.write("placements/sim.yaml", text[text.index("---") + 4 :])
    repo.commit("chat is gone")
    held = cli("--yes", repo=repo)
    assert held.code == 4
    assert "BlastRadius" in held.out
    approved = cli("approve", "--yes", repo=repo)
    assert (approved.code, "4 changes are approved" in approved.out) == (0, True)
    converge(cli, repo)
    status = cli("status", "-o", "json", repo=repo).json
    assert [p["placement"] for p in status["placements"]] == ["large"]


def test_a_held_node_refuses_and_everyone_sees_it(cli: Cli, live: Live) -> None:
    repo, _ = live
    ran = cli("hold", "sim-a", "--for", "2h", "--reason", "replacing a fan", repo=repo)
    assert ran.code == 0
    assert "replacing a fan" in cli("status", repo=repo).out
    cli("--yes", repo=repo)
    status = cli("status", "-o", "json", repo=repo).json
    used = {n for p in status["placements"] for r in p["replicas"] for n in r["nodes"]}
    assert "sim-a" not in used
    assert cli("hold", "sim-a", "--clear", repo=repo).code == 0
    assert "replacing a fan" not in cli("status", repo=repo).out


def test_a_launch_that_a_person_stopped_is_started_anew(cli: Cli, live: Live) -> None:
    repo, _ = live
    converge(cli, repo)
    status = cli("status", "-o", "json", repo=repo).json
    launch = status["placements"][0]["replicas"][0]["launch"]
    assert cli("stop", launch, "--yes", repo=repo).code == 0
    converge(cli, repo)
    status = cli("status", "-o", "json", repo=repo).json
    assert status["placements"][0]["replicas"][0]["launch"] != launch


def test_a_profile_that_cannot_start_is_retried_when_a_person_says_so(cli: Cli, live: Live) -> None:
    repo, _ = live
    repo.replace("catalog/sim.yaml", "--context, 4096", "--fail")
    repo.commit("a bad flag")
    cli("--yes", repo=repo)
    until(lambda: "ProfileRejected" in cli("status", repo=repo).out)
    ran = cli("retry", "chat", repo=repo)
    assert (ran.code, "are forgiven" in ran.out) == (0, True)
    assert "ProfileRejected" not in cli("status", repo=repo).out
    assert cli("retry", "caht", repo=repo).code == 1


def test_one_node_down_makes_the_pass_partial_and_the_others_go_on(cli: Cli, live: Live) -> None:
    repo, nodes = live
    nodes.stop("sim-c")
    ran = cli("--yes", repo=repo)
    assert ran.code == 3
    status = cli("status", "-o", "json", repo=repo).json
    assert {n["node"]: n["error"] for n in status["nodes"]}["sim-c"] == "NodeUnreachable"


# --- The daemon as a process ------------------------------------------------------------------


class Daemon:
    """A running `reconcile daemon`."""

    def __init__(self, process: subprocess.Popen[bytes], events: Path, port_file: Path) -> None:
        self.process, self.events, self.log = process, events, port_file

    def seen(self, kind: str, after: str) -> bool:
        lines = self.events.read_text().splitlines() if self.events.exists() else []
        return any(
            e.get("kind") == kind and after in e.get("after", "") for e in map(json.loads, lines)
        )


@contextmanager
def daemon(repo: FleetRepo, folder: Path, *args: str) -> Iterator[Daemon]:
    folder.mkdir(exist_ok=True)
    events, log = folder / "events.jsonl", folder / "log"
    with log.open("ab") as stderr:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "reconciler.cli", "--repo", str(repo.folder), "daemon"),
                *("--interval", "1s", "--events", str(events), *args),
            ],
            cwd=ROOT,
            env={**os.environ, "RECONCILE_CACHE_DIR": str(folder / "cache")},
            stderr=stderr,
        )
    try:
        yield Daemon(process, events, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_the_daemon_converges_follows_a_commit_and_ends_cleanly_on_sigterm(
    cli: Cli, live: Live, tmp_path: Path
) -> None:
    repo, _ = live
    with daemon(repo, tmp_path / "d") as running:
        until(lambda: running.seen("revision.applied", ""))
        repo.replace("placements/sim.yaml", "replicas: 4", "replicas: 3")
        head = repo.commit("fewer")
        until(lambda: running.seen("revision.applied", head))
        second = cli("--yes", repo=repo)
        assert second.code in (0, 4)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(15) == 0
    leases = cli("lease", "show", "-o", "json", repo=repo).json["leases"]
    assert all(lease["remaining_s"] <= 0 for lease in leases.values())


def test_killed_over_a_bad_head_it_goes_on_from_the_revision_in_force(
    cli: Cli, live: Live, tmp_path: Path
) -> None:
    repo, nodes = live
    with daemon(repo, tmp_path / "d") as running:
        until(lambda: running.seen("revision.applied", ""))
        running.process.kill()
        running.process.wait()
    good = cli("lease", "show", "-o", "json", repo=repo).json["leases"]["sim-a"]["revision"]
    repo.replace("placements/sim.yaml", "replicas: 4", "replicas: four")
    bad = repo.commit("a mistake")
    status = cli("status", "-o", "json", repo=repo).json
    victim = status["placements"][0]["replicas"][0]["launch"]
    for name in nodes.nodes:
        for pid in nodes.processes(name):
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            if victim.encode() in environ:
                os.kill(pid, signal.SIGKILL)
    with daemon(repo, tmp_path / "d", "--listen", "127.0.0.1:0") as running:
        until(lambda: running.seen("revision.error", bad[:10]))
        until(lambda: _replaced(cli, repo, victim))
        log = running.log.read_text()
    assert "placements/sim.yaml:5" in log
    assert "Kim" in log
    leases = cli("lease", "show", "-o", "json", repo=repo).json["leases"]
    assert {lease["revision"] for lease in leases.values()} == {good}


def _replaced(cli: Cli, repo: FleetRepo, victim: str) -> bool:
    status = cli("status", "-o", "json", repo=repo).json
    replica = status["placements"][0]["replicas"][0]
    return replica["ready"] is True and replica["launch"] != victim


def test_the_page_tells_metrics_and_status(live: Live, tmp_path: Path) -> None:
    repo, _ = live
    port = 10000 + os.getpid() % 5000
    with daemon(repo, tmp_path / "d", "--listen", f"127.0.0.1:{port}") as running:
        until(lambda: running.seen("revision.applied", ""))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
            status = json.load(answer)
    assert 'reconcile_placement_info{health="Healthy"' in text
    assert {p["health"] for p in status["placements"]} == {"Healthy"}


# --- On a terminal ----------------------------------------------------------------------------


def on_a_terminal(repo: FleetRepo, folder: Path, answer: bytes, *args: str) -> tuple[int, str]:
    """Run `reconcile` with a terminal at both ends, and type `answer` when it asks."""
    import pty

    argv = [sys.executable, "-m", "reconciler.cli", "--repo", str(repo.folder), *args]
    env = {**os.environ, "RECONCILE_CACHE_DIR": str(folder / "cache"), "TERM": "xterm"}
    main_end, child_end = pty.openpty()
    process = subprocess.Popen(
        argv, stdin=child_end, stdout=child_end, stderr=child_end, cwd=ROOT, env=env
    )
    os.close(child_end)
    said = b""
    asked = False
    try:
        while True:
            try:
                said += os.read(main_end, 4096)
            except OSError:
                break
            if not asked and b"[y/N]" in said:
                asked = True
                os.write(main_end, answer)
        return process.wait(60), said.decode(errors="replace")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(main_end)


def test_on_a_terminal_the_plan_is_shown_once_and_nothing_is_done_without_a_yes(
    cli: Cli, live: Live, tmp_path: Path
) -> None:
    repo, _ = live
    code, said = on_a_terminal(repo, tmp_path, b"n\n")
    assert "Apply this plan?" in said
    assert code != 0
    plan = cli("--dry-run", "-o", "json", repo=repo).json
    assert plan["summary"]["start"] == 5
    code, said = on_a_terminal(repo, tmp_path, b"y\n", "--wait", "--timeout", "60s")
    assert (code, said.count("Plan: 5 to start")) == (0, 1), said
    assert "everything is ready" in said


def test_doctor_says_which_node_would_refuse_a_start_and_why(cli: Cli, live: Live) -> None:
    repo, _ = live
    repo.replace(
        "catalog/sim.yaml", "stop_grace_s: 5", "stop_grace_s: 5\nneeds: {nofile: 2000000000}"
    )
    repo.commit("more files than a kernel gives")
    ran = cli("doctor", "-o", "json", repo=repo)
    assert ran.code == 3
    asked = {name: one["nodes"] for name, one in ran.json["placements"].items()}
    assert set(asked) == {"chat", "large"}
    for fits in asked.values():
        assert {fit["node"] for fit in fits} == set(ran.json["nodes"]), "each node is asked"
        assert all("nofile" in fit["findings"][0] for fit in fits)
        assert not any(fit["could_start"] for fit in fits)
    text = cli("doctor", repo=repo).out
    assert "could start" in text
    assert "the profile needs 2000000000" in text
    assert cli("journal", "sim-a", repo=repo).out.count("start") == 0


def test_what_could_not_start_its_successor_is_left_running(cli: Cli, live: Live) -> None:
    repo, _ = live
    text = (repo.folder / "placements/sim.yaml").read_text()
    repo.write("placements/sim.yaml", text.replace("max_surge: 1", "max_surge: 0"))
    repo.commit("no room beside it")
    converge(cli, repo)
    repo.replace("catalog/sim.yaml", "--context, 4096", "--context, 8192")
    repo.replace(
        "catalog/sim.yaml", "stop_grace_s: 5", "stop_grace_s: 5\nneeds: {nofile: 2000000000}"
    )
    repo.commit("longer context, and more files than a kernel gives")
    dry = cli("--dry-run", repo=repo)
    assert "is left running: its successor could not start" in dry.out
    assert dry.out.count("nofile") == 1, dry.out
    ran = cli("--yes", "-o", "json", repo=repo)
    assert ran.code == 3, ran.out
    holds = ran.json["plan"]["holds"]
    (hold,) = [h for h in holds if h["reason"] == "PreflightFailed"]
    assert "is left running: its successor could not start" in hold["message"]
    assert "nofile" in hold["message"]
    status = cli("status", "-o", "json", repo=repo).json
    chat = next(p for p in status["placements"] if p["placement"] == "chat")
    assert (chat["ready"], chat["sync"]) == (4, "OutOfSync")


def test_a_person_takes_the_lease_over_with_a_reason(cli: Cli, live: Live, tmp_path: Path) -> None:
    repo, _ = live
    converge(cli, repo)
    before = cli("lease", "show", "-o", "json", repo=repo).json["leases"]
    assert cli("lease", "take", repo=repo).code != 0, "without a reason"
    taken = cli("lease", "take", "--reason", "the old machine is gone", repo=repo)
    assert taken.code == 0, taken.out + taken.err
    after = cli("lease", "show", "-o", "json", repo=repo).json["leases"]
    for node in ("sim-a", "sim-b", "sim-c"):
        assert after[node]["epoch"] > before[node]["epoch"]
        assert f"{node}: taken, epoch {after[node]['epoch']}" in taken.out
    journal = cli("journal", "sim-a", "-o", "json", repo=repo).out
    entries = [json.loads(line) for line in journal.splitlines()]
    (entry,) = [e for e in entries if e.get("action") == "take"]
    assert entry["reason"].startswith("the old machine is gone (")
    assert cli("--yes", repo=repo).code == 0
