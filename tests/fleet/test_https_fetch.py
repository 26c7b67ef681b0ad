"""Fetching over HTTPS from git's own server program: certificates are checked, netrc is used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.errors import GitError
from reconciler.fleet.fetcher import AuthenticationFailed
from reconciler.fleet.source import Source
from tests.fleet.repos import BASE, commit, git
from tests.support.https_git import PASSWORD, USER, Server, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    commit(git(tmp_path / "served" / "fleet"), BASE)
    with serving(tmp_path / "served", tmp_path) as served:
        yield served


@pytest.fixture
def home(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A HOME, and a machine that trusts the server's certificate."""
    made = tmp_path / "home"
    made.mkdir()
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
    return made


def fetch(server: Server, tmp_path: Path) -> Source:
    source = Source.open(server.url, cache_dir=tmp_path / "cache", timeout_s=30)
    try:
        source.fetch()
    finally:
        source.close()
    return source


@pytest.mark.usefixtures("home")
def test_a_fleet_is_fetched_over_https_and_read(server: Server, tmp_path: Path) -> None:
    source = fetch(server, tmp_path)
    assert source.load(source.resolve("main")).placements


def test_a_certificate_that_nobody_trusts_is_refused(
    server: Server, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(GitError, match="certificate"):
        fetch(server, tmp_path)


def test_a_private_repository_is_opened_by_netrc(
    server: Server, home: Path, tmp_path: Path
) -> None:
    server.handler.password = PASSWORD
    netrc = home / ".netrc"
    netrc.write_text(f"machine localhost login {USER} password {PASSWORD}\n")
    netrc.chmod(0o600)
    source = fetch(server, tmp_path)
    assert source.load(source.resolve("main")).placements


@pytest.mark.parametrize("netrc", ["", f"machine localhost login {USER} password wrong\n"])
def test_a_missing_or_wrong_password_is_told_once_and_never_shown(
    server: Server, home: Path, tmp_path: Path, netrc: str
) -> None:
    server.handler.password = PASSWORD
    (home / ".netrc").write_text(netrc)
    (home / ".netrc").chmod(0o600)
    with pytest.raises(AuthenticationFailed, match=r"~/\.netrc") as error:
        fetch(server, tmp_path)
    assert "wrong" not in str(error.value)
