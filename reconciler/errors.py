"""The errors that reach a person, and the exit codes they end in.

Each error says the thing, what is wrong with these values, and what to do next; the class decides
the exit code. Anything that is not one of these is a bug and is shown with its traceback.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `reconcile`; published, so they never change their meaning."""

    OK = 0
    ERROR = 1
    CHANGES = 2
    """A dry run with --detailed-exitcode found something to do."""
    PARTIAL = 3
    """Some nodes or placements were held; the rest is done."""
    BLOCKED = 4
    """Held by a guard, a policy or another's lease."""
    STALE_PLAN = 5
    """The world has moved since the plan that --expect names."""


class ReconcileError(Exception):
    """Base of all errors that are told to a person; never raised itself."""

    exit_code = Exit.ERROR

    def __init__(self, subject: str, reason: str, hint: str = "") -> None:
        super().__init__(subject, reason, hint)
        self.subject = subject
        self.reason = reason
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.subject}: {self.reason}"
        return f"{text}; {self.hint}" if self.hint else text


class SettingsError(ReconcileError):
    """An option, environment variable or path given to the command is wrong."""


class GitError(ReconcileError):
    """The repository could not be read or fetched (FetchFailed, AuthenticationFailed)."""


class DamagedRepo(GitError):
    """Objects that the repository should have are missing or cannot be read."""


class InvalidFleet(ReconcileError):
    """The fleet repo does not validate; `findings` holds every finding."""

    def __init__(
        self, subject: str, reason: str, hint: str = "", findings: tuple[object, ...] = ()
    ):
        super().__init__(subject, reason, hint)
        self.findings = findings


class NodeError(ReconcileError):
    """A node could not be reached, trusted or understood. Never leaves `reconciler/nodes`."""


class PlanIsStale(ReconcileError):
    """The plan that was reviewed is not the one that would be applied now."""

    exit_code = Exit.STALE_PLAN


class Blocked(ReconcileError):
    """A guard, a policy or another reconciler's lease forbids it."""

    exit_code = Exit.BLOCKED
