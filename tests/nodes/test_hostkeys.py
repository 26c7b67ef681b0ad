"""known_hosts files as OpenSSH writes them; the hashed lines come from ssh-keygen itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from reconciler.nodes.hostkeys import KnownHosts, fingerprint, host_name, parse_key
from reconciler.nodes.loopback import write_key


@pytest.fixture
def keys(tmp_path: Path) -> list[str]:
    return [write_key(tmp_path / f"key{i}") for i in range(3)]


def read(tmp_path: Path, *lines: str) -> KnownHosts:
    path = tmp_path / "known_hosts"
    path.write_text("\n".join(lines) + "\n")
    return KnownHosts([path])


def found(known: KnownHosts, name: str) -> list[str]:
    return [f"{key.type} {key.base64}" for key in known.lookup(name)]


def test_names_ports_and_several_keys_are_found(tmp_path: Path, keys: list[str]) -> None:
    a, b, c = keys
    known = read(
        tmp_path, "# a comment", f"gpu-a,10.0.0.1 {a} root@gpu-a", f"[gpu-a]:2222 {b}", f"gpu-a {c}"
    )
    assert found(known, "gpu-a") == [a, c]
    assert found(known, "10.0.0.1") == [a]
    assert found(known, host_name("GPU-A", 2222)) == [b]
    assert found(known, "gpu-b") == []


def test_hashed_names_are_found(tmp_path: Path, keys: list[str]) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"gpu-a {keys[0]}\n[10.0.0.1]:2222 {keys[1]}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(path)], check=True, capture_output=True)
    assert "gpu-a" not in path.read_text()
    known = KnownHosts([path])
    assert found(known, "gpu-a") == [keys[0]]
    assert found(known, "[10.0.0.1]:2222") == [keys[1]]
    assert found(known, "10.0.0.1") == []


def test_patterns_and_their_exceptions(tmp_path: Path, keys: list[str]) -> None:
    known = read(tmp_path, f"*.lab,!bad.lab {keys[0]}", f"[*.lab]:22?? {keys[1]}")
    assert found(known, "a.lab") == [keys[0]]
    assert found(known, "bad.lab") == []
    assert found(known, "[a.lab]:2222") == [keys[1]]


def test_a_revoked_key_is_no_key(tmp_path: Path, keys: list[str]) -> None:
    known = read(tmp_path, f"gpu-a {keys[0]}", f"@revoked * {keys[0]}", f"gpu-a {keys[1]}")
    assert found(known, "gpu-a") == [keys[1]]


def test_a_bad_line_costs_only_itself(tmp_path: Path, keys: list[str]) -> None:
    known = read(
        tmp_path,
        "gpu-a ssh-ed25519 not-base64!",
        "gpu-a ssh-ed25519",
        f"gpu-a ssh-rsa {keys[0].split()[1]}",
        "|1|broken gpu-a",
        f"@cert-authority * {keys[1]}",
        f"gpu-a {keys[2]}",
    )
    assert found(known, "gpu-a") == [keys[2]]


def test_an_absent_file_has_no_lines(tmp_path: Path) -> None:
    assert KnownHosts([tmp_path / "absent"]).lookup("gpu-a") == []


def test_the_fingerprint_is_the_one_that_ssh_keygen_shows(tmp_path: Path) -> None:
    public = write_key(tmp_path / "key")
    (tmp_path / "key.pub").write_text(public)
    argv = ["ssh-keygen", "-l", "-f", str(tmp_path / "key.pub")]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert said.split()[1] == parse_key(public, "").fingerprint
    assert fingerprint(b"").startswith("SHA256:")


@pytest.mark.parametrize("text", ["", "ssh-ed25519", "ssh-ed25519 %%%", "ssh-rsa AAAAC3NzaC1lZDI1"])
def test_a_host_key_that_cannot_be_read_says_so(text: str) -> None:
    with pytest.raises(ValueError, match=r"host key|base64|not of type"):
        parse_key(text, "the inventory")
