"""Values in git that look like secrets. The value itself is never repeated.

A repo is cloned, cached, shown in pull requests and kept for ever; a record holds the profile. So a
secret in it is an error, not a warning, and the way out is named: a file on the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from engines import secretref
from reconciler.core.changes import Reason
from reconciler.core.model import Profile
from reconciler.core.secrets import looks_secret
from reconciler.fleet.findings import Finding, quoted
from reconciler.fleet.repo import Repo
from reconciler.fleet.strictyaml import Path

_SECRET_FLAG = re.compile(
    r"--?(api-key|api_key|hf-token|hf_token|admin-api-key|token|password)"
).fullmatch

HINT = (
    "put it into a file, on the node or in the reconciler's own folder (reconciler:NAME), and name "
    "that under 'secrets'; then change the secret"
)
MOVE = "move it from there to 'secrets'"


def check(repo: Repo) -> Iterator[Finding]:
    """Findings about every profile's environments, arguments and files."""
    for entry in repo.of("Profile").values():
        if entry.value is None:
            continue
        for path, message, hint in repo.memory.of(entry.value, _wrong):
            # Told where it is written, not once more for every profile that inherits it.
            if path[0] in entry.document.data:
                yield repo.finding(entry, path, message, hint, reason=Reason.SCHEMA_FAILED)
        for name in set(entry.value.secrets) & set(entry.value.env):
            message = f"{quoted(name)} is under 'env' and under 'secrets'"
            path = ("secrets", name)
            yield repo.finding(
                entry, path, message, "keep one of them", reason=Reason.SCHEMA_FAILED, key=True
            )


def _wrong(profile: Profile) -> list[tuple[Path, str, str]]:
    """(path, what is wrong there, what to do) of texts that hold or name a secret."""
    found: list[tuple[Path, str, str]] = []
    for path, name, value in texts(profile):
        if name and secretref.name_of(value):
            found.append((path, f"{name} would get the text {quoted(value)} itself", MOVE))
        elif value and looks_secret(name, value):
            what = f"{name} holds" if name else "it holds"
            found.append((path, f"{what} what looks like a secret, in git", HINT))
    return found


def texts(profile: Profile) -> Iterator[tuple[Path, str, str]]:
    """Each as (path, name of the variable or empty, value) of all text that ends on a node."""
    for name, value in profile.env.items():
        yield ("env", name), name, value
    yield from _args(("args",), profile.args)
    yield from _args(("command",), profile.command)
    yield from _args(("runtime", "options"), profile.runtime.options)
    for role, override in (("leader", profile.leader), ("worker", profile.worker)):
        for name, value in override.env.items():
            yield (role, "env", name), name, value
        yield from _args((role, "args"), override.args)
        yield from _args((role, "command"), override.command)
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
