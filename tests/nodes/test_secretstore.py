"""The reconciler's own secrets: what is read, what is refused, and no message shows a value."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reconciler.nodes.secretstore import MAX_BYTES, SecretError, SecretStore, Snapshot
from reconciler.settings import Settings

CANARY = b"canary-51be"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "secrets"
    made.mkdir(mode=0o700)
    return made


def put(folder: Path, content: bytes, mode: int = 0o600, name: str = "token") -> SecretStore:
    path = folder / name
    path.write_bytes(content)
    path.chmod(mode)
    return SecretStore(folder)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"abc", "abc"),
        (b"abc\n", "abc"),
        (b"abc\r\n", "abc"),
        (b"a b\nc", "a b\nc"),
        ("é".encode(), "é"),
        (b"x" * MAX_BYTES + b"\r\n", "x" * MAX_BYTES),
    ],
)
def test_a_value_is_its_file_less_one_newline(folder: Path, content: bytes, value: str) -> None:
    assert put(folder, content).value("token") == value


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (b"", 0o600, "is empty; put the value into it"),
        (b"\n", 0o600, "is empty"),
        (CANARY + b"\n\n", 0o600, "ends with white space, beyond one newline"),
        (b" " + CANARY, 0o600, "begins or ends with white space"),
        (CANARY + b"\t\n", 0o600, "begins or ends with white space"),
        (CANARY + b"\0", 0o600, "holds a NUL"),
        (CANARY + b"\xff", 0o600, "is no UTF-8 text"),
        (CANARY + b"x" * MAX_BYTES, 0o600, "more than 65536 bytes"),
        (CANARY, 0o644, "the file is open to others (mode 0644); chmod 600 "),
        (CANARY, 0o640, "the file is open to others (mode 0640); chmod 600 "),
        (CANARY, 0o602, "the file is open to others (mode 0602); chmod 600 "),
    ],
)
def test_a_file_that_is_unfit_is_refused_by_its_name_and_never_shown(
    folder: Path, content: bytes, mode: int, says: str
) -> None:
    with pytest.raises(SecretError) as caught:
        put(folder, content, mode).value("token")
    assert str(caught.value).startswith(f"secret token ({folder}/token): ")
    assert says in str(caught.value)
    assert CANARY.decode() not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_missing_secret_says_which_file_to_write(folder: Path) -> None:
    with pytest.raises(SecretError, match=f"{folder}/token.: there is no such file.*mode 0600"):
        SecretStore(folder).value("token")


def test_a_missing_folder_reads_as_a_missing_secret(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match=f"{tmp_path}/none/token.: there is no such file"):
        SecretStore(tmp_path / "none").value("token")


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_others_may_enter_is_refused(folder: Path, mode: int) -> None:
    store = put(folder, CANARY)
    folder.chmod(mode)
    with pytest.raises(SecretError, match=f"open to others .mode {mode:04o}.; chmod 700 {folder}"):
        store.value("token")


def test_a_symbolic_link_is_refused_wherever_it_leads(folder: Path) -> None:
    put(folder, CANARY, name="real")
    put(folder.parent, CANARY, name="outside")
    for name, target in (("out", "../outside"), ("in", "real"), ("gone", "nothing")):
        (folder / name).symlink_to(target)
        with pytest.raises(SecretError, match="is a symbolic link"):
            SecretStore(folder).value(name)


def test_a_pipe_or_a_folder_is_refused_at_once(folder: Path) -> None:
    os.mkfifo(folder / "token", 0o600)
    (folder / "inner").mkdir(mode=0o700)
    for name in ("token", "inner"):
        with pytest.raises(SecretError, match=r"is no regular file|Is a directory"):
            SecretStore(folder).value(name)


@pytest.mark.parametrize("name", ["../token", "a/b", "", ".hidden", "A", "a" * 64, "..", "a."])
def test_a_name_never_leaves_the_folder(folder: Path, name: str) -> None:
    put(folder.parent, CANARY)
    with pytest.raises(SecretError, match="is no name of a secret"):
        SecretStore(folder).value(name)


def test_all_that_is_wrong_is_told_at_once(folder: Path) -> None:
    store = put(folder, b"")
    with pytest.raises(SecretError, match=r"2 secrets: .*no such file.*is empty"):
        Snapshot(store).values(["other", "token"])


def test_a_snapshot_gives_every_rank_the_same_value(folder: Path) -> None:
    snapshot = Snapshot(put(folder, b"before"))
    assert snapshot.values(["token"]) == {"token": "before"}
    put(folder, b"after")
    assert snapshot.values(["token"]) == {"token": "before"}
    assert Snapshot(SecretStore(folder)).values(["token"]) == {"token": "after"}


def test_the_folder_is_in_the_users_configuration_unless_it_is_set() -> None:
    known = {"HOME": "/h", "USER": "kim"}
    for more, expected in (
        ({}, "/h/.config/reconcile/secrets"),
        ({"XDG_CONFIG_HOME": "/c"}, "/c/reconcile/secrets"),
        ({"XDG_CONFIG_HOME": "/c", "RECONCILE_SECRETS_DIR": "/s"}, "/s"),
    ):
        assert Settings.read({**known, **more}).secrets_dir == Path(expected)
