"""Why the agent's command ended at once on a node, in words, and what to do there.

By the exit status and the last words of the login's shell and of sudo. Pure.
"""

from __future__ import annotations

from reconciler.core.observed import LookError
from reconciler.nodes.endpoint import Endpoint
from reconciler.nodes.protocol import NodeUnseen

PYTHON = "install python3 (3.8 or newer) there"


def unsuitable(endpoint: Endpoint, status: int, said: str) -> NodeUnseen:
    """What to tell of a node whose login works and whose command ended with `status`."""
    subject, kind = endpoint.subject, LookError.UNSUITABLE
    words = f" ({said})" if said else ""
    if endpoint.sudo:
        why = _sudo(endpoint, said)
        if why:
            return NodeUnseen(subject, kind, why[0] + words, why[1])
    if status == 127 or "not found" in said or "No such file" in said:
        reason = f"python3 is not on the PATH of {endpoint.sudo or endpoint.user!r}{words}"
        return NodeUnseen(subject, kind, reason, PYTHON)
    if status == 126:
        reason = f"python3 on the PATH of {endpoint.sudo or endpoint.user!r} cannot be executed"
        return NodeUnseen(subject, kind, reason + words, PYTHON)
    return NodeUnseen(subject, kind, f"the agent's command ended with status {status}{words}")


_MISSING = ("sudo: not found", "sudo: command not found", "command not found: sudo")


def _sudo(endpoint: Endpoint, said: str) -> tuple[str, str] | None:
    """(what is wrong, what to do) where it is sudo that said no. Its words by sudo 1.8 to 1.9."""
    user, target = endpoint.user, endpoint.sudo
    line = f"`{user} ALL=({target}) NOPASSWD: ALL`"
    rules = (
        (
            "a password is required",
            f"sudo asks {user!r} for a password to become {target!r}",
            f"a file in /etc/sudoers.d there with {line} lets it pass",
        ),
        (
            "must have a tty",
            f"sudo wants a terminal of {user!r} (requiretty), and there is none",
            f"`Defaults:{user} !requiretty` in /etc/sudoers.d there lets it pass",
        ),
        (
            "unknown user",
            f"there is no user {target!r} to become",
            "correct ssh.sudo, or add the user there",
        ),
        (
            "no new privileges",
            "sudo cannot become anybody: the login may gain no privileges",
            "sshd there runs in a container or with NoNewPrivileges; log in as the user itself",
        ),
        (
            "not found: python3",
            f"python3 is not on the PATH that sudo gives {target!r}",
            PYTHON,
        ),
        ("python3: command not found", f"python3 is not on sudo's PATH for {target!r}", PYTHON),
    )
    for words, reason, hint in rules:
        if words in said:
            return reason, hint
    if any(words in said for words in _MISSING) or ("sudo" in said and "nknown command" in said):
        return "sudo is not installed", "install sudo there, or log in as the user itself"
    if "sudo" in said:
        reason = f"sudo does not let {user!r} become {target!r}"
        return reason, f"a file in /etc/sudoers.d there with {line} lets it pass"
    return None
