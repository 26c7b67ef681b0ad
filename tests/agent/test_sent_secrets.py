"""Secrets sent with a start: one file while the launch lives, nothing after it, nowhere else."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.agent.harness import Json, Node, Refused, Specs, gone, poll

LAUNCH = "job-0-aaaaa"
CANARY = "canary-7f3a-9c"


def spec_with(node: Node, specs: Specs, script: str, *names: str, **changes: object) -> Json:
    """A launch that runs `script` with a variable for each secret."""
    spec = specs.shell(LAUNCH, ["sh", "-c", script], **changes)
    spec["secrets"] = list(names or ("key",))
    spec["commands"][0]["env_files"] = {
        name.upper(): f"{node.root}/launches/{LAUNCH}/secrets/{name}" for name in spec["secrets"]
    }
    return spec


def send(node: Node, spec: Json, **values: object) -> str:
    sent = {"spec": spec, "labels": {}, "secrets": values}
    return str(node.ask("start", **node.fence(), **sent)["state"])


def holders(node: Node, value: str = CANARY) -> list[str]:
    """Files of the node that hold `value`."""
    found = []
    for path in node.folder.rglob("*"):
        if path.is_file() and value.encode() in path.read_bytes():
            found.append(str(path.relative_to(node.root)))
    return found


def engine_env(node: Node, name: str) -> str:
    """What the living engine has as `name`."""
    pids = node.until(LAUNCH, lambda s: s["pids"] != [])["pids"]
    [engine] = [pid for pid in pids if pid != node.supervisor(LAUNCH)]
    environ = Path(f"/proc/{engine}/environ").read_bytes().decode().split("\0")
    return dict(line.split("=", 1) for line in environ if "=" in line).get(name, "")


def recorded(node: Node) -> dict[str, int]:
    """Pids by command, as the status has them: what a new supervisor takes over."""
    status = json.loads((node.root / "launches" / LAUNCH / "status.json").read_text())
    return {process["name"]: process["pid"] for process in status["processes"]}


def test_a_sent_secret_lies_only_in_its_own_file_and_reaches_the_engine(
    node: Node, specs: Specs
) -> None:
    spec = spec_with(node, specs, "exec sleep 60")
    assert node.ask("check", spec=spec)["findings"] == []
    assert send(node, spec, key=CANARY) == "started"
    poll(lambda: engine_env(node, "KEY"), lambda value: value == CANARY)
    file = node.root / "launches" / LAUNCH / "secrets" / "key"
    assert holders(node) == [f"launches/{LAUNCH}/secrets/key"]
    assert file.read_text() == CANARY, "by path it is the value, without a newline"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    for op in ("observe", "journal"):
        assert CANARY not in json.dumps(node.ask(op))
    for pid in node.processes():
        assert CANARY.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_start_asked_again_after_a_rotation_is_the_same_start(node: Node, specs: Specs) -> None:
    spec = spec_with(node, specs, "exec sleep 60")
    assert send(node, spec, key=CANARY) == "started"
    assert send(node, spec, key="rotated-77") == "already"
    assert send(node, spec) == "already"
    assert holders(node, "rotated-77") == []
    assert engine_env(node, "KEY") == CANARY


@pytest.mark.parametrize("script", ["exit 5", "kill -9 $$"])
def test_the_secret_goes_with_a_launch_that_ends_by_itself(
    node: Node, specs: Specs, script: str
) -> None:
    spec = spec_with(node, specs, script)
    send(node, spec, key=CANARY)
    node.ended(LAUNCH)
    assert not (node.root / "launches" / LAUNCH / "secrets").exists()
    assert holders(node) == []
    assert send(node, spec, key=CANARY) == "ended"
    assert holders(node) == []


def test_the_secret_goes_with_a_launch_that_is_stopped(node: Node, specs: Specs) -> None:
    send(node, spec_with(node, specs, "exec sleep 60"), key=CANARY)
    node.stop(LAUNCH)
    node.ended(LAUNCH)
    assert holders(node) == []


def test_a_sidecar_started_again_by_a_new_supervisor_still_gets_it(
    node: Node, specs: Specs, tmp_path: Path
) -> None:
    spec = spec_with(node, specs, "exec sleep 60")
    seen = tmp_path / "seen"
    watch = f'echo "${{#KEY}}" >> {seen}; exec sleep 60'
    sidecar = {**spec["commands"][0], "name": "side", "argv": ["sh", "-c", watch]}
    spec["commands"] = [sidecar, *spec["commands"]]
    send(node, spec, key=CANARY)
    poll(seen.exists, bool)
    poll(lambda: sorted(recorded(node)), lambda names: names == ["serve", "side"])
    supervisor = node.supervisor(LAUNCH)
    os.kill(supervisor, signal.SIGKILL)
    poll(lambda: gone(supervisor), bool)
    assert node.adopt(LAUNCH) == "adopted"
    os.kill(recorded(node)["side"], signal.SIGKILL)
    length = str(len(CANARY))
    poll(lambda: seen.read_text().split(), lambda lines: lines == [length, length])
    node.stop(LAUNCH)
    node.ended(LAUNCH)
    assert holders(node) == []


def test_what_ended_while_nobody_supervised_it_keeps_no_secret(node: Node, specs: Specs) -> None:
    send(node, spec_with(node, specs, "exec sleep 60"), key=CANARY)
    shard = node.until(LAUNCH, lambda s: s["phase"] == "running")
    for pid in (node.supervisor(LAUNCH), *shard["pids"]):
        os.kill(pid, signal.SIGKILL)
        poll(lambda pid=pid: gone(pid), bool)
    assert holders(node) != []
    assert node.adopt(LAUNCH) == "ended"
    assert holders(node) == []


def test_a_power_cut_leaves_no_secret_beyond_the_next_lease(node: Node, specs: Specs) -> None:
    send(node, spec_with(node, specs, "exec sleep 60"), key=CANARY)
    node.until(LAUNCH, lambda s: s["phase"] == "running")
    part = node.root / "part-other-0-bbbbb" / "secrets"
    part.mkdir(parents=True)
    (part / "key").write_text(CANARY)
    for pid in node.processes():
        if not gone(pid):
            os.kill(pid, signal.SIGKILL)
    node.reconnect()
    node.boot()
    assert len(holders(node)) == 2
    node.lease()
    assert holders(node) == []
    assert (node.root / "launches" / LAUNCH / "spec.json").exists(), "the record stays"


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    poll(lambda: gone(pid), bool)


@pytest.mark.parametrize("action", ["acquire", "renew"])
def test_what_died_with_its_supervisor_keeps_no_secret_though_nobody_asks_for_it_any_more(
    node: Node, specs: Specs, action: str
) -> None:
    send(node, spec_with(node, specs, "exec sleep 60"), key=CANARY)
    shard = node.until(LAUNCH, lambda s: s["phase"] == "running")
    epoch = node.lease()["epoch"]
    supervisor = node.supervisor(LAUNCH)
    kill(supervisor)
    node.lease(action=action, epoch=epoch)
    assert holders(node) == [f"launches/{LAUNCH}/secrets/key"], "its engine lives and may need it"
    for pid in shard["pids"]:
        if pid != supervisor:
            kill(pid)
    node.lease(action=action, epoch=epoch)
    assert holders(node) == []


def test_a_living_launch_keeps_its_secret_whenever_a_lease_is_taken(
    node: Node, specs: Specs
) -> None:
    send(node, spec_with(node, specs, "exec sleep 60"), key=CANARY)
    node.lease()
    node.reconnect()
    node.lease()
    assert holders(node) == [f"launches/{LAUNCH}/secrets/key"]


def test_a_start_that_was_cut_off_goes_on_with_the_value_of_today(node: Node, specs: Specs) -> None:
    spec = spec_with(node, specs, "exec sleep 60")
    folder = node.root / "launches" / LAUNCH
    (folder / "secrets").mkdir(parents=True)
    (folder / "secrets" / "key").write_text("yesterday-1")
    boot = (node.identity / "boot_id").read_text().strip()
    (folder / "spec.json").write_text(json.dumps({**spec, "boot_id": boot}))
    assert send(node, spec, key=CANARY) == "started"
    poll(lambda: engine_env(node, "KEY"), lambda value: value == CANARY)
    assert holders(node, "yesterday-1") == []


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "missing: key; 0 others came"),
        ({"other": CANARY}, "missing: key; 1 others came"),
        ({"key": CANARY, "other": CANARY}, "missing: none; 1 others came"),
        ({"key": ""}, "key is empty"),
        ({"key": CANARY + "\0"}, "key holds a NUL"),
        ({"key": CANARY + "\n"}, "key begins or ends with white space"),
        ({"key": CANARY * 6000}, "key has more than 65536 bytes"),
        ({"key": [CANARY]}, "key is empty, or no text"),
    ],
)
def test_a_start_without_exactly_its_secrets_is_refused_and_leaves_nothing(
    node: Node, specs: Specs, values: Json, says: str
) -> None:
    with pytest.raises(Refused) as caught:
        send(node, spec_with(node, specs, "exec sleep 60"), **values)
    assert caught.value.code == "bad-request"
    assert says in caught.value.message
    assert CANARY not in caught.value.message
    assert not (node.root / "launches" / LAUNCH).exists()
    assert holders(node) == []


@pytest.mark.parametrize("name", ["../key", "a/b", "", ".key", "Key", "key."])
def test_a_name_that_leaves_the_folder_is_refused(node: Node, specs: Specs, name: str) -> None:
    spec = {**specs.shell(LAUNCH, ["true"]), "secrets": [name]}
    with pytest.raises(Refused, match="is no name of a secret"):
        send(node, spec, **{name: CANARY})
    assert holders(node) == []


def test_a_request_that_is_refused_or_fails_stands_in_no_journal(node: Node, specs: Specs) -> None:
    spec = spec_with(node, specs, "exec sleep 60")
    spec["commands"][0]["argv"] = ["/no/such/program"]
    with pytest.raises(Refused):
        send(node, spec, key=CANARY)
    stale = {"fleet": spec["fleet"], "owner": "tester", "epoch": 1}
    for wrong in ({**spec, "places": 7}, {**spec, "commands": CANARY[:6]}, spec):
        with pytest.raises(Refused) as caught:
            node.ask("start", **stale, spec=wrong, labels={}, secrets={"key": CANARY})
        assert CANARY not in caught.value.message
    assert CANARY not in json.dumps(node.ask("journal"))
    assert holders(node) == []
