"""`reconcile init --from-node`: what a real sshd node says becomes a Node document, and its host
key is one that a person vouched for."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.cli.init import identity_path
from reconciler.errors import SettingsError
from reconciler.nodes.loopback import LoopbackFleet, LoopbackNode, write_key
from tests.cli.conftest import Cli, FleetRepo, Ran


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackNode]:
    with LoopbackFleet(tmp_path_factory.mktemp("nodes"), names=("sim-a",)) as nodes:
        yield nodes["sim-a"]


def fingerprint(key: str) -> str:
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def ask(cli: Cli, node: LoopbackNode, folder: Path, *more: str) -> Ran:
    where = f"{node.user}@{node.address}:{node.port}"
    identity = str(node.identity_file)
    return cli("init", str(folder), "--from-node", where, "--identity", identity, *more)


def test_a_nodes_document_validates_and_reaches_the_node(
    cli: Cli, tmp_path: Path, node: LoopbackNode
) -> None:
    folder = tmp_path / "fleet"
    given = ("--host-key", fingerprint(node.host_key), "--node-name", "sim-a", "--pool", "sim")
    ran = ask(cli, node, folder, *given)
    assert ran.code == 0, ran.err
    text = (folder / "nodes/sim-a.yaml").read_text()
    assert f"host_key: {' '.join(node.host_key.split()[:2])}" in text
    assert f"port: {node.port}" in text
    assert cli("--repo", str(folder), "validate").code == 0
    FleetRepo(folder).commit()
    facts = cli("--repo", str(folder), "doctor", "--output", "json").json["nodes"]["sim-a"]
    assert facts["reachable"].endswith("ms"), facts


def test_a_second_node_joins_the_fleet_and_a_third_look_overwrites_nothing(
    cli: Cli, tmp_path: Path, node: LoopbackNode
) -> None:
    key = ("--host-key", fingerprint(node.host_key))
    assert cli("init", str(tmp_path)).code == 0
    fleet = (tmp_path / "fleet.yaml").read_text()
    assert ask(cli, node, tmp_path, *key).code == 0
    assert (tmp_path / "fleet.yaml").read_text() == fleet
    (path,) = (tmp_path / "nodes").glob("*.yaml")
    assert path.stem == "node-" + node.address.replace(".", "-")
    before = path.read_text()
    again = ask(cli, node, tmp_path, *key, "--pool", "other")
    assert again.code == 1
    assert "exists already" in again.err
    assert path.read_text() == before


def test_a_host_key_that_nobody_vouched_for_is_never_learnt(
    cli: Cli, tmp_path: Path, node: LoopbackNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tmp_path / "known_hosts"
    known.write_text("")
    monkeypatch.setenv("RECONCILE_KNOWN_HOSTS", str(known))
    ran = ask(cli, node, tmp_path / "fleet")
    assert ran.code == 1
    assert "no host key is known" in ran.err
    assert "ssh-keygen -lf" in ran.err
    assert not (tmp_path / "fleet").exists()
    assert known.read_text() == ""


def test_a_key_that_known_hosts_has_is_written_down(
    cli: Cli, tmp_path: Path, node: LoopbackNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"[{node.address}]:{node.port} {node.host_key}\n")
    monkeypatch.setenv("RECONCILE_KNOWN_HOSTS", str(known))
    ran = ask(cli, node, tmp_path / "fleet", "--node-name", "sim-a")
    assert ran.code == 0, ran.err
    assert node.host_key.split()[1] in (tmp_path / "fleet/nodes/sim-a.yaml").read_text()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("another", "shows ssh-ed25519 SHA256:"),
        ("MD5:aa:bb", "is no SHA256 fingerprint"),
    ],
)
def test_another_fingerprint_writes_nothing(
    cli: Cli, tmp_path: Path, node: LoopbackNode, given: str, said: str
) -> None:
    if given == "another":
        given = fingerprint(write_key(tmp_path / "key"))
    ran = ask(cli, node, tmp_path / "fleet", "--host-key", given)
    assert ran.code == 1
    assert said in ran.err
    assert not (tmp_path / "fleet").exists()


def test_a_known_key_that_the_node_does_not_show_writes_nothing(
    cli: Cli, tmp_path: Path, node: LoopbackNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"[{node.address}]:{node.port} {write_key(tmp_path / 'key')}\n")
    monkeypatch.setenv("RECONCILE_KNOWN_HOSTS", str(known))
    ran = ask(cli, node, tmp_path / "fleet")
    assert ran.code == 1
    assert "somebody answers in the machine's place" in ran.err
    assert not (tmp_path / "fleet").exists()


@pytest.mark.parametrize("by_fingerprint", [True, False])
def test_a_revoked_host_key_is_refused_even_by_its_fingerprint(
    cli: Cli,
    tmp_path: Path,
    node: LoopbackNode,
    monkeypatch: pytest.MonkeyPatch,
    by_fingerprint: bool,
) -> None:
    known = tmp_path / "known_hosts"
    line = f"[{node.address}]:{node.port} {node.host_key}\n"
    known.write_text(f"{line}@revoked * {node.host_key}\n")
    monkeypatch.setenv("RECONCILE_KNOWN_HOSTS", str(known))
    more = ("--host-key", fingerprint(node.host_key)) if by_fingerprint else ()
    ran = ask(cli, node, tmp_path / "fleet", *more)
    assert ran.code == 1
    assert f"{known}:2 revokes" in ran.err
    assert not (tmp_path / "fleet").exists()


def test_a_revocation_in_the_accounts_own_file_counts_beside_another_file(
    cli: Cli, tmp_path: Path, node: LoopbackNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    (tmp_path / "home/.ssh/known_hosts").write_text(f"@revoked * {node.host_key}\n")
    known = tmp_path / "known_hosts"
    known.write_text(f"[{node.address}]:{node.port} {node.host_key}\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RECONCILE_KNOWN_HOSTS", str(known))
    ran = ask(cli, node, tmp_path / "fleet")
    assert ran.code == 1
    assert "home/.ssh/known_hosts:1 revokes" in ran.err


@pytest.mark.parametrize("by_fingerprint", [True, False])
def test_an_authority_of_certificates_vouches_for_no_key(
    cli: Cli,
    tmp_path: Path,
    node: LoopbackNode,
    monkeypatch: pytest.MonkeyPatch,
    by_fingerprint: bool,
) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"@cert-authority * {node.host_key}\n")
    monkeypatch.setenv("RECONCILE_KNOWN_HOSTS", str(known))
    other = write_key(tmp_path / "other")
    more = ("--host-key", fingerprint(other)) if by_fingerprint else ()
    ran = ask(cli, node, tmp_path / "fleet", *more)
    assert ran.code == 1
    said = "expected SHA256:" if by_fingerprint else "an authority of host certificates"
    assert said in ran.err
    assert not (tmp_path / "fleet").exists()


def test_its_options_belong_to_from_node(cli: Cli, tmp_path: Path) -> None:
    ran = cli("init", str(tmp_path / "fleet"), "--pool", "h100")
    assert ran.code == 1
    assert "--pool belongs to --from-node" in ran.err


def test_in_a_subfolder_the_node_joins_the_fleet_around_it(
    cli: Cli, tmp_path: Path, node: LoopbackNode
) -> None:
    assert cli("init", str(tmp_path)).code == 0
    key = ("--host-key", fingerprint(node.host_key), "--node-name", "sim-a")
    ran = ask(cli, node, tmp_path / "nodes", *key)
    assert ran.code == 0, ran.err
    assert (tmp_path / "nodes/sim-a.yaml").read_text().startswith("# yaml-language-server: ")
    assert not (tmp_path / "nodes/fleet.yaml").exists()
    assert cli("--repo", str(tmp_path), "validate", "--strict").code == 0


def test_an_identity_is_meant_from_where_it_was_typed_and_written_down_whole(
    cli: Cli, tmp_path: Path, node: LoopbackNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ("--host-key", fingerprint(node.host_key), "--node-name", "sim-a")
    where = f"{node.user}@{node.address}:{node.port}"
    inside = node.identity_file.parent / "inside"
    inside.mkdir(exist_ok=True)
    monkeypatch.chdir(inside)
    relative = ("--from-node", where, "--identity", f"../{node.identity_file.name}")
    ran = cli("init", str(tmp_path), *relative, *key)
    assert ran.code == 0, ran.err
    text = (tmp_path / "nodes/sim-a.yaml").read_text()
    assert f"identity_file: {node.identity_file}\n" in text


def test_a_refused_login_is_answered_with_the_options_of_init(
    cli: Cli, tmp_path: Path, node: LoopbackNode
) -> None:
    write_key(tmp_path / "stranger")
    where = f"{node.user}@{node.address}:{node.port}"
    given = ("--from-node", where, "--identity", str(tmp_path / "stranger"))
    ran = cli("init", str(tmp_path / "f"), *given, "--host-key", fingerprint(node.host_key))
    assert (ran.code, "give USER@HOST and --identity FILE" in ran.err) == (1, True), ran.err
    assert "ssh.identity_file" not in ran.err


def test_an_identity_lies_in_the_home_folder_or_is_named_whole(tmp_path: Path) -> None:
    home, cwd = tmp_path / "home", tmp_path / "home" / "keys"
    (home / ".ssh").mkdir(parents=True)
    cwd.mkdir()
    for path in (home / ".ssh" / "key", cwd / "k", tmp_path / "other"):
        path.write_text("")
    assert identity_path("~/.ssh/key", cwd, home) == "~/.ssh/key"
    assert identity_path("k", cwd, home) == "~/keys/k"
    assert identity_path("../../other", cwd, home) == str(tmp_path / "other")
    assert identity_path("", cwd, home) == ""
    with pytest.raises(SettingsError, match=f"there is no file {cwd}/none"):
        identity_path("none", cwd, home)
