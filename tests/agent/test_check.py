"""Asking whether a node could start something: all findings at once, and nothing is touched."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from reconciler.agent import preflight
from tests.agent.harness import PORTS, Json, Node, Refused, Specs


def program(folder: Path, body: str) -> str:
    path = folder / "engine"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def check(node: Node, spec: Json, **fields: Any) -> Json:
    return dict(node.ask("check", spec=spec, **fields))


def test_all_findings_come_at_once_and_the_start_refuses_the_same(
    node: Node, specs: Specs, tmp_path: Path
) -> None:
    spec = specs.shell(
        "chat-0-unfit",
        ["/absent/engine"],
        require_paths=[str(tmp_path / "absent.gguf")],
        needs={"ram_gib": 1 << 20, "shm_gib": 1 << 20, "nofile": 1 << 40},
        network={"interface": "nosuch0"},
    )
    found = check(node, spec)["findings"]
    for word in ("nosuch0", "/absent/engine", "absent.gguf", "RAM", "/dev/shm", "nofile"):
        assert any(word in text for text in found), word
    with pytest.raises(Refused) as refused:
        node.start(spec)
    assert [f.split(":")[0] for f in refused.value.findings] == [f.split(":")[0] for f in found]
    assert node.shards() == {}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("engine 0.16.9", ["is version 0.16.9, the profile needs 0.17.0"]),
        ("v0.17.0+cu128", []),
        ("INFO 12:00 starting\nengine version 0.20.1", []),
        ("no number", []),
    ],
)
def test_an_engine_that_is_too_old_is_found_and_an_unknown_one_let_through(
    node: Node, specs: Specs, tmp_path: Path, said: str, found: list[str]
) -> None:
    path = program(tmp_path, f"echo '{said}'")
    told = check(node, specs.shell("chat-0-old", [path], engine_version="0.17.0"))
    assert [text.split(" ", 1)[1] for text in told["findings"]] == found
    assert bool(told["notes"]) == (said == "no number")


def test_the_version_is_asked_again_only_once_the_program_changed(
    node: Node, specs: Specs, tmp_path: Path
) -> None:
    path = program(tmp_path, f"echo x >> {tmp_path}/asked; echo 1.0")
    spec = specs.shell("chat-0-v", [path], engine_version="1.0")
    for _ in range(2):
        assert check(node, spec)["engine_version"] == "1.0"
    assert (tmp_path / "asked").read_text() == "x\n"
    program(tmp_path, "echo 0.9.1 now")
    assert check(node, spec)["engine_version"] == "0.9.1"
    assert check(node, spec)["findings"]


def test_a_program_that_hangs_on_its_version_is_let_through(
    node: Node, specs: Specs, tmp_path: Path
) -> None:
    path = program(tmp_path, "exec sleep 600")
    told = check(node, specs.shell("chat-0-h", [path], engine_version="1.0"))
    assert (told["findings"], told["engine_version"], len(told["notes"])) == ([], "", 1)


def test_sizes_are_told_of_files_and_folders(node: Node, specs: Specs, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a.safetensors").write_bytes(b"x" * 1000)
    (tmp_path / "model" / "b.safetensors").write_bytes(b"x" * 24)
    (tmp_path / "m.gguf").write_bytes(b"x" * 7)
    paths = [str(tmp_path / "model"), str(tmp_path / "m.gguf")]
    told = check(node, specs.shell("chat-0-s", ["true"], require_paths=paths))
    assert told["sizes"] == {paths[0]: 1024, paths[1]: 7}


def worker(specs: Specs, leader: str) -> Json:
    spec = specs.shell("chat-0-w", ["true"], rank=1)
    own = {**spec["places"][0], "rank": 1}
    first = {**own, "rank": 0, "machine_id": "other", "node": "node-b", "address": leader}
    return {**spec, "places": [first, own]}


def test_a_worker_whose_leader_has_its_own_address_is_found(node: Node, specs: Specs) -> None:
    found = check(node, worker(specs, node.address))["findings"]
    assert found == [f"leader's address {node.address} is this node's own"]


def test_a_leader_that_cannot_be_resolved_is_found(node: Node, specs: Specs) -> None:
    found = check(node, worker(specs, "no.such.host.invalid"))["findings"]
    assert len(found) == 1
    assert found[0].startswith("leader's address no.such.host.invalid")


def test_a_leader_elsewhere_is_no_finding(node: Node, specs: Specs) -> None:
    assert check(node, worker(specs, "127.1.2.3"))["findings"] == []


def met_at(spec: Json, host: str, *ports: int) -> Json:
    """The worker's spec, with where its ranks meet."""
    return {**spec, "network": {"interface": "", "leader": {"host": host, "ports": list(ports)}}}


@pytest.fixture
def dropping() -> Iterator[tuple[str, int]]:
    """An address whose SYNs are dropped, as a firewall does: a queue that is full and stays so."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.3.5.7", 0))
        server.listen(0)
        address = server.getsockname()
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        yield address


def test_a_leader_behind_a_firewall_that_drops_is_found_by_trying(
    node: Node, specs: Specs, dropping: tuple[str, int]
) -> None:
    host, port = dropping
    began = time.monotonic()
    found = check(node, met_at(worker(specs, host), host, port, next(PORTS)))["findings"]
    assert found == [
        f"leader's address {host}: no answer from port {port} within 3 s; is a firewall in between?"
    ]
    assert time.monotonic() - began < 10, "all ports together have one deadline"


def test_a_leader_that_refuses_or_listens_already_can_be_reached(node: Node, specs: Specs) -> None:
    with socket.create_server(("127.3.5.8", 0)) as server:
        host, port = server.getsockname()
        spec = met_at(worker(specs, host), host, port, next(PORTS))
        assert check(node, spec)["findings"] == []


def test_ranks_meet_on_the_network_that_the_spec_names_not_where_http_is_served(
    node: Node, specs: Specs, dropping: tuple[str, int]
) -> None:
    """`bootstrap: fabric`: the leader serves on the management network."""
    host, port = dropping
    found = check(node, met_at(worker(specs, "127.1.2.3"), host, port))["findings"]
    assert [text.split(":")[0] for text in found] == [f"leader's address {host}"]


def test_a_start_knocks_at_no_port_of_its_leader(node: Node, specs: Specs) -> None:
    with socket.create_server(("127.3.5.9", 0)) as server:
        host, port = server.getsockname()
        assert node.start(met_at(worker(specs, host), host, port)) == "started"
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


MLX = {"name": "mlx5_0", "port": 1, "state": "active"}


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        ([MLX], []),
        ([], []),
        ([{**MLX, "state": "down"}], ["adapter mlx5_0:1 is down, not active"]),
        ([{**MLX, "port": 2}], ["adapter mlx5_0:1 is not here (mlx5_0:2 are)"]),
    ],
)
def test_the_fabrics_adapters_are_present_and_up(seen: list[Json], found: list[str]) -> None:
    assert preflight.missing_adapters([("mlx5_0", 1)], seen) == found


@pytest.mark.skipif(Path("/sys/class/infiniband").exists(), reason="this machine has adapters")
def test_adapters_on_a_node_that_shows_none_are_a_note(node: Node, specs: Specs) -> None:
    network = {"interface": "", "adapters": [{"name": "mlx5_0", "port": 1}]}
    told = check(node, specs.shell("chat-0-ib", ["true"], network=network))
    assert (told["findings"], len(told["notes"])) == ([], 1)
    assert "mlx5_0:1" in told["notes"][0]
