"""Fetching over real SSH: our key is accepted, a host key that is not known is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pygit2
import pytest

from reconciler.fleet.fetcher import AuthenticationFailed
from reconciler.fleet.source import Source
from reconciler.nodes.loopback import LoopbackFleet, LoopbackNode
from tests.fleet.repos import BASE, commit, git

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackNode]:
    with LoopbackFleet(tmp_path_factory.mktemp("nodes"), names=["git"]) as fleet:
        yield next(iter(fleet.nodes.values()))


@pytest.fixture
def repo(tmp_path: Path) -> pygit2.Repository:
    made = git(tmp_path / "fleet")
    commit(made, BASE)
    return made


def home(
    tmp_path: Path, node: LoopbackNode, *, host_key: str, key: bool = True, public: bool = True
) -> Path:
    """A HOME as a person has it: a key, and the hosts that are known."""
    ssh = tmp_path / "home" / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    (ssh / "known_hosts").write_text(f"[{node.address}]:{node.port} {host_key}\n")
    if key:
        private = ssh / "id_ed25519"
        private.write_bytes(node.identity_file.read_bytes())
        private.chmod(0o600)
        if public:
            own = node.identity_file.with_name("authorized_keys")
            (ssh / "id_ed25519.pub").write_bytes(own.read_bytes())
    return ssh.parent


def fetched(node: LoopbackNode, repo: pygit2.Repository, tmp_path: Path) -> Source:
    url = f"ssh://{node.user}@{node.address}:{node.port}{repo.workdir}"
    source = Source.open(url, cache_dir=tmp_path / "cache", timeout_s=30)
    try:
        source.fetch()
    finally:
        source.close()
    return source


@pytest.mark.parametrize("public", [True, False])
def test_a_fleet_is_fetched_over_ssh_and_read(
    node: LoopbackNode,
    repo: pygit2.Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    public: bool,
) -> None:
    own = home(tmp_path, node, host_key=node.host_key, public=public)
    monkeypatch.setenv("HOME", str(own))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    source = fetched(node, repo, tmp_path)
    assert source.load(source.resolve("main")).placements


OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGHmbPEiG0owmJkWrNjiCT17tx9CiolHcWBpjh1fRqOw"


@pytest.mark.parametrize("known", ["another", "none"])
def test_a_host_key_that_is_not_known_is_refused_and_never_learnt(
    node: LoopbackNode,
    repo: pygit2.Repository,
    known: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = home(tmp_path, node, host_key=OTHER)
    if known == "none":
        (own / ".ssh/known_hosts").write_text("")
    before = (own / ".ssh/known_hosts").read_text()
    monkeypatch.setenv("HOME", str(own))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(AuthenticationFailed, match="known_hosts"):
        fetched(node, repo, tmp_path)
    assert (own / ".ssh/known_hosts").read_text() == before


def test_without_a_key_that_is_accepted_it_says_so(
    node: LoopbackNode, repo: pygit2.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home(tmp_path, node, host_key=node.host_key, key=False)))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(AuthenticationFailed, match="no key is accepted"):
        fetched(node, repo, tmp_path)


@pytest.mark.parametrize("name", ["*", "elsewhere"])
def test_a_revoked_host_key_is_refused_though_another_line_has_it(
    node: LoopbackNode,
    repo: pygit2.Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    own = home(tmp_path, node, host_key=node.host_key)
    monkeypatch.setenv("HOME", str(own))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with (own / ".ssh/known_hosts").open("a") as known:
        known.write(f"@revoked {name} {node.host_key}\n")
    with pytest.raises(AuthenticationFailed, match=r"known_hosts:1 has SHA256:.*known_hosts:2 rev"):
        fetched(node, repo, tmp_path)


def test_an_authority_of_host_certificates_lets_no_host_in(
    node: LoopbackNode, repo: pygit2.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = home(tmp_path, node, host_key=node.host_key)
    monkeypatch.setenv("HOME", str(own))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (own / ".ssh/known_hosts").write_text(f"@cert-authority * {node.host_key}\n")
    with pytest.raises(AuthenticationFailed, match="names an authority of host certificates"):
        fetched(node, repo, tmp_path)
