"""How a shard ends: drain, signal, grace, KILL, and sweep again until nothing is left.

First the command that counts, so that an engine can finish its requests while its workers live;
then everything. What outlives KILL is shown by pid and swept at each turn: the shard is stuck, its
GPUs stay taken, and it is never called ended.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Optional

from . import children, containers, environment, procs, secretfiles
from .draining import Draining
from .node import boottime
from .procs import Process
from .wire import Json

if TYPE_CHECKING:
    from .supervisor import Supervisor

KILL_S = 3.0
"""One bout of KILL rounds; then the loop turns once and the next bout follows."""

STEP_S = 0.05
STUCK_S = 2.0


class Ending:
    """One shard's end; `step` at each turn until its status says ended."""

    def __init__(
        self, supervisor: "Supervisor", ending: Json, grace_s: float, drain_s: float, gently: bool
    ) -> None:
        self._up = supervisor
        self._ending = dict(ending)
        self._grace_s = grace_s
        self._drain_until = boottime() + drain_s
        check = supervisor.spec.drain if supervisor.spec is not None and drain_s > 0 else None
        self._draining = Draining(check) if check is not None else None
        self._signalled: Optional[float] = None
        self._all_signalled = False
        self._gently = gently
        self._stuck = False
        self._helper: Optional[Process] = None
        self._removed = False

    def hurry(self, grace_s: float) -> None:
        """Asked again: a shorter grace counts, and there is no more draining with a grace of 0."""
        self._grace_s = min(self._grace_s, grace_s)
        if grace_s == 0:
            self._drain_until = min(self._drain_until, boottime())

    def pause(self) -> float:
        """How long until the next turn."""
        return STUCK_S if self._stuck else STEP_S

    def step(self, now: float) -> None:
        """One turn."""
        self._note_main_exit()
        if not self._drained(now):
            return
        if self._signalled is None:
            self._signalled = now
            if self._gently and self._grace_s > 0:
                self._signal_main()
                return
        waited = now - self._signalled
        if waited < self._grace_s:
            if not self._all_signalled:
                if self._main() is not None and self._gently and waited < self._grace_s / 2:
                    return
                self._all_signalled = True
                left = bool(self._up.tree.signal_all(signal.SIGTERM))
            else:
                left = bool(self._up.tree.members())
            if left or (self._gently and self._up.container_left()):
                return
        self._kill(now)

    def _drained(self, now: float) -> bool:
        """Nothing is in flight any more, nobody is left to finish it, or the time is over."""
        if now >= self._drain_until:
            if self._draining is not None:
                self._draining.cancel()
                self._draining = None
            return True
        over = self._main() is None
        if self._draining is not None:
            over = self._draining.step(now) or over
            self._up.status.detail = "draining: %s" % self._draining.detail
        if over:
            self._drain_until = now
        return over

    def _main(self) -> Optional[Process]:
        """The command that counts, while it lives."""
        if self._up.spec is None:
            return None
        process = self._up.status.processes.get(self._up.spec.commands[-1].name)
        alive = process is not None and procs.is_same(process.pid, process.start_time)
        return process if alive else None

    def _signal_main(self) -> None:
        assert self._signalled is not None
        main, spec = self._main(), self._up.spec
        if spec is not None and spec.container is not None:
            command = containers.stop_command(spec.container, self._grace_s)
            env = environment.base(self._up.env)
            try:
                self._helper = children.start("stop", command, env, self._up.folder, "")
            except OSError:
                self._helper = None
        elif main is not None and spec is not None:
            procs.signal_process(main.pid, main.start_time, spec.stop_signal)

    def _note_main_exit(self) -> None:
        """The exit code belongs to the record also where the command was asked to end."""
        spec, status = self._up.spec, self._up.status
        if spec is None:
            return
        process = status.processes.get(spec.commands[-1].name)
        if process is None or process.pid not in self._up.exits:
            return
        code, signame = children.outcome(self._up.exits.pop(process.pid))
        if self._ending.get("code") is None and not self._ending.get("signal"):
            told: Json = {"code": code, "signal": signame, "command": process.name}
            self._ending = {**self._ending, **told}

    def _end_container(self) -> None:
        """Its exit is recorded before it is removed: with it the runtime forgets."""
        spec = self._up.spec
        container = spec.container if spec is not None else None
        if container is None or self._removed:
            return
        env = environment.base(self._up.env)
        told = containers.outcome(container, env)
        if told is not None and told.out_of_memory:
            self._ending["message"] = self._ending.get("message") or "out of memory"
        containers.remove(container, env)
        self._removed = not self._up.container_left(anew=True)

    def _kill(self, now: float) -> None:
        self._end_container()
        left = self._up.tree.kill(KILL_S)
        self._note_main_exit()
        if not left and not self._up.container_left():
            self._end_container()
            if self._up.told_to_stop and self._ending["kind"] in ("exited", "signal"):
                # A machine that goes down ends the engine and us at the same moment: no crash.
                self._ending.update(kind="stopped", message="it and its supervisor got TERM")
            secretfiles.remove(self._up.folder)
            self._up.status.ended(boottime(), self._ending)
            return
        self._stuck = True
        self._up.status.remaining = sorted(entry.pid for entry in left)
        # Should we be killed now, this alone tells of what neither mark nor group leads to.
        self._up.note_left([Process("stray", s.pid, s.start_time, s.pgid) for s in left])
