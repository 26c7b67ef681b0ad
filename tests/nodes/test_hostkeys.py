"""known_hosts files as OpenSSH writes them; the hashed lines come from ssh-keygen itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from reconciler.hostkeys import KnownHosts, fingerprint, host_name, parse_key
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


def test_a_revocation_counts_whichever_host_it_names_and_whatever_file_has_it(
    tmp_path: Path, keys: list[str]
) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.write_text(f"gpu-a {keys[0]}\n")
    other.write_text(f"gpu-a {keys[1]}\n@revoked elsewhere {keys[0]}\n")
    known = KnownHosts([own], revoking=[other, own])
    assert found(known, "gpu-a") == [], "of the other file only what it revokes counts"
    assert known.revoked(keys[0].split()[1]) == f"{other}:2"
    assert known.revoked(keys[1].split()[1]) == ""
    assert f"{own}:1 has SHA256:" in known.why_none("GPU-A")
    assert f"which {other}:2 revokes" in known.why_none("gpu-a")


def test_a_key_is_told_by_its_bytes_however_its_base64_is_written(
    tmp_path: Path, keys: list[str]
) -> None:
    ecdsa = tmp_path / "ecdsa"
    argv = ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(ecdsa)]
    subprocess.run(argv, check=True, capture_output=True)
    kind, text = ecdsa.with_suffix(".pub").read_text().split()[:2]
    assert text.endswith("="), "an ECDSA key of 256 bits ends within a base64 quantum"
    last = text.rstrip("=")[-1]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    twin = text.rstrip("=")[:-1] + alphabet[alphabet.index(last) ^ 1] + "="
    known = read(tmp_path, f"gpu-a {kind} {text}", f"@revoked * {kind} {twin}")
    assert twin != text
    assert found(known, "gpu-a") == []


def test_an_authority_of_certificates_is_no_hosts_key_and_is_told(
    tmp_path: Path, keys: list[str]
) -> None:
    known = read(tmp_path, f"@cert-authority *.lab,!bad.lab {keys[0]}", f"b.lab {keys[1]}")
    assert found(known, "a.lab") == []
    assert "known_hosts:1 names an authority of host certificates" in known.why_none("a.lab")
    assert known.why_none("bad.lab") == known.why_none("elsewhere") == ""
    assert found(known, "b.lab") == [keys[1]]


def test_a_hashed_authority_names_its_host(tmp_path: Path, keys: list[str]) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"gpu-a {keys[0]}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(path)], check=True, capture_output=True)
    path.write_text(f"@cert-authority {path.read_text()}")
    known = KnownHosts([path])
    assert found(known, "gpu-a") == []
    assert "authority" in known.why_none("gpu-a")
    assert known.why_none("gpu-b") == ""
