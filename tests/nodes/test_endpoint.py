"""How a node is reached: its document before the fleet's before ~/.ssh/config."""

from __future__ import annotations

from pathlib import Path

import paramiko
import pytest

from reconciler.core.model import Fleet, GpuInventory, Node, NodeSsh, SshSettings
from reconciler.nodes.endpoint import SshDefaults, of_node, parse_jump
from reconciler.nodes.protocol import NodeUnseen

HOME = Path("/home/ada")


def defaults(config: str = "") -> SshDefaults:
    return SshDefaults("ada", HOME, config=paramiko.SSHConfig.from_text(config))


def node(**ssh: object) -> Node:
    gpus = GpuInventory(klass="h100", count=8)
    return Node("gpu-a", "10.0.0.1", "pool", gpus, ssh=NodeSsh(**ssh))  # type: ignore[arg-type]


def fleet(**ssh: object) -> Fleet:
    return Fleet("f", "id", ssh=SshSettings(**ssh))  # type: ignore[arg-type]


def test_nothing_said_means_the_own_user_port_22_and_the_usual_files() -> None:
    found = of_node(fleet(), node(), defaults())
    assert (found.user, found.port, found.address) == ("ada", 22, "10.0.0.1")
    assert found.known_hosts[0] == HOME / ".ssh/known_hosts"
    assert found.jump is None


CONFIG = """
Host 10.0.0.*
  User conf
  Port 2200
  HostKeyAlias cluster
  IdentityFile ~/.ssh/conf_key
  ProxyJump bob@bastion:2201
Host bastion
  HostName 192.0.2.1
  User never
"""


def test_ssh_config_is_used_where_the_repo_says_nothing() -> None:
    found = of_node(fleet(), node(), defaults(CONFIG))
    assert (found.user, found.port, found.host_key_name) == ("conf", 2200, "cluster")
    assert [path.name for path in found.identity_files] == ["conf_key"]
    assert found.jump is not None
    assert (found.jump.user, found.jump.address, found.jump.port) == ("bob", "192.0.2.1", 2201)


def test_the_fleet_wins_over_ssh_config_and_the_node_over_both() -> None:
    said = of_node(fleet(user="fleet", port=2300), node(port=2400), defaults(CONFIG))
    assert (said.user, said.port) == ("fleet", 2400)


def test_an_identity_file_in_the_repo_is_the_only_one_tried() -> None:
    found = of_node(fleet(identity_file="~/.ssh/fleet_key"), node(), defaults(CONFIG))
    assert found.identity_files == (HOME / ".ssh/fleet_key",)
    assert found.identities_only


def test_jump_hosts_chain_in_order() -> None:
    found = of_node(fleet(jump="a,carl@b:2222"), node(), defaults())
    assert found.jump is not None
    assert (found.jump.address, found.jump.user, found.jump.port) == ("b", "carl", 2222)
    assert found.jump.jump is not None
    assert found.jump.jump.address == "a"


def test_jump_hosts_that_go_round_in_circles_are_refused() -> None:
    with pytest.raises(NodeUnseen, match="more than 4 jump hosts"):
        of_node(fleet(jump="a"), node(), defaults("Host a\n ProxyJump b\nHost b\n ProxyJump a\n"))


def test_a_proxy_command_is_refused_by_name() -> None:
    with pytest.raises(NodeUnseen, match="ProxyCommand") as caught:
        of_node(fleet(), node(), defaults("Host *\n ProxyCommand nc %h %p\n"))
    assert "ProxyJump" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bastion", ("", "bastion", 0)),
        ("ada@bastion:22", ("ada", "bastion", 22)),
        ("[2001:db8::1]:2222", ("", "2001:db8::1", 2222)),
        ("ada@[2001:db8::1]", ("ada", "2001:db8::1", 0)),
    ],
)
def test_jump_host_forms(text: str, expected: tuple[str, str, int]) -> None:
    assert parse_jump(text) == expected


def test_an_unbracketed_ipv6_jump_host_is_refused() -> None:
    with pytest.raises(NodeUnseen, match="is not"):
        parse_jump("2001:db8::1")
