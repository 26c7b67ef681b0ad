"""Values in git that look like secrets. The value itself is never repeated.

A repo is cloned, cached, shown in pull requests and kept for ever; a record holds the profile. So a
secret in it is an error, not a warning, and the way out is named: a file on the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from reconciler.core.changes import Reason
from reconciler.core.model import Profile
from reconciler.fleet.findings import Finding, quoted
from reconciler.fleet.repo import Repo
from reconciler.fleet.strictyaml import Path

SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEY|ACCESS_?KEY|SECRET_?KEY"
    r"|PRIVATE_?KEY|AUTH_?KEY)(_ID)?$",
    re.IGNORECASE,
).search

_SHAPES_RE = re.compile(
    # Prefixes that the issuers themselves publish for secret scanners.
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|(AKIA|ASIA)[0-9A-Z]{16}|sk-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|nvapi-[A-Za-z0-9_-]{20,}"
    r"|-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----|[a-z]{2,10}://[^/@:\s]{1,64}:[^/@\s]{1,128}@",
)
_SHAPES = _SHAPES_RE.search

_SECRET_FLAG = re.compile(
    r"--?(api-key|api_key|hf-token|hf_token|admin-api-key|token|password)"
).fullmatch

PLACEHOLDERS = frozenset({"EMPTY", "empty", "none", "dummy", "unused", "not-needed"})
"""What people write where a client demands some key and the server checks none."""

HINT = "put it into a file on the node and name that under 'secrets'; then change the secret"


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable's value is one that must not be shown."""
    if value in PLACEHOLDERS or "$(" in value:
        return False
    return bool(SECRET_NAME(name)) or has_secret_shape(value)


def has_secret_shape(value: str) -> bool:
    """Whether text holds something in the shape of a known kind of secret."""
    return _SHAPES(value) is not None


def without_secrets(text: str) -> str:
    """`text` with everything in the shape of a secret cut out."""
    return _SHAPES_RE.sub("…", text)


def check(repo: Repo) -> Iterator[Finding]:
    """Findings about every profile's environments, arguments and files."""
    for entry in repo.of("Profile").values():
        if entry.value is None:
            continue
        own = entry.document.data
        for path, name, value in texts(entry.value):
            # Told where it is written, not once more for every profile that inherits it.
            if path[0] not in own:
                continue
            if SECRET_NAME(name) and not value:
                message = f"{name} is empty: some libraries then fail where no token would do"
                yield repo.finding(entry, path, message, "remove it", reason=Reason.SCHEMA_FAILED)
            elif looks_secret(name, value):
                what = f"{name} holds" if name else "it holds"
                message = f"{what} what looks like a secret, in git"
                yield repo.finding(entry, path, message, HINT, reason=Reason.SCHEMA_FAILED)
        for name in set(entry.value.secrets) & set(entry.value.env):
            message = f"{quoted(name)} is under 'env' and under 'secrets'"
            path = ("secrets", name)
            yield repo.finding(
                entry, path, message, "keep one of them", reason=Reason.SCHEMA_FAILED, key=True
            )


def texts(profile: Profile) -> Iterator[tuple[Path, str, str]]:
    """Each as (path, name of the variable or empty, value) of all text that ends on a node."""
    for name, value in profile.env.items():
        yield ("env", name), name, value
    yield from _args(("args",), profile.args)
    yield from _args(("command",), profile.command)
    for role, override in (("leader", profile.leader), ("worker", profile.worker)):
        for name, value in override.env.items():
            yield (role, "env", name), name, value
        yield from _args((role, "args"), override.args)
    for index, sidecar in enumerate(profile.sidecars):
        for name, value in sidecar.env.items():
            yield ("sidecars", index, "env", name), name, value
        yield from _args(("sidecars", index, "argv"), sidecar.argv)
    for index, file in enumerate(profile.files):
        yield ("files", index, "content"), "", file.content


def _args(path: Path, args: tuple[str, ...]) -> Iterator[tuple[Path, str, str]]:
    for index, arg in enumerate(args):
        flag, equals, value = arg.partition("=")
        if equals and _SECRET_FLAG(flag):
            yield (*path, index), "API_KEY", value
        elif index and _SECRET_FLAG(args[index - 1]):
            yield (*path, index), "API_KEY", arg
        else:
            yield (*path, index), "", arg
