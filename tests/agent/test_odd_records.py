"""Files under the root that a person edited, copied, moved or replaced: each costs one launch.

A check value finds what disks do; what people do has none. Whatever stands there, the look
answers, the other launch is whole, and what lives is neither called ended nor touched.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.agent import package
from reconciler.core.codec import from_json
from reconciler.core.observed import NodeAnswer, Shard
from tests.agent.harness import FLEET, Json, Node, Refused, Specs, gone, poll

SLEEP = ["/bin/sleep", "600"]
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**400,
    1e308,
    float("nan"),
    float("-inf"),
    "",
    "x" * 3000,
    "../../etc\n\0\u2028",
    [],
    [None],
    {},
    {"pid": [1]},
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a record."""
    if path:
        yield path
    pairs: Any = value.items() if isinstance(value, dict) else ()
    for key, inner in enumerate(value) if isinstance(value, list) else pairs:
        yield from places(inner, (*path, key))


def with_value(record: Json, path: tuple[Any, ...], value: Any) -> Json:
    changed = copy.deepcopy(record)
    inside: Any = changed
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return changed


def look(node: Node) -> dict[str, Shard]:
    answer = from_json(NodeAnswer, node.ask("observe", parts=["shards"]))
    assert answer.shards_error == ""
    return {shard.launch: shard for shard in answer.shards}


@pytest.fixture
def two(node: Node, specs: Specs) -> Iterator[Path]:
    """The folder of one running launch; another runs beside it."""
    for name in ("chat-0-aaaaa", "chat-1-bbbbb"):
        node.start(specs.shell(name, SLEEP))
        node.until(name, lambda shard: shard["phase"] == "running")
    yield node.root / "launches" / "chat-0-aaaaa"
    assert look(node)["chat-1-bbbbb"].record is not None


@pytest.mark.parametrize("record", ["spec.json", "status.json", "labels.json"])
def test_any_value_anywhere_in_a_record_costs_its_launch_alone(
    node: Node, two: Path, record: str
) -> None:
    path = two / record
    whole = json.loads(path.read_text())
    del whole["check"]  # an edit by hand: with a wrong check value it would only be damaged
    supervisor = node.supervisor("chat-0-aaaaa")
    os.kill(supervisor, 19)  # it would write status.json anew
    try:
        for place in places(whole):
            if place == ("boot_id",):
                continue  # another boot id means a reboot, by itself
            for value in ODD:
                path.write_text(json.dumps(with_value(whole, place, value)))
                seen = look(node)
                at = f"{record} {place} = {str(value)[:40]}"
                assert seen["chat-1-bbbbb"].record is not None, at
                assert seen["chat-0-aaaaa"].alive, at
                assert seen["chat-0-aaaaa"].phase.value != "ended", at
    finally:
        os.kill(supervisor, 18)


def test_any_value_anywhere_in_a_lease_or_hold_is_answered(node: Node) -> None:
    node.lease()
    node.ask("hold", set={"who": "ada", "reason": "disk", "for_s": 600})
    (lease,) = node.root.glob("lease-*.json")
    for path in (lease, node.root / "hold.json"):
        whole = json.loads(path.read_text())
        del whole["check"]
        for place in places(whole):
            for value in ODD:
                path.write_text(json.dumps(with_value(whole, place, value)))
                from_json(NodeAnswer, node.ask("observe", parts=["shards"]))
        path.write_text(json.dumps(whole))


def test_a_lease_that_ends_later_than_any_can_is_damaged(node: Node) -> None:
    """Else a wrong number would keep everybody out until the next reboot."""
    node.lease()
    (path,) = node.root.glob("lease-*.json")
    lease = json.loads(path.read_text())
    del lease["check"]
    for until in (1e12, float("inf"), float("nan")):
        path.write_text(json.dumps({**lease, "owner": "somebody", "until": until}))
        with pytest.raises(Refused, match="take"):
            node.lease()
        assert node.lease(action="take", reason="a wrong number")["epoch"] > lease["epoch"]


# --- Other things in the place of files --------------------------------------------------------


def folder_instead(path: Path) -> None:
    path.mkdir()


def link_to_file(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def link_to_nothing(path: Path) -> None:
    path.symlink_to("/nowhere")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def link_to_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def pipe_instead(path: Path) -> None:
    os.mkfifo(path)


def socket_instead(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


THINGS = (
    folder_instead,
    link_to_file,
    link_to_nothing,
    link_to_itself,
    link_to_endless,
    pipe_instead,
    socket_instead,
)
FILES = ("spec.json", "status.json", "labels.json", "intent.json", "lock", "serve.log")


@pytest.mark.parametrize("thing", THINGS)
def test_anything_in_the_place_of_a_launchs_file_costs_that_launch_alone(
    node: Node, two: Path, thing: Callable[[Path], None]
) -> None:
    supervisor = node.supervisor("chat-0-aaaaa")
    os.kill(supervisor, 19)
    try:
        for name in FILES:
            path, kept = two / name, two / "kept"
            if path.exists():
                path.rename(kept)
            thing(path)
            seen = look(node)
            assert seen["chat-1-bbbbb"].record is not None, name
            assert seen["chat-0-aaaaa"].alive, name
            assert seen["chat-0-aaaaa"].phase.value != "ended", name
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            if kept.exists():
                kept.rename(path)
    finally:
        os.kill(supervisor, 18)


@pytest.mark.parametrize("thing", THINGS)
def test_anything_among_the_launches_costs_no_other(
    node: Node, two: Path, thing: Callable[[Path], None]
) -> None:
    thing(two.parent / "stray-0-ccccc")
    seen = look(node)
    assert seen["chat-0-aaaaa"].record is not None
    assert "stray-0-ccccc" not in seen or not seen["stray-0-ccccc"].alive


# --- Copies and moves --------------------------------------------------------------------------


def test_a_copy_of_a_launchs_folder_is_no_launch_and_its_end_ends_nothing(
    node: Node, two: Path
) -> None:
    """`cp -a` before an experiment: the copy names the living processes of the original."""
    shutil.copytree(two, two.with_name("chat-0-aaaaa-copy"))
    seen = look(node)
    assert seen["chat-0-aaaaa"].record is not None
    shard = seen["chat-0-aaaaa-copy"]
    assert not shard.alive
    assert shard.record is None
    assert "chat-0-aaaaa" in shard.record_error
    node.adopt("chat-0-aaaaa-copy")
    assert node.stop("chat-0-aaaaa-copy") == "ended"
    pid = seen["chat-0-aaaaa"].pids[0]
    end = time.monotonic() + 3  # a supervisor of the copy would need less to end it all
    while time.monotonic() < end:
        assert not gone(pid)
        assert look(node)["chat-0-aaaaa"].phase.value == "running"
    assert "chat-0-aaaaa-copy" not in look(node), "who asked for its end wanted it away"


def test_a_supervisor_of_a_copy_ends_none_of_what_the_copy_names(node: Node, two: Path) -> None:
    """Also where one is started by hand, or by an agent that did not know better."""
    copied = two.with_name("chat-0-aaaaa-copy")
    shutil.copytree(two, copied)
    pid = look(node)["chat-0-aaaaa"].pids[0]
    _, digest = package.build()
    agent = node.root / "agent" / f"{digest}.pyz"
    done = subprocess.run(
        [sys.executable, "-I", str(agent), "supervise", str(copied), "--adopt", FLEET],
        env=node.env,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0
    assert not gone(pid)
    assert look(node)["chat-0-aaaaa"].phase.value == "running"


@pytest.mark.parametrize("what", ["cut", "empty", "gone"])
def test_what_is_left_of_a_damaged_record_goes_when_its_end_is_asked_for(
    node: Node, specs: Specs, what: str
) -> None:
    node.start(specs.shell("chat-0-aaaaa", ["/bin/true"]))
    node.ended("chat-0-aaaaa")
    spec = node.root / "launches" / "chat-0-aaaaa" / "spec.json"
    if what == "gone":
        spec.unlink()
    else:
        spec.write_bytes(spec.read_bytes()[:100] if what == "cut" else b"")
    assert look(node)["chat-0-aaaaa"].record is None
    assert node.stop("chat-0-aaaaa") == "ended"
    assert look(node) == {}


def test_a_launchs_folder_under_another_name_leaves_it_alive_and_unknown(
    node: Node, two: Path
) -> None:
    other = two.rename(two.with_name("chat-0-zzzzz"))
    seen = look(node)
    assert seen["chat-0-aaaaa"].alive
    assert seen["chat-0-aaaaa"].record is None
    other.rename(two)
    poll(lambda: look(node)["chat-0-aaaaa"], lambda shard: shard.record is not None)
    assert look(node)["chat-0-aaaaa"].phase.value == "running"
