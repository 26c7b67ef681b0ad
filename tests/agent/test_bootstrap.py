"""How the agent comes to a node: one line, a file by its content hash, words where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

import reconciler
import reconciler.agent
from reconciler.agent import bootstrap, package
from tests.agent.harness import MARKER, Node, Session


def test_the_same_sources_give_the_same_bytes() -> None:
    script = "from reconciler.agent import package; print(package.build()[1])"
    runs = [subprocess.check_output([sys.executable, "-c", script]) for _ in range(2)]
    assert {run.decode().strip() for run in runs} == {package.build()[1]}


def test_the_package_holds_the_whole_agent_and_pynvml_and_nothing_else() -> None:
    with zipfile.ZipFile(BytesIO(package.build()[0])) as archive:
        names = set(archive.namelist())
    folder = Path(reconciler.agent.__file__).parent
    modules = {f"reconciler/agent/{path.name}" for path in folder.glob("*.py")}
    assert names == modules | {"__main__.py", "pynvml.py", "reconciler/__init__.py"}


def test_the_agent_names_the_version_of_the_product() -> None:
    assert reconciler.__version__ == reconciler.agent.VERSION


def test_the_command_means_the_same_to_every_shell() -> None:
    for command in (bootstrap.command(""), bootstrap.command("gpu-admin")):
        assert all(c.isalnum() or c in " -" for c in command)
    with pytest.raises(ValueError, match="sudo user"):
        bootstrap.command("root; reboot")


def test_the_line_carries_any_root_without_quoting() -> None:
    line = bootstrap.line(MARKER, "0" * 64, "/srv/with 'quotes' and \"more\"\n$HOME")
    assert "\n" not in line
    assert "$HOME" not in line


def test_the_file_is_sent_once_and_found_the_next_time(node: Node) -> None:
    first, second = node.session(), node.session()
    assert (first.uploaded, second.uploaded) == (True, False)
    assert second.first["bootstrap"] == "ready"
    assert second.ask("hello")["machine_id"] == node.machine_id
    assert second.first["agent"] == str(node.root / "agent" / f"{package.build()[1]}.pyz")


def test_a_damaged_file_is_replaced(node: Node) -> None:
    path = Path(node.session().first["agent"])
    data = path.read_bytes()
    for damaged in (data[:-1], b"", data[:100] + bytes([data[100] ^ 1]) + data[101:]):
        path.write_bytes(damaged)
        session = node.session()
        assert session.uploaded
        assert session.ask("hello")["machine_id"] == node.machine_id
        assert path.read_bytes() == data


def test_a_damaged_compiled_copy_is_not_used(node: Node) -> None:
    node.ask("hello")
    node.reconnect()
    folder = node.root / "agent"
    copies = [path for path in folder.iterdir() if "cpython" in path.name]
    assert len(copies) == 1
    copies[0].write_bytes(copies[0].read_bytes()[:-200])
    assert node.ask("hello")["machine_id"] == node.machine_id


def test_the_compiled_copy_is_run_and_works_under_another_python_too(node: Node) -> None:
    node.ask("hello")
    node.reconnect()
    node.ask("observe")
    (copy,) = (path for path in (node.root / "agent").iterdir() if "cpython" in path.name)
    lines = subprocess.run(
        ["ps", "-ewwo", "args"], capture_output=True, text=True, check=True
    ).stdout
    own = [line for line in lines.splitlines() if str(node.root) in line]
    assert sorted(line.partition(str(copy))[2] for line in own) == [" probe nvml", " probe system"]
    other = node.folder / "other.pyz"
    with zipfile.ZipFile(copy) as known, zipfile.ZipFile(other, "w") as made:
        for name in known.namelist():
            content = known.read(name)
            made.writestr(name, b"\0\0\r\n" + content[4:] if name.endswith("c") else content)
    command = [sys.executable, "-I", str(other), "version"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == reconciler.agent.VERSION


def test_what_arrives_damaged_is_never_run(node: Node) -> None:
    process = subprocess.Popen(
        [sys.executable, "-ISm", "code"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=node.env,
    )
    data, digest = package.build()
    lines = [bootstrap.line(MARKER, digest, ""), bootstrap.upload(data[:-1] + b"x")]
    out, _ = process.communicate("\n".join(lines).encode() + b"\n", timeout=20)
    assert b"another content than announced" in out
    assert list((node.root / "agent").iterdir()) == []


def test_the_interpreter_itself_says_nothing_on_stdout(node: Node) -> None:
    session = node.session()
    # Its prompts go to stderr; what is left is the newline before each frame.
    assert not any(line.strip() for line in session.noise)
    assert session.ask("hello")["machine_id"] == node.machine_id


def test_a_root_that_cannot_be_made_is_said_in_words(node: Node, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = {**node.env, "RECONCILE_ROOT": str(tmp_path / "file" / "root")}
    session = Session(env)
    session.close()
    assert session.first["bootstrap"] == "unsuitable"
    assert "cannot be made" in session.first["message"]


def test_a_machine_without_identity_is_unsuitable(node: Node) -> None:
    (node.identity / "machine-id").write_text("\n")
    session = node.session()
    assert session.first["bootstrap"] == "unsuitable"
    assert "machine-id: absent or empty" in session.first["message"]


def test_the_session_ends_with_its_input(node: Node) -> None:
    session = node.session()
    session.ask("observe")
    assert session.process.stdin is not None
    session.process.stdin.close()
    assert session.process.wait(10) == 0


def test_every_python_from_3_8_serves(make_node: Callable[[], Node]) -> None:
    found = {}
    for minor in range(8, 16):
        for folder in os.environ["PATH"].split(":"):
            path = os.path.join(folder, f"python3.{minor}")
            if os.access(path, os.X_OK) and _runs(path):
                found[minor] = path
    found[sys.version_info.minor] = sys.executable
    for path in found.values():
        node = make_node()
        session = Session(node.env, python=path)
        assert session.ask("observe")["machine_id"] == node.machine_id
        session.close()


def _runs(path: str) -> bool:
    try:
        done = subprocess.run([path, "-c", "pass"], capture_output=True, timeout=20, check=False)
    except OSError:
        return False
    return done.returncode == 0


def test_a_warm_look_costs_the_node_little(node: Node) -> None:
    for _ in range(3):
        node.ask("observe")
    session = node.session()
    session.ask("observe")
    before, count = _cpu_s(session.process.pid), 50
    started = time.monotonic()
    for _ in range(count):
        session.ask("observe")
    used_ms = (_cpu_s(session.process.pid) - before) / count * 1000
    # Goal: 1 to 2 ms; ten times that is a regression on any machine.
    assert used_ms < 20, f"{used_ms} ms CPU, {(time.monotonic() - started) / count * 1000} ms wall"


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
