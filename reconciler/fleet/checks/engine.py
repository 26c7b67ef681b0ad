"""What the engines say about each profile, at the line where it is written.

The one place where validation asks `reconciler.core.build`: reserved flags, GPU arithmetic, loader
variables, references and whatever else an engine knows need no node: a pull request shows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import engines
from engines.base import Problem
from reconciler.core.build import check_profile, port_names
from reconciler.core.changes import Reason
from reconciler.core.model import Model, ResolvedProfile
from reconciler.core.secrets import without_secrets
from reconciler.fleet.findings import Finding, listed, nearest, quoted
from reconciler.fleet.memory import Checked
from reconciler.fleet.repo import Entry, Repo
from reconciler.fleet.strictyaml import Path

MOST = 1000
"""Findings after which no further profile is asked about: a wrong word among the arguments is
compared with every flag of its engine, and a hostile repo has hundreds of thousands of them."""

NO_MODEL = Model(name="model", path="/model")
"""Stands in for one that is missing or broken, which is told already: what else is wrong with the
profile is not to wait for the next review."""

_STEP = re.compile(r"\[([0-9]+)\]|\.?([^.\[]+)")


def check(repo: Repo) -> Iterator[Finding]:
    """Findings of the engines, for every profile that is complete."""
    loader_env = allows_loader_env(repo)
    models = repo.values("Model")
    known = frozenset(engines.names())
    for owner in (*repo.of("Fleet").values(), *repo.of("Node").values()):
        yield from _settings(repo, owner, known)
    told: set[tuple[str, int, int, str]] = set()
    for entry in repo.of("Profile").values():
        profile = entry.value
        if profile is None or not profile.engine:
            continue
        if profile.engine not in known:
            yield _unknown_engine(repo, entry, profile.engine)
            continue
        resolved = ResolvedProfile(profile, models.get(profile.model, NO_MODEL))
        for problem in asked(repo, resolved, loader_env).problems:
            finding = _finding(repo, entry, problem)
            # A mistake of a base is told once, not once more for each profile that builds on it.
            place = (finding.file, finding.line, finding.column, finding.message)
            if place not in told:
                told.add(place)
                yield finding
        if len(told) > MOST:
            message = f"it and what came before it have more than {MOST} findings"
            hint = "profiles after it are looked at once these are mended"
            yield repo.finding(entry, (), message, hint, reason=Reason.SCHEMA_FAILED)
            return


def asked(repo: Repo, resolved: ResolvedProfile, loader_env: bool) -> Checked:
    """What the profile's engine says of it; asked once for as long as nothing of it changes."""
    key = (id(resolved.profile), id(resolved.model))
    before = repo.memory.checked.get(key)
    if before is not None and before[1].loader_env == loader_env:
        return before[1]
    problems = tuple(check_profile(resolved, allow_loader_env=loader_env))
    checked = Checked(problems, loader_env, len(port_names(resolved)))
    repo.memory.checked[key] = (resolved, checked)
    return checked


def allows_loader_env(repo: Repo) -> bool:
    """Whether the fleet allows variables that load code."""
    return any(fleet.allow_loader_env for fleet in repo.values("Fleet").values())


def _settings(repo: Repo, entry: Entry, known: frozenset[str]) -> Iterator[Finding]:
    """Settings of an engine that is not here: they mean nothing, unless another machine has it."""
    for name in sorted(entry.value.engines.keys() - known):
        near = nearest(name, known)
        other = "one from another package must be installed where the reconciler runs"
        hint = f"{near} {other}" if near else f"engines are {listed(known)}; {other}"
        path: Path = ("engines", name)
        message = f"there is no engine {quoted(name)} here, so nothing reads this"
        failed = Reason.REFERENCE_FAILED
        yield repo.finding(entry, path, message, hint, reason=failed, warning=True, key=True)


def _unknown_engine(repo: Repo, entry: Entry, name: str) -> Finding:
    known = engines.names()
    near = nearest(name, known)
    other = "any other program runs as engine 'command'"
    return repo.finding(
        entry,
        ("engine",),
        f"there is no engine {quoted(name)}",
        f"{near} {other}" if near else f"engines are {listed(known)}; {other}",
    )


def _finding(repo: Repo, entry: Entry, problem: Problem) -> Finding:
    return repo.finding(
        entry,
        key_path(problem.path),
        without_secrets(problem.message),
        problem.hint,
        reason=Reason.SCHEMA_FAILED,
        warning=problem.warning,
    )


def key_path(text: str) -> Path:
    """`sidecars[0].env.A` as a path."""
    return tuple(
        int(match[1]) if match[1] is not None else match[2] for match in _STEP.finditer(text)
    )
