"""Two agents of different content on one node: an upgrade never touches what runs."""

from __future__ import annotations

import hashlib
import io
import zipfile

from reconciler.agent import package
from tests.agent.harness import FLEET, OWNER, Node, Specs


def another() -> tuple[bytes, str]:
    """An agent of another release: the same program under another hash."""
    data = io.BytesIO(package.build()[0])
    with zipfile.ZipFile(data, "a") as file:
        file.writestr("newer.py", "RELEASE = 2\n")
    content = data.getvalue()
    return content, hashlib.sha256(content).hexdigest()


def test_a_newer_agent_serves_beside_the_older_ones_supervisors(node: Node, specs: Specs) -> None:
    older = node.ask("hello")["agent"]
    node.start(specs.sim("chat-0-older"))
    before = node.ready("chat-0-older")
    supervisor = node.supervisor("chat-0-older")
    newer = node.session(another())
    assert newer.uploaded
    assert newer.ask("hello")["agent"] != older
    fence = {"fleet": FLEET, "owner": OWNER, "epoch": node.lease()["epoch"]}

    def seen() -> dict[str, dict[str, object]]:
        return {s["launch"]: s for s in newer.ask("observe", parts=["shards"])["shards"]}

    after = seen()["chat-0-older"]
    assert (after["pids"], after["supervised"]) == (before["pids"], True)
    assert node.supervisor("chat-0-older") == supervisor
    spec = specs.sim("chat-1-newer")
    newer.ask("start", **fence, spec=spec, labels={})
    node.ready("chat-1-newer")
    assert seen().keys() == node.shards().keys() == {"chat-0-older", "chat-1-newer"}
    # Each ends what the other one started.
    newer.ask("stop", **fence, launch="chat-0-older")
    node.stop("chat-1-newer")
    for launch in ("chat-0-older", "chat-1-newer"):
        assert node.ended(launch)["exit"]["kind"] == "stopped"


def test_the_older_agent_goes_on_serving_once_a_newer_one_came(node: Node, specs: Specs) -> None:
    node.session(another()).ask("hello")
    node.start(specs.shell("chat-0-after", ["sleep", "600"]))
    node.stop("chat-0-after", grace_s=0)
    assert node.ended("chat-0-after")["exit"]["kind"] == "stopped"
