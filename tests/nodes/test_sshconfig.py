"""~/.ssh/config as people have it is followed as ssh does, or one sentence says why it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.core.model import Fleet, GpuInventory, Node
from reconciler.core.observed import LookError
from reconciler.errors import SettingsError
from reconciler.nodes import sshconfig
from reconciler.nodes.endpoint import Endpoint, SshDefaults, of_node
from reconciler.nodes.protocol import NodeUnseen


def endpoint(home: Path, text: str | bytes, **files: str) -> Endpoint:
    """How node gpu-a is reached with this ~/.ssh/config and these files beside it."""
    folder = home / ".ssh"
    folder.mkdir(exist_ok=True)
    (folder / "config").write_bytes(text if isinstance(text, bytes) else text.encode())
    for name, content in files.items():
        (folder / f"{name}.conf").write_text(content)
    config = sshconfig.read(folder / "config", home)
    node = Node("gpu-a", "gpu-a", "pool", GpuInventory(klass="h100", count=8))
    return of_node(Fleet("f", "id"), node, SshDefaults("ada", home, config=config))


USER = "Host gpu-*\n  User ops\n"


@pytest.mark.parametrize(
    "text",
    [
        "Include a.conf\n",
        "Include *.conf\n",
        'Include "~/.ssh/a.conf"\n',
        "Include nothing.conf a.conf\n",
        "Host other\n  User x\nHost gpu-*\n  Include a.conf\n",
    ],
)
def test_included_files_count(tmp_path: Path, text: str) -> None:
    assert endpoint(tmp_path, text, a="User ops\n").user == "ops"


def test_what_follows_an_include_belongs_to_the_block_around_it(tmp_path: Path) -> None:
    text = "Host other\n  Include a.conf\n  User x\n"
    assert endpoint(tmp_path, text, a="Host gpu-*\n  Port 23\n").user == "ada"
    assert endpoint(tmp_path, text, a="Include b.conf\n", b="User y\n").user == "ada"


def test_files_that_include_each_other_end(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="include each other"):
        endpoint(tmp_path, "Include a.conf\n", a="Include a.conf\n")


@pytest.mark.parametrize(
    "block",
    [
        "Match host gpu-*",
        "Match all",
        "Match originalhost gpu-a",
        "Match final host gpu-*",
    ],
)
def test_match_blocks_count(tmp_path: Path, block: str) -> None:
    assert endpoint(tmp_path, f"{block}\n  User ops\n").user == "ops"


@pytest.mark.parametrize(
    "block", ["Match tagged x", "Match localnetwork 10.0.0.0/8", 'Match host gpu-a exec "true"']
)
def test_a_match_block_that_cannot_be_asked_is_left_out_and_the_rest_counts(
    tmp_path: Path, block: str
) -> None:
    assert endpoint(tmp_path, f"{block}\n  User x\n{USER}").user == "ops"


def test_proxy_command_none_is_none(tmp_path: Path) -> None:
    assert endpoint(tmp_path, f"{USER}  ProxyCommand none\n").user == "ops"


def test_a_comment_that_is_no_utf8_costs_nothing(tmp_path: Path) -> None:
    assert endpoint(tmp_path, b"# caf\xe9\n" + USER.encode()).user == "ops"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Host *\n  Port abc\n", "Port 'abc'"),
        ("Host *\n  ProxyCommand ssh -W %h:%p b\n", "ProxyCommand"),
        (
            "Host *\n  CanonicalizeHostname yes\n  CanonicalDomains x.invalid\n"
            "  CanonicalizeFallbackLocal no\n",
            "cannot be followed",
        ),
    ],
)
def test_what_cannot_be_followed_costs_its_node_alone(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(NodeUnseen, match=said) as refused:
        endpoint(tmp_path, text)
    assert refused.value.kind is LookError.UNREACHABLE


def test_a_line_that_ssh_refuses_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"config:2: no keyword and value: 'nonsense'"):
        endpoint(tmp_path, "Host *\nnonsense\n")


def test_a_file_that_is_absent_or_a_folder_says_nothing(tmp_path: Path) -> None:
    assert sshconfig.read(tmp_path / "absent", tmp_path) is None
    assert sshconfig.read(tmp_path, tmp_path) is None
