"""`reconcile validate --repo URL` against real servers: failures in words, soon, and code 1."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pygit2
import pytest

from reconciler.nodes.loopback import LoopbackFleet, LoopbackNode, write_key
from tests.cli.conftest import Ran
from tests.fleet.repos import BASE, commit, git
from tests.support.https_git import PASSWORD, USER, Server, serving

Validate = Callable[..., Ran]
TIMEOUT_S = 3
GOOD = "no findings\n"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackNode]:
    with LoopbackFleet(tmp_path_factory.mktemp("nodes"), names=["git"]) as fleet:
        yield fleet["git"]


@pytest.fixture
def repo(tmp_path: Path) -> pygit2.Repository:
    made = git(tmp_path / "served" / "fleet")
    commit(made, BASE)
    return made


@pytest.fixture
def server(tmp_path: Path, repo: pygit2.Repository) -> Iterator[Server]:
    with serving(Path(repo.workdir).parent, tmp_path) as served:
        yield served


@pytest.fixture
def home(tmp_path: Path, node: LoopbackNode) -> Path:
    """A HOME whose key the node lets in, and whose known_hosts has the node."""
    ssh = tmp_path / "home" / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    (ssh / "known_hosts").write_text(f"[{node.address}]:{node.port} {node.host_key}\n")
    (ssh / "id_ed25519").write_bytes(node.identity_file.read_bytes())
    (ssh / "id_ed25519").chmod(0o600)
    return ssh.parent


@pytest.fixture
def validate(home: Path, tmp_path: Path) -> Validate:
    """The command as a person runs it, from a folder that is no fleet."""

    def run(url: str, *more: str, **env: str) -> Ran:
        known = {k: v for k, v in os.environ.items() if k not in ("SSH_AUTH_SOCK", "SSL_CERT_FILE")}
        given = {
            "HOME": str(home),
            "RECONCILE_CACHE_DIR": str(tmp_path / "cache"),
            "RECONCILE_FETCH_TIMEOUT": "30",
            **env,
        }
        done = subprocess.run(
            [sys.executable, "-m", "reconciler.cli", "validate", "--repo", url, *more],
            cwd=tmp_path,
            env={**known, **given},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def silent() -> Iterator[str]:
    """Address and port of a server that accepts and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield f"127.0.0.1:{made.getsockname()[1]}"


def ssh_url(node: LoopbackNode, path: str, user: str = "") -> str:
    return f"ssh://{user or node.user}@{node.address}:{node.port}{path}"


def refused(ran: Ran, *words: str) -> None:
    """One line of error with all of `words`, and nothing that looks like a result."""
    assert (ran.code, ran.out) == (1, ""), ran
    assert ran.err.count("\n") == 1, ran.err
    assert ran.err.startswith("Error: repo '"), ran.err
    for word in words:
        assert word in ran.err


# --- what works -------------------------------------------------------------------------------


def test_a_good_fleet_validates_over_every_kind_of_url(
    validate: Validate, node: LoopbackNode, repo: pygit2.Repository, server: Server
) -> None:
    urls = (ssh_url(node, repo.workdir), server.url, f"file://{repo.workdir}")
    for url in urls:
        ran = validate(url, SSL_CERT_FILE=str(server.certificate))
        assert (ran.code, ran.out) == (0, GOOD), (url, ran)


def test_findings_of_a_remote_end_with_1_and_name_their_files(
    validate: Validate, node: LoopbackNode, repo: pygit2.Repository
) -> None:
    commit(repo, {**BASE, "placements/bad.yaml": "kind: Placement\nname: bad\nprofile: none\n"})
    ran = validate(ssh_url(node, repo.workdir))
    assert ran.code == 1
    assert "placements/bad.yaml:3:" in ran.out
    assert validate(ssh_url(node, repo.workdir), "--ref", "HEAD~1").out == GOOD


# --- over SSH ---------------------------------------------------------------------------------


def test_another_host_key_than_the_known_one_is_named(
    validate: Validate, node: LoopbackNode, repo: pygit2.Repository, home: Path, tmp_path: Path
) -> None:
    known = home / ".ssh" / "known_hosts"
    known.write_text(f"[{node.address}]:{node.port} {write_key(tmp_path / 'other')}\n")
    ran = validate(ssh_url(node, repo.workdir))
    refused(ran, "shows another host key than ssh-ed25519 SHA256:", f"({known}:1)", "in its place")


def test_a_host_that_nobody_vouched_for_is_not_learnt(
    validate: Validate, node: LoopbackNode, repo: pygit2.Repository, home: Path
) -> None:
    known = home / ".ssh" / "known_hosts"
    known.write_text("")
    ran = validate(ssh_url(node, repo.workdir))
    refused(ran, f"no host key is known for [{node.address}]:{node.port}", "never learnt")
    assert known.read_text() == ""


def test_a_refused_login_names_user_and_keys(
    validate: Validate, node: LoopbackNode, repo: pygit2.Repository, home: Path
) -> None:
    key = home / ".ssh" / "id_ed25519"
    ran = validate(ssh_url(node, repo.workdir, user="nobody-here"))
    refused(ran, "for user nobody-here", f"(tried {key})", "the user in the URL")
    key.unlink()
    refused(validate(ssh_url(node, repo.workdir)), f"for user {node.user} (there is none to try)")


def test_a_path_that_is_no_repository_says_to_look_at_it(
    validate: Validate, node: LoopbackNode, server: Server
) -> None:
    refused(validate(ssh_url(node, "/no/such")), "does not appear to be a git repository;")
    elsewhere = server.url.replace("/fleet", "/other")
    ran = validate(elsewhere, SSL_CERT_FILE=str(server.certificate))
    refused(ran, "404", "look at the path in the URL")
    refused(validate("file:///no/such"), "'/no/such'", "look at the path in the URL")


# --- over HTTPS -------------------------------------------------------------------------------


def test_a_certificate_of_nobody_is_refused(validate: Validate, server: Server) -> None:
    refused(validate(server.url), "certificate", "an authority that this machine trusts")


def test_a_trusted_certificate_for_another_host_is_refused(
    validate: Validate, repo: pygit2.Repository, tmp_path: Path
) -> None:
    served = Path(repo.workdir).parent
    with serving(served, tmp_path, names="DNS:elsewhere.example") as server:
        ran = validate(server.url, SSL_CERT_FILE=str(server.certificate))
    refused(ran, "certificate", "it must be for the URL's host")


def test_a_password_that_is_refused_points_to_netrc_and_is_not_shown(
    validate: Validate, server: Server, home: Path
) -> None:
    server.handler.password = PASSWORD
    certificate = {"SSL_CERT_FILE": str(server.certificate)}
    refused(validate(server.url, **certificate), "~/.netrc has no entry for localhost")
    (home / ".netrc").write_text(f"machine localhost login {USER} password not-this-one\n")
    (home / ".netrc").chmod(0o600)
    ran = validate(server.url, **certificate)
    refused(ran, "~/.netrc is not accepted for localhost", "machine HOST login USER")
    assert "not-this-one" not in ran.err
    (home / ".netrc").write_text(f"machine localhost login {USER} password {PASSWORD}\n")
    assert validate(server.url, **certificate).out == GOOD


# --- nobody there -----------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["ssh", "https"])
def test_a_silent_server_ends_at_the_deadline(validate: Validate, silent: str, scheme: str) -> None:
    began = time.monotonic()
    ran = validate(f"{scheme}://{silent}/fleet", RECONCILE_FETCH_TIMEOUT=str(TIMEOUT_S))
    # Beside the deadline: two starts of Python on a machine that may be busy.
    assert TIMEOUT_S <= time.monotonic() - began < TIMEOUT_S + 20
    refused(ran, f"no answer within {TIMEOUT_S} s", "RECONCILE_FETCH_TIMEOUT")


@pytest.mark.parametrize("scheme", ["ssh", "https"])
def test_a_host_that_is_not_there_is_told_at_once(validate: Validate, scheme: str) -> None:
    refused(validate(f"{scheme}://no-such-host.invalid/x"), "resolve", "the host's name in the URL")
    with socket.create_server(("127.0.0.1", 0)) as made:
        port = made.getsockname()[1]
    refused(validate(f"{scheme}://127.0.0.1:{port}/x"), "failed to connect", "port in the URL")


@pytest.mark.parametrize("text", ["3m", "0", "-1", "nan", "1e9"])
def test_a_deadline_that_is_none_is_refused(validate: Validate, text: str) -> None:
    ran = validate("file:///x", RECONCILE_FETCH_TIMEOUT=text)
    assert ran.code == 1
    assert f"RECONCILE_FETCH_TIMEOUT: {text!r} is no number of seconds" in ran.err
