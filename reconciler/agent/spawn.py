"""Starts a supervisor that owes nothing to who started it: own session, no open files, no parent.

Closing an SSH channel must not reach it, and it must not keep the channel open.
"""

from __future__ import annotations

import os
import select
import sys
import time
from typing import Dict, List

from . import units
from .node import boottime
from .spec import Spec

NOT_READY = "the supervisor was not ready in time"
MAY_COME = (NOT_READY, units.NO_ANSWER)
"""Reasons after which the supervisor may yet start."""

READY_S = 10.0
"""A supervisor is ready in a tenth of a second; a node that swaps takes longer."""


def in_unit(
    runs_from: str, folder: str, options: List[str], env: Dict[str, str], spec: Spec
) -> str:
    """As `supervisor`, as a transient unit of systemd."""
    command = [sys.executable, "-I", runs_from, "supervise", folder, *options]
    name = "reconcile-" + os.path.basename(folder)
    if options:
        # The unit of the supervisor before this one may be there still, with what it left.
        name += "-%d" % int(boottime() * 1000)
    return units.start(name + ".service", command, folder, env, units.properties(spec))


def supervisor(runs_from: str, folder: str, options: List[str], env: Dict[str, str]) -> str:
    """Start it and wait until it holds the lock and wrote its first status; else why not.

    After the deadline it may yet become ready: the answer does not mean "not started".
    """
    reader, writer = os.pipe()
    command = [sys.executable, "-I", runs_from, "supervise", folder]
    command += ["--ready-fd", str(writer), *options]
    pid = os.fork()
    if pid == 0:
        _detach_and_exec(command, writer, os.path.join(folder, "supervisor.log"), env)
    os.close(writer)
    try:
        os.waitpid(pid, 0)
        return _wait(reader)
    finally:
        os.close(reader)


def _detach_and_exec(command: List[str], ready_fd: int, log: str, env: Dict[str, str]) -> None:
    """In the child, between fork and exec: never returns."""
    try:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        try:
            notes = os.open(log, flags, 0o600)
        except OSError:
            notes = null
        for target, source in ((0, null), (1, null), (2, notes)):
            os.dup2(source, target)
        os.set_inheritable(ready_fd, True)
        os.closerange(3, ready_fd)
        os.closerange(ready_fd + 1, 4096)
        os.chdir("/")
        os.umask(0o077)
        os.execve(command[0], command, env)
    except BaseException as error:  # noqa: BLE001 - a forked child must end here, whatever happens
        os.write(ready_fd, ("exec: %s\n" % error).encode("utf-8", "replace"))
    os._exit(127)


def _wait(reader: int) -> str:
    deadline, told = time.monotonic() + READY_S, b""
    while b"\n" not in told:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return NOT_READY
        data = os.read(reader, 4096)
        if not data:
            return "the supervisor ended before it was ready; see supervisor.log"
        told += data
    word = told.split(b"\n")[0].decode("utf-8", "replace")
    return "" if word == "ready" else word
