"""Turns a command into a process: own session, own log, declared environment, the shard's cgroup.

Forks by itself instead of through `subprocess`: the supervisor reaps every child of the tree, and
the group must be entered between fork and exec, before the first grandchild can exist.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
from typing import Dict, Optional, Tuple

from . import cgroup, procs
from .procs import Process

UMASK = 0o022
"""Model caches are shared between users; the supervisor's own files are its own."""

Limits = Tuple[Tuple[int, int], ...]
"""(resource, soft limit), raised as far as the hard limit allows."""


def start(
    name: str,
    argv: Tuple[str, ...],
    env: Dict[str, str],
    folder: str,
    group: str,
    limits: Limits = (),
) -> Process:
    """Run `argv` in `folder`, output appended to `<name>.log`. OSError: it was not executed."""
    log = os.open(
        os.path.join(folder, name + ".log"),
        os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW,
        0o600,
    )
    reader, writer = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            _exec(argv, env, folder, group, limits, log, writer)
        os.close(writer)
        writer = -1
        told = os.read(reader, 64)
    finally:
        os.close(log)
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    if told:
        os.waitpid(pid, 0)
        code = int(told)
        raise OSError(code, os.strerror(code), argv[0])
    found = procs.stat(pid)
    # A child that ended at once is a zombie until it is reaped, so it is still found.
    return Process(name, pid, found.start_time if found else 0, pid)


def _exec(
    argv: Tuple[str, ...],
    env: Dict[str, str],
    folder: str,
    group: str,
    limits: Limits,
    log: int,
    report: int,
) -> None:
    """In the child, between fork and exec: never returns."""
    code = errno.EINVAL
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        if group:
            cgroup.enter(group)
        set_oom_score(0)
        for kind, soft in limits:
            hard = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (_least(soft, hard), hard))
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, target)
        os.chdir(folder)
        os.umask(UMASK)
        os.execve(_find(argv[0], env), argv, env)
    except OSError as error:
        code = error.errno or code
    finally:
        os.write(report, str(code).encode())
        os._exit(127)


def _least(soft: int, hard: int) -> int:
    if hard == resource.RLIM_INFINITY:
        return soft
    return hard if soft == resource.RLIM_INFINITY else min(soft, hard)


def _find(program: str, env: Dict[str, str]) -> str:
    """The program by the PATH that the command itself gets."""
    if "/" in program:
        return program
    for folder in env.get("PATH", "").split(":"):
        path = os.path.join(folder, program)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)


def set_oom_score(score: int) -> None:
    """How readily the kernel ends this process when memory runs out; needs root to go below 0."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(score))
    except OSError:
        pass


def reap() -> "Optional[Tuple[int, int]]":
    """(pid, wait status) of one ended child, or None where there is none now."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def outcome(status: int) -> "Tuple[Optional[int], str]":
    """(exit code, signal name) of a wait status; one of the two is empty."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return None, signal.Signals(number).name[3:]
        except ValueError:
            return None, str(number)
    return os.WEXITSTATUS(status), ""
