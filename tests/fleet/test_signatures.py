"""Each way in which a commit can be signed, or not, has a stated result (real keys, real git)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.fleet.openpgp import expiry
from reconciler.fleet.program import ENDED_BY_US, MAX_OUTPUT, run_program
from reconciler.fleet.signatures import Signers
from reconciler.fleet.signed import Form, Unsigned, split
from tests.fleet.signing import (
    DAY,
    JUNE,
    Gpg,
    Repo,
    allowed,
    by_gpg,
    by_ssh,
    keyring,
    ssh_key,
)

needs_gpg = pytest.mark.skipif(shutil.which("gpg") is None, reason="gpg (Debian's gnupg) is absent")

NOW = JUNE + 30 * DAY


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo.make(tmp_path)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return ssh_key(tmp_path, "ada")


def ssh(file: Path, *, now: float = NOW, revoked: Path | None = None) -> Signers:
    return Signers(file, revoked, unix_s=lambda: now)


# --- SSH --------------------------------------------------------------------------------------


def test_a_commit_by_an_allowed_ssh_key_is_good_and_says_whose(repo: Repo, key: Path) -> None:
    signers = ssh(allowed(repo.home / "allowed", ("ada@example.com", "", key)))
    found = signers.check(repo.commit(*by_ssh(key)))
    assert (found.at_commit, found.now, found.who, found.why) == (True, True, "ada@example.com", "")
    assert found.key.startswith("SSH key SHA256:")


def test_an_unsigned_commit_says_so(repo: Repo, key: Path) -> None:
    signers = ssh(allowed(repo.home / "allowed", ("ada@example.com", "", key)))
    found = signers.check(repo.commit())
    assert (found.at_commit, found.now, found.words) == (False, False, "it is not signed")


def test_a_key_that_is_not_listed_is_named(repo: Repo, key: Path, tmp_path: Path) -> None:
    """A merge that the forge signed by its own key is one of these, unless that key is listed."""
    forge = ssh_key(tmp_path, "forge")
    repo.commit(*by_ssh(key))
    repo.git("switch", "-q", "-c", "side")
    repo.commit(*by_ssh(key))
    repo.git("switch", "-q", "main")
    repo.git(*by_ssh(forge), "merge", "-q", "--no-ff", "-S", "-m", "Merge pull request", "side")
    only_ada = ssh(allowed(repo.home / "allowed", ("ada@example.com", "", key)))
    found = only_ada.check(repo.raw())
    assert (found.at_commit, found.now) == (False, False)
    assert found.why == "its key is not among the allowed signers"
    assert found.key.startswith("SSH key SHA256:")
    both = (("ada@example.com", "", key), ("forge", "", forge))
    assert ssh(allowed(repo.home / "both", *both)).check(repo.raw()).now


@pytest.mark.parametrize(
    ("options", "made", "then", "now", "why"),
    [
        ('valid-before="20240615"', JUNE, True, False, "no longer is"),
        ('valid-before="20240515"', JUNE, False, False, "not among the allowed signers"),
        ('valid-after="20240615"', JUNE, False, True, "was not when the commit was made"),
        ('valid-after="20240515"', JUNE, True, True, ""),
        ('namespaces="file"', JUNE, False, False, "not permitted"),
    ],
    ids=["expired since", "expired before", "not valid yet", "valid", "for files only"],
)
def test_the_time_of_a_key_is_judged_at_the_commit_and_now(
    repo: Repo, key: Path, options: str, made: int, then: bool, now: bool, why: str
) -> None:
    signers = ssh(allowed(repo.home / "allowed", ("ada@example.com", options, key)))
    found = signers.check(repo.commit(*by_ssh(key), at=made))
    assert (found.at_commit, found.now) == (then, now), found
    assert why in found.why
    assert bool(found.why) is not (then and now)


def test_a_revoked_key_is_good_at_no_time(repo: Repo, key: Path) -> None:
    file = allowed(repo.home / "allowed", ("ada@example.com", "", key))
    signers = ssh(file, revoked=key.with_suffix(".pub"))
    found = signers.check(repo.commit(*by_ssh(key)))
    assert (found.at_commit, found.now, found.why) == (False, False, "its key is revoked")


def test_a_commit_that_was_changed_after_it_was_signed_is_refused(repo: Repo, key: Path) -> None:
    signers = ssh(allowed(repo.home / "allowed", ("ada@example.com", "", key)))
    raw = repo.commit(*by_ssh(key))
    found = signers.check(raw.replace(b"a change", b"a chance"))
    assert (found.at_commit, found.now) == (False, False)
    assert "does not fit the commit" in found.why


def test_a_list_of_keys_that_is_gone_makes_nothing_good(repo: Repo, key: Path) -> None:
    file = allowed(repo.home / "allowed", ("ada@example.com", "", key))
    raw = repo.commit(*by_ssh(key))
    file.unlink()
    found = ssh(file).check(raw)
    assert (found.at_commit, found.now) == (False, False)
    assert "Unable to open allowed keys file" in found.why


@pytest.mark.parametrize("text", ["", "\n# ada ssh-ed25519 AAAAC3\n", "hello there\n", "\x00\xff"])
def test_a_list_without_a_key_is_told_as_that(repo: Repo, key: Path, text: str) -> None:
    file = repo.home / "allowed"
    file.write_text(text)
    found = ssh(file).check(repo.commit(*by_ssh(key)))
    assert (found.at_commit, found.now) == (False, False)
    assert found.why == f"{file} holds no key"


# --- OpenPGP ----------------------------------------------------------------------------------


@pytest.fixture
def gpg() -> Iterator[Gpg]:
    with keyring() as made:
        yield made


AT = "20240601T000000"
"""JUNE, as gpg writes it."""


@needs_gpg
def test_a_commit_by_a_subkey_is_good_where_the_primary_key_is_given(repo: Repo, gpg: Gpg) -> None:
    gpg.key("Ada <ada@x>", at="20240101T000000", subkey="never")
    primary, subkey = gpg.fingerprints("Ada <ada@x>")
    signers = Signers(openpgp=gpg.export(repo.home / "keys", primary))
    found = signers.check(repo.commit(*by_gpg(gpg, subkey, AT)))
    assert (found.at_commit, found.now, found.who) == (True, True, "Ada <ada@x>")
    assert found.key == f"OpenPGP key {subkey}, a subkey of {primary}"


@needs_gpg
@pytest.mark.parametrize(
    ("key_ends", "subkey_ends", "then"),
    [
        ("20240615T000000", "", True),
        ("20240515T000000", "", False),
        ("never", "20240615T000000", True),
        ("20240615T000000", "never", True),
    ],
    ids=["since", "before", "its subkey since", "its primary since"],
)
def test_an_openpgp_key_that_has_expired_is_judged_by_when_the_commit_was_made(
    repo: Repo, gpg: Gpg, key_ends: str, subkey_ends: str, then: bool
) -> None:
    """It needs a machine whose clock is past June 2024: gpg has no other now than the machine's."""
    gpg.key("Ada <ada@x>", at="20240101T000000", expires=key_ends, subkey=subkey_ends)
    signing = gpg.fingerprints("Ada <ada@x>")[-1]
    signers = Signers(openpgp=gpg.export(repo.home / "keys", "Ada"))
    made_at = AT if then else "20240501T000000"
    found = signers.check(repo.commit(*by_gpg(gpg, signing, made_at)))
    assert (found.at_commit, found.now) == (then, False), found
    assert "expired" in found.why
    assert signing in found.key


@needs_gpg
def test_an_openpgp_key_that_is_not_given_is_named(repo: Repo, gpg: Gpg) -> None:
    gpg.key("Ada <ada@x>", at="20240101T000000")
    other = gpg.key("Forge <web@forge>", at="20240101T000000")
    signers = Signers(openpgp=gpg.export(repo.home / "keys", "Ada"))
    found = signers.check(repo.commit(*by_gpg(gpg, other, AT)))
    assert (found.at_commit, found.now) == (False, False)
    assert found.words == f"its key is not among the given keys; signed by OpenPGP key {other}"


@needs_gpg
def test_a_revoked_openpgp_key_is_good_at_no_time(repo: Repo, gpg: Gpg) -> None:
    made = gpg.key("Ada <ada@x>", at="20240101T000000")
    raw = repo.commit(*by_gpg(gpg, made, AT))
    cert = (gpg.home / "openpgp-revocs.d" / f"{made}.rev").read_text()
    gpg("--import", stdin=cert.replace(":-----BEGIN", "-----BEGIN"))
    found = Signers(openpgp=gpg.export(repo.home / "keys", "Ada")).check(raw)
    assert (found.at_commit, found.now, found.why) == (False, False, "its key is revoked")


@needs_gpg
def test_an_openpgp_signature_over_something_else_is_refused(repo: Repo, gpg: Gpg) -> None:
    made = gpg.key("Ada <ada@x>", at="20240101T000000")
    raw = repo.commit(*by_gpg(gpg, made, AT))
    signers = Signers(openpgp=gpg.export(repo.home / "keys", "Ada"))
    assert signers.check(raw).now
    found = signers.check(raw.replace(b"a change", b"a chance"))
    assert (found.at_commit, found.now) == (False, False)
    assert found.why == "the signature does not fit the commit"
    assert found.key


@needs_gpg
def test_a_file_without_openpgp_keys_makes_nothing_good(repo: Repo, gpg: Gpg) -> None:
    made = gpg.key("Ada <ada@x>", at="20240101T000000")
    raw = repo.commit(*by_gpg(gpg, made, AT))
    (repo.home / "keys").write_text("ssh-ed25519 AAAA\n")
    found = Signers(openpgp=repo.home / "keys").check(raw)
    assert (found.at_commit, found.now) == (False, False)
    assert "holds no OpenPGP key" in found.why


@needs_gpg
def test_the_keys_of_one_form_do_not_let_the_other_through(repo: Repo, gpg: Gpg, key: Path) -> None:
    made = gpg.key("Ada <ada@x>", at="20240101T000000")
    keys = gpg.export(repo.home / "keys", "Ada")
    file = allowed(repo.home / "allowed", ("ada@example.com", "", key))
    by_key, by_pgp = repo.commit(*by_ssh(key)), repo.commit(*by_gpg(gpg, made, AT))
    found = Signers(openpgp=keys).check(by_key)
    assert "its signature is of SSH" in found.why
    assert found.key.startswith("SSH key SHA256:")
    assert "its signature is of OpenPGP" in ssh(file).check(by_pgp).why
    both = Signers(file, openpgp=keys)
    assert both.check(by_key).now
    assert both.check(by_pgp).now


def test_the_end_of_a_subkey_is_also_that_of_its_primary_key() -> None:
    listed = (
        "tru:t:0\npub:-:255:22:AA:100:900:::::\nfpr:::::::::PRIMARY:\nuid:-::::100\n"
        "sub:-:255:22:BB:100:500:::::\nfpr:::::::::OTHER:\n"
        "sub:-:255:22:CC:100::::::\nfpr:::::::::SUB:\n"
    )
    assert expiry(listed, "SUB", "PRIMARY") == 900
    assert expiry(listed, "OTHER", "PRIMARY") == 500
    assert expiry(listed, "NONE", "NONE") == 0


# --- The commit itself ------------------------------------------------------------------------


HEAD = b"tree 1\nauthor A <a> 1 +0\ncommitter A <a> 1700000000 +0100\n"
SIGNED = HEAD + b"gpgsig -----BEGIN SSH SIGNATURE-----\n AAAA\n -----END SSH SIGNATURE-----\n"


def test_what_was_signed_is_the_commit_without_its_signature() -> None:
    found = split(SIGNED + b"encoding x\n\nwords\n\n gpgsig no\n")
    assert found.payload == HEAD + b"encoding x\n\nwords\n\n gpgsig no\n"
    assert found.signature.splitlines()[1] == b"AAAA"
    assert (found.form, found.committed_s) == (Form.SSH, 1_700_000_000)


@pytest.mark.parametrize(
    "raw",
    [
        HEAD + b"\nwords\ngpgsig -----BEGIN PGP SIGNATURE-----\n",
        SIGNED + b"gpgsig -----BEGIN PGP SIGNATURE-----\n -----END\n\nwords",
        SIGNED + b"gpgsig-sha256 -----BEGIN PGP SIGNATURE-----\n -----END\n\nwords",
        SIGNED.replace(b"1700000000", b"never") + b"\nwords",
        b"",
    ],
    ids=["in the message", "two", "two kinds", "no time", "empty"],
)
def test_a_commit_with_no_or_several_signatures_is_unsigned(raw: bytes) -> None:
    with pytest.raises(Unsigned):
        split(raw)


@pytest.mark.parametrize(
    ("begin", "said"),
    [(b"SIGNED MESSAGE", "X.509"), (b"CAT", "unknown form"), (b"SSH SIGNATURE", "only OpenPGP")],
)
def test_a_form_that_is_not_checked_is_named(begin: bytes, said: str, tmp_path: Path) -> None:
    raw = SIGNED.replace(b"SSH SIGNATURE", begin) + b"\nwords"
    found = Signers(openpgp=tmp_path).check(raw)
    assert said in found.why
    assert (found.at_commit, found.now) == (False, False)


# --- The program that checks ------------------------------------------------------------------


def test_a_program_that_hangs_or_floods_is_ended_and_its_input_is_read() -> None:
    assert run_program(["sleep", "60"], timeout_s=0.3).code == ENDED_BY_US
    assert run_program(["cat", "/dev/zero"], timeout_s=30).code == ENDED_BY_US
    assert run_program(["cat"], b"words").out == "words"
    assert len(run_program(["head", "-c", "60000", "/dev/zero"]).out) == 60_000 < MAX_OUTPUT


def test_without_the_program_nothing_is_good_and_what_to_install_is_said(
    repo: Repo, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = allowed(repo.home / "allowed", ("ada@example.com", "", key))
    raw = repo.commit(*by_ssh(key))
    monkeypatch.setenv("PATH", str(repo.home))
    found = ssh(file).check(raw)
    assert (found.at_commit, found.now) == (False, False)
    assert "install openssh-client" in found.why
    pgp = raw.replace(b"SSH SIGNATURE", b"PGP SIGNATURE")
    assert "install gnupg" in Signers(openpgp=file).check(pgp).why


@needs_gpg
@pytest.mark.parametrize("ends", ["the key", "the signature"])
def test_a_revoked_key_is_good_at_no_time_also_where_something_has_ended(
    repo: Repo, tmp_path: Path, ends: str
) -> None:
    """gpg has one word for a signature, and an end comes before a revocation."""
    with keyring() as gpg:
        key = gpg.key(
            "Ada <ada@x>",
            at="20240101T000000",
            expires="2024-12-31" if ends == "the key" else "never",
        )
        options = list(by_gpg(gpg, key, "20240601T000000"))
        if ends == "the signature":
            program = Path(options[1].partition("=")[2])
            program.write_text(
                program.read_text().replace("--batch", "--batch --default-sig-expire 1d")
            )
        raw = repo.commit(*options)
        good = Signers(openpgp=gpg.export(tmp_path / "before", "Ada <ada@x>")).check(raw)
        assert (good.at_commit, good.now) == (True, False)
        file = gpg.home / "openpgp-revocs.d" / f"{key}.rev"
        gpg("--import", stdin=file.read_text().replace(":-----BEGIN", "-----BEGIN"))
        found = Signers(openpgp=gpg.export(tmp_path / "after", "Ada <ada@x>")).check(raw)
    assert (found.at_commit, found.now, found.why) == (False, False, "its key is revoked")
