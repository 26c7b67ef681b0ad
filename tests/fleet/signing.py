"""Real commits with real signatures, by the git, ssh-keygen and gpg of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

JUNE = 1_717_200_000
"""2024-06-01: when commits are made, unless a test says otherwise."""
DAY = 86_400


def run(*argv: str | Path, cwd: Path, env: dict[str, str], stdin: str = "") -> str:
    """One program that must succeed."""
    text = [str(arg) for arg in argv]
    done = subprocess.run(
        text, cwd=cwd, env=env, input=stdin, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{text}: {done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Repo:
    """A repository whose commits are signed as asked."""

    folder: Path
    home: Path

    @classmethod
    def make(cls, folder: Path) -> Repo:
        made = cls(folder / "signed", folder / "home")
        made.folder.mkdir()
        made.home.mkdir()
        made.git("init", "-q", "-b", "main")
        return made

    def env(self, at: int = JUNE) -> dict[str, str]:
        """Of the person who commits."""
        kept = {name: os.environ[name] for name in ("PATH",) if name in os.environ}
        who = {f"GIT_{role}_{what}": value for role, what, value in _PERSON}
        when = {f"GIT_{role}_DATE": f"{at} +0000" for role in ("AUTHOR", "COMMITTER")}
        return {**kept, **who, **when, "HOME": str(self.home), "GIT_CONFIG_NOSYSTEM": "1"}

    def git(self, *argv: str | Path, at: int = JUNE) -> str:
        return run("git", *argv, cwd=self.folder, env=self.env(at)).strip()

    def commit(self, *options: str, at: int = JUNE) -> bytes:
        """The raw object of a new commit; `options` are `-c name=value` pairs and more."""
        self.git(*options, "commit", "-q", "--allow-empty", "-m", "a change", at=at)
        return self.raw()

    def raw(self, commit: str = "HEAD") -> bytes:
        return subprocess.run(
            ["git", "cat-file", "commit", commit],
            cwd=self.folder,
            capture_output=True,
            check=True,
        ).stdout


_PERSON = [
    (role, what, value)
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Ada"), ("EMAIL", "ada@example.com"))
]


def ssh_key(folder: Path, name: str) -> Path:
    """A new key without a password; its `.pub` lies beside it."""
    env = {"PATH": os.environ["PATH"]}
    key = folder / name
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", key, cwd=folder, env=env)
    return key


def by_ssh(key: Path) -> tuple[str, ...]:
    """git's options that sign by `key`."""
    return (
        "-c", "gpg.format=ssh", "-c", f"user.signingkey={key}", "-c", "commit.gpgsign=true",
    )  # fmt: skip


def allowed(file: Path, *lines: tuple[str, str, Path]) -> Path:
    """An allowed_signers file of (principals, options, key)."""
    file.write_text(
        "".join(
            f"{who} {options + ' ' if options else ''}{key.with_suffix('.pub').read_text()}"
            for who, options, key in lines
        )
    )
    return file


@dataclass(frozen=True)
class Gpg:
    """A keyring of its own."""

    home: Path

    def __call__(self, *argv: str, stdin: str = "") -> str:
        env = {"PATH": os.environ["PATH"], "GNUPGHOME": str(self.home)}
        base = ("gpg", "--batch", "--pinentry-mode", "loopback", "--passphrase", "")
        return run(*base, *argv, cwd=self.home, env=env, stdin=stdin)

    def key(self, who: str, *, at: str, expires: str = "never", subkey: str = "") -> str:
        """Fingerprint of a new primary key; `subkey`: with one that signs, until then."""
        usage = "cert" if subkey else "sign"
        then = ("--faked-system-time", at)
        self(*then, "--quick-gen-key", who, "ed25519", usage, expires)
        made = self.fingerprints(who)[0]
        if subkey:
            self(*then, "--quick-add-key", made, "ed25519", "sign", subkey)
        return made

    def fingerprints(self, who: str) -> list[str]:
        """Of the primary key and its subkeys."""
        listed = self("--with-colons", "--list-keys", f"={who}")
        return [line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:")]

    def export(self, file: Path, *who: str) -> Path:
        file.write_text(self("--armor", "--export", *who))
        return file

    def signer(self, at: str) -> Path:
        """A gpg for git that signs at that time."""
        program = self.home / f"gpg-{at}"
        program.write_text(
            f"#!/bin/sh\nexec gpg --homedir '{self.home}' --batch --pinentry-mode loopback"
            f" --passphrase '' --faked-system-time {at} \"$@\"\n"
        )
        program.chmod(0o755)
        return program


def by_gpg(gpg: Gpg, key: str, at: str) -> tuple[str, ...]:
    """git's options that sign by `key` at a time such as 20240601T000000."""
    return (
        "-c", f"gpg.program={gpg.signer(at)}", "-c", f"user.signingkey={key}!",
        "-c", "commit.gpgsign=true",
    )  # fmt: skip


@contextmanager
def keyring() -> Iterator[Gpg]:
    """In a short path: the agent's socket has no room for a long one."""
    home = Path(f"/tmp/rcg-{os.getpid()}-{os.urandom(3).hex()}")
    home.mkdir(mode=0o700)
    try:
        yield Gpg(home)
    finally:
        env = {"PATH": os.environ["PATH"], "GNUPGHOME": str(home)}
        subprocess.run(["gpgconf", "--kill", "all"], env=env, check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)
