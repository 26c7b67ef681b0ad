"""What `reconcile command --shell` prints serves when a person pastes it on the nodes."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from reconciler.nodes.loopback import LoopbackFleet, LoopbackNode
from tests.cli.conftest import Cli, FleetRepo


@contextmanager
def pasted(node: LoopbackNode, text: str, folder: Path) -> Iterator[None]:
    """A shell on the node over OpenSSH, with the text typed into it."""
    known = folder / f"known-{node.name}"
    known.write_text(f"[{node.address}]:{node.port} {node.host_key}\n")
    options = {
        "IdentityFile": str(node.identity_file),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": str(known),
        "BatchMode": "yes",
    }
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    argv = ["ssh", "-F", "none", *given, "-p", str(node.port), f"{node.user}@{node.address}", "sh"]
    log = (folder / f"log-{node.name}").open("wb")
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=log)
    try:
        assert process.stdin is not None
        # The mark is for the nodes' end: they sweep what carries their machine id.
        mark = f"export RECONCILE_MARK=pasted/by-hand/0@{node.machine_id}\n"
        process.stdin.write((mark + text).encode())
        process.stdin.flush()
        yield
    finally:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        log.close()


def answer(url: str, deadline_s: float = 60.0) -> int:
    """The status of the first answer."""
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2) as got:
                return int(got.status)
        except OSError:
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.05)


def parts(text: str) -> list[tuple[str, str]]:
    """(node, what is pasted there)."""
    ranks = text.split("# --- rank ")[1:]
    return [(rank.split()[2], rank.partition("\n")[2]) for rank in ranks]


@pytest.mark.parametrize(("placement", "first"), [("chat", 21000), ("large", 21100)])
def test_pasting_it_serves(
    cli: Cli, live: tuple[FleetRepo, LoopbackFleet], tmp_path: Path, placement: str, first: int
) -> None:
    repo, nodes = live
    # Ports of its own: a server that was killed a moment ago leaves its own waiting.
    repo.replace("fleet.yaml", "first: 20000", f"first: {first}")
    repo.commit("ports")
    assert cli("doctor", repo=repo).code in (0, 3), "the agent's file is on every node now"
    shell = cli("command", placement, "--shell", repo=repo).out
    shown = cli("command", placement, "--output", "json", repo=repo).json
    pastes = [pasted(nodes[name], text, tmp_path) for name, text in parts(shell)]
    assert len(pastes) == len(shown["ranks"])
    with ExitStack() as stack:
        for paste in pastes:
            stack.enter_context(paste)
        base = f"http://{shown['ranks'][0]['address']}:{shown['ports']['http']}"
        assert answer(f"{base}/health") == 200
        with urllib.request.urlopen(f"{base}/v1/models", timeout=5) as got:
            assert json.load(got)["data"][0]["id"].startswith("sim-")
