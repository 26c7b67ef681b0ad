"""`reconcile command` shows every rank without a node, and a shell reads it back word for word."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from reconciler.core import build
from tests.engines import cases


def described(data: dict[str, Any], engine: str, name: str = "chat") -> build.Description:
    """The description of the case's placement or profile."""
    return build.describe(cases.make(data, engine=engine).desired, name)


def test_a_placement_is_shown_on_nodes_that_it_allows() -> None:
    shown = described({"profile": {"gpus_per_node": 8, "nodes": 2, "parallel": {"tp": 16}}}, "vllm")
    assert [(rank.node, rank.address) for rank in shown.ranks] == [
        ("gpu-a", "10.0.0.1"),
        ("gpu-b", "10.0.0.2"),
    ]
    assert shown.ranks[0].commands[0].env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"


def test_a_placement_that_no_node_allows_is_shown_on_stand_ins() -> None:
    shown = described({"placement": {"pool": "none"}}, "vllm")
    assert [(rank.node, rank.address) for rank in shown.ranks] == [("node-0", "192.0.2.1")]


def test_the_start_order_says_who_waits_for_whom() -> None:
    shown = described({"profile": {"nodes": 3}, "model": {"path": "/m.gguf"}}, "llamacpp")
    assert shown.start_order == (
        "rank 0 on gpu-a: serve, once 10.0.0.2 accepts at port 20001",
        "rank 1 on gpu-b: rpc, once 10.0.0.3 accepts at port 20001",
        "rank 2 on gpu-c: rpc, at once",
    )


def test_readiness_and_stop_are_said() -> None:
    [rank] = described({}, "vllm").ranks
    assert rank.ready == "GET http://10.0.0.1:20000/health answers 200, and /v1/models names m"
    assert rank.stop.startswith("TERM, then KILL after 30 s; look for VLLM::EngineCore")


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(
        ValueError, match=r"nope: no placement and no profile .* \(there are: chat\)"
    ):
        described({}, "vllm", "nope")


def test_a_launch_that_cannot_be_built_says_why() -> None:
    data = {"profile": {"nodes": 2}, "placement": {"fabric": "x"}}
    data["nodes"] = [{"fabrics": {"x": {"kind": "ib"}}}] * 2
    with pytest.raises(ValueError, match="names no adapter"):
        described(data, "vllm")


def test_a_shell_reads_the_words_back_byte_for_byte() -> None:
    hostile = ["it's", "a b", "$HOME", "`id`", "l1\nl2", "*", "~", "back\\slash", '{"a": 1}', "ü中"]
    command = ["printf", "%s\\0", *hostile]
    shown = described({"profile": {"command": command, "gpus_per_node": 0}}, "command")
    text = build.shell(shown)
    printed = subprocess.run(["bash", "-c", text], capture_output=True, check=True).stdout
    assert printed.decode().split("\0")[:-1] == hostile


def test_rendered_files_are_written_before_the_command() -> None:
    data = {
        "profile": {
            "command": ["x"],
            "files": [{"path": "a/b.json", "content": '{"n": "$(rank)"}'}],
        }
    }
    text = build.shell(described(data, "command"))
    assert 'printf %s \'{"n": "0"}\' > "$DIR"\'/files/a/b.json\'' in text


def test_what_is_pasted_finds_its_own_files_and_leaves_the_records_alone() -> None:
    names = ["$(launch.dir)/files/a b.txt", "it's $(launch.dir)"]
    files = [{"path": "a b.txt", "content": "in $(launch.dir) it's"}]
    profile = {"command": ["sh", "-c", 'cat "$1"; echo "$2"', "sh", *names], "files": files}
    shown = described({"profile": {**profile, "gpus_per_node": 0}}, "command")
    text = build.shell(shown)
    printed = subprocess.run(["sh", "-c", text], capture_output=True, check=True, text=True).stdout
    folder = printed.partition("in ")[2].partition(" it's")[0]
    assert printed == f"in {folder} it'sit's {folder}\n"
    assert folder.startswith("/")
    assert "launches" not in folder


def test_secrets_are_read_from_their_files_and_never_shown() -> None:
    text = build.shell(described({"profile": {"secrets": {"HF_TOKEN": "/etc/s/hf"}}}, "vllm"))
    assert 'HF_TOKEN="$(cat /etc/s/hf)"' in text
