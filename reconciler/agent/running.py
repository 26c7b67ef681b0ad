"""The living part of a shard: commands in order, sidecars kept alive, the last one's exit its own.

A command may wait until a port accepts a connection. What a supervisor before this one started is
taken over by pid and start time; a last command that nobody can vouch for is ended, never doubled.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

from . import children, containers, environment, procs, records, units
from .probes import Probe as Asked
from .procs import Process
from .spec import Command
from .wire import Json

if TYPE_CHECKING:
    from .supervisor import Supervisor

WAIT_TRY_S = 0.25
CONNECT_S = 0.5
NVML_S = 20.0
SIDECAR_FAILURES = 5
"""Quick failures in a row after which a sidecar is given up, and the shard with it."""

SIDECAR_GOOD_S = 30.0
"""A sidecar that ran for this long has not failed quickly."""

BACKOFF_FIRST_S, BACKOFF_MOST_S = 0.5, 30.0
TOOL_FAILED = (125, 127)
"""Exit codes of docker and podman where no container was made (no daemon, no such program)."""

CRASH_GRACE_S = 10.0
"""For what is left after the last command ended by itself: it has nothing to finish any more."""


class _Sidecar:
    """How a sidecar has been doing."""

    def __init__(self) -> None:
        self.failures = 0
        self.started = 0.0
        self.again_at = 0.0
        self.ran = False


class Running:
    """Starts what is not there yet and notices what has ended."""

    def __init__(self, supervisor: "Supervisor") -> None:
        assert supervisor.spec is not None
        self._up = supervisor
        self._spec = supervisor.spec
        self._status = supervisor.status
        self._last = self._spec.commands[-1]
        self._sidecars: Dict[str, _Sidecar] = {c.name: _Sidecar() for c in self._spec.commands[:-1]}
        self._pidfds: Dict[str, int] = {}
        self._own: set = set()  # type: ignore[type-arg]
        self._next_try = 0.0
        self._indices: Optional[List[int]] = None
        self._began = supervisor.status.adopted
        self._waits = False
        """The last command is a `wait` on its container, whose client went with a supervisor."""
        if supervisor.status.adopted:
            self._take_over()

    def _take_over(self) -> None:
        """Commands that are still the recorded processes; the rest is forgotten or ended."""
        for name, process in list(self._status.processes.items()):
            if procs.is_same(process.pid, process.start_time):
                self._watch(process)
            else:
                del self._status.processes[name]

    def _watch(self, process: Process) -> None:
        fd = procs.pidfd_open(process.pid)
        if fd is not None:
            self._pidfds[process.name] = fd

    def watched(self) -> List[int]:
        """Descriptors that become readable when an adopted process ends."""
        return list(self._pidfds.values())

    @property
    def serving(self) -> bool:
        """The last command runs, so its health may be asked."""
        return self._last.name in self._status.processes

    def pause(self, now: float) -> float:
        """How long nothing will be due."""
        if not self.serving or any(name not in self._status.processes for name in self._sidecars):
            return max(0.05, self._next_try - now) if self._next_try > now else WAIT_TRY_S
        return 60.0

    def step(self, now: float) -> None:
        """One turn: notice ends, start what is due, watch the start timeout."""
        if not self._began:
            self._began = True
        elif self._status.adopted and not self.serving and self._adopted_end():
            return
        self._notice_ends(now)
        if self._up.ending is None:
            self._start_due(now)
        if self._up.ending is None and self._status.phase == records.STARTING:
            self._watch_timeout(now)

    def _adopted_end(self) -> bool:
        """An adopted shard whose last command is gone or unvouched for: end what is left."""
        container = self._spec.container
        if container is not None and self._up.container_left():
            return not self._wait_for_container()
        if container is not None and self._up.status.phase != records.STARTING:
            self._end_by_container()
            return True
        message = "it ended, or was not yet running, while it had no supervisor"
        self._up.end({"kind": "unknown", "command": self._last.name, "message": message}, 10.0)
        return True

    def _wait_for_container(self) -> bool:
        """Have the runtime tell when the container ends; whether that could be asked."""
        assert self._spec.container is not None
        env = environment.base(self._up.env)
        command = containers.wait_command(self._spec.container)
        try:
            process = children.start("wait", command, env, self._up.folder, "")
        except OSError:
            return False
        self._waits = True
        self._own.add(process.pid)
        self._status.processes[self._last.name] = process._replace(name=self._last.name)
        return True

    def _end_by_container(self) -> None:
        """An adopted container's end: its runtime knows the exit that no supervisor saw."""
        assert self._spec.container is not None
        told = containers.outcome(self._spec.container, environment.base(self._up.env))
        if told is None:
            self._end_by_itself(False, None, "")
            return
        message = "out of memory" if told.out_of_memory else ""
        ending: Json = {"kind": "exited", "code": told.code, "command": self._last.name}
        self._up.end({**ending, "message": message}, CRASH_GRACE_S)

    # --- Ends ---------------------------------------------------------------------------------

    def _notice_ends(self, now: float) -> None:
        for name, process in list(self._status.processes.items()):
            status = self._up.exits.pop(process.pid, None)
            if status is None and (
                process.pid in self._own or procs.is_same(process.pid, process.start_time)
            ):
                continue
            self._forget(process)
            code, signame = (None, "") if status is None else children.outcome(status)
            if name == self._last.name and self._waits:
                # Next turn: the container has ended, or the wait itself was killed.
                self._waits = False
            elif name == self._last.name:
                self._end_by_itself(status is not None, code, signame)
            else:
                self._sidecar_ended(name, now, code, signame)
        self._up.exits.clear()

    def _forget(self, process: Process) -> None:
        del self._status.processes[process.name]
        self._own.discard(process.pid)
        fd = self._pidfds.pop(process.name, None)
        if fd is not None:
            os.close(fd)

    def _end_by_itself(self, seen: bool, code: Optional[int], signame: str) -> None:
        self._up.tool_failed = code in TOOL_FAILED
        kind = "unknown" if not seen else "signal" if signame else "exited"
        message = "" if seen else "it ended; its exit code was its first supervisor's to know"
        ending: Json = {"kind": kind, "code": code, "signal": signame, "command": self._last.name}
        self._up.end({**ending, "message": message}, min(self._spec.stop_grace_s, CRASH_GRACE_S))

    def _sidecar_ended(self, name: str, now: float, code: Optional[int], signame: str) -> None:
        sidecar = self._sidecars[name]
        quick = now - sidecar.started < SIDECAR_GOOD_S
        sidecar.failures = sidecar.failures + 1 if quick else 1
        if sidecar.failures >= SIDECAR_FAILURES:
            message = "sidecar %s ended %d times in a row within %d s of its start" % (
                name,
                sidecar.failures,
                SIDECAR_GOOD_S,
            )
            ending: Json = {"kind": "sidecar", "code": code, "signal": signame, "command": name}
            self._up.end({**ending, "message": message}, self._spec.stop_grace_s)
            return
        wait = min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2 ** (sidecar.failures - 1))
        sidecar.again_at = now + wait

    # --- Starts -------------------------------------------------------------------------------

    def _start_due(self, now: float) -> None:
        """Commands in order; one that has to wait holds up those after it, not those before."""
        self._next_try = now + WAIT_TRY_S
        for command in self._spec.commands:
            if command.name in self._status.processes:
                continue
            if self._status.adopted and command is self._last:
                return
            sidecar = self._sidecars.get(command.name)
            if sidecar is not None and now < sidecar.again_at:
                self._next_try = min(self._next_try, sidecar.again_at)
                if not sidecar.ran:
                    return
                continue
            if command.wait_for is not None and not _accepts(command.wait_for):
                self._status.detail = "waits for %s:%d" % command.wait_for
                return
            if not self._start(command, now) or self._up.ending is not None:
                return

    def _start(self, command: Command, now: float) -> bool:
        indices = self._gpu_indices(command)
        if indices is None:
            return False
        try:
            secrets = environment.read_secrets(command.env_files)
            env = environment.of_command(self._up.env, self._spec.mark, command, indices, secrets)
            process = children.start(
                command.name,
                command.argv,
                env,
                self._up.folder,
                self._status.cgroup,
                self._limits(),
            )
        except OSError as error:
            self._failed_to_start(command, error, now)
            return False
        self._own.add(process.pid)
        self._up.tree.know(process)
        self._status.processes[command.name] = process
        sidecar = self._sidecars.get(command.name)
        if sidecar is not None:
            self._status.restarts += 1 if sidecar.ran else 0
            sidecar.ran, sidecar.started = True, now
        elif self._spec.health is None:
            # A rank that serves nothing is ready when it is alive.
            self._status.phase, self._status.ever_ready = records.RUNNING, True
        self._status.save()
        return True

    def _failed_to_start(self, command: Command, error: OSError, now: float) -> None:
        message = "%s: %s" % (error.filename or command.argv[0], error.strerror)
        if self._status.ever_ready and command.name in self._sidecars:
            self._sidecar_ended(command.name, now, 127, "")
            return
        ending: Json = {"kind": "preflight", "command": command.name, "message": message}
        self._up.end(ending, CRASH_GRACE_S)

    def _gpu_indices(self, command: Command) -> Optional[List[int]]:
        """GPU indices in the spec's order, looked up now: a reboot or a dead GPU shifts them."""
        if not command.gpu_env:
            return []
        if self._indices is None:
            by_name, why = self._known_gpus()
            missing = [g for g in self._spec.gpus if g not in by_name]
            if missing:
                text = "GPU %s is not on this node%s" % (", ".join(missing), why and ": " + why)
                self._up.end({"kind": "preflight", "message": text}, CRASH_GRACE_S)
                return None
            self._indices = [by_name[g] for g in self._spec.gpus]
        return self._indices

    def _known_gpus(self) -> Tuple[Dict[str, int], str]:
        if self._spec.gpu_source == "declared" or not self._spec.gpus:
            return self._spec.gpu_index, ""
        nvml = Asked(sys.argv[0], "nvml")
        reply = nvml.ask({}, NVML_S)
        nvml.close()
        found = [part for part in reply.parts if part.get("uuid")]
        return {part["uuid"]: part["gpu"] for part in found}, reply.error

    def _limits(self) -> children.Limits:
        """As a unit of system mode has them, as far as the hard limits allow: with a login's 1,024
        open files a server refuses requests, with its 8 MiB of memlock NCCL leaves the fabric."""
        needs, limits = self._spec.needs, []
        need, memlock = needs.get("nofile"), str(needs.get("memlock") or "")
        nofile = max(units.DEFAULT_NOFILE, need if isinstance(need, int) else 0)
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if soft != resource.RLIM_INFINITY and nofile > soft:
            limits.append((resource.RLIMIT_NOFILE, nofile))
        most = int(memlock) * 1024 if memlock.isdigit() else resource.RLIM_INFINITY
        limits.append((resource.RLIMIT_MEMLOCK, most))
        return tuple(limits)

    def _watch_timeout(self, now: float) -> None:
        if now - self._status.started_boottime <= self._spec.start_timeout_s:
            return
        message = "not ready within %g s; last: %s" % (
            self._spec.start_timeout_s,
            self._status.detail or "nothing",
        )
        ending: Json = {"kind": "timeout", "command": self._last.name, "message": message}
        self._up.end(ending, self._spec.stop_grace_s)


def _accepts(target: Tuple[str, int]) -> bool:
    try:
        socket.create_connection(target, CONNECT_S).close()
    except (OSError, OverflowError):
        return False
    return True
