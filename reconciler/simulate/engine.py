"""One shard's life on a node in memory: loading, ready, crashing, stopping, by a virtual clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reconciler.core.observed import (
    ExitKind,
    Health,
    Labels,
    Phase,
    Record,
    Shard,
    ShardExit,
)

NEVER = float("inf")
ROOT = "/sim"
"""Where a node in memory writes its records, unless it is told otherwise."""


@dataclass(frozen=True)
class Behaviour:
    """How an engine does that was started from some spec. Seconds from its start."""

    load_s: float = 60.0
    crash_s: float = NEVER
    """Ends by itself after this long, with `code`."""
    code: int = 1
    log: tuple[str, ...] = ()
    stop_s: float = 2.0
    """From TERM to its end; above the grace it is killed."""
    in_flight_s: float = 0.0
    """How long its longest request takes once no more of them come."""
    unkillable: bool = False
    """Stuck in the driver: KILL does not end it."""


def of_sim_engine(spec: Mapping[str, Any], *, load_s: float = 60.0) -> Behaviour:
    """What the sim engine's own flags ask for (`--load-time`, `--crash-after`, …).

    `load_s` is for those that say nothing of it.
    """
    argv = [str(word) for word in spec["commands"][-1]["argv"]]
    flags = dict(zip(argv, [*argv[1:], ""], strict=True))

    def seconds(flag: str, default: float) -> float:
        return float(flags[flag]) if flag in flags else default

    crash_s = seconds("--crash-after", NEVER)
    return Behaviour(
        load_s=NEVER if "--never-ready" in flags else seconds("--load-time", load_s),
        crash_s=min(crash_s, 1.0) if "--fail" in flags else crash_s,
        code=int(flags.get("--fail-code", "1")),
    )


@dataclass
class Shardlet:
    """A launch's folder and processes on one node."""

    spec: Mapping[str, Any]
    labels: Labels
    boot_id: str
    behaviour: Behaviour
    root: str = ROOT
    """Folder of its record, for good."""
    record_written: bool = True
    record: Record | None = None
    began: float | None = None
    alive: bool = False
    supervised: bool = False
    adopted: bool = False
    stop_at: float | None = None
    grace_s: float = 30.0
    busy_s: float = 0.0
    """How long requests would be in flight, as it was asked to stop; for ever: they still come."""
    ending_since: float | None = None
    """Since when a supervisor sees to its end. One that takes over begins the drain anew."""
    drains: bool = True
    ready_since: float | None = None
    failing_since: float | None = None
    ever_ready: bool = False
    sick: bool = False
    """Answers its health path with an error, by the scenario's will."""
    exit: ShardExit | None = None
    ended_at: float = 0.0
    rebooted: bool = False
    pid: int = field(default=4000)

    @property
    def never_began(self) -> bool:
        """The record is there and nothing was executed."""
        return self.began is None and self.exit is None

    @property
    def over(self) -> bool:
        """Nothing of it runs or will run again."""
        return not self.alive and not (self.never_began and not self.rebooted)

    @property
    def failed(self) -> bool:
        """It ended, and nobody had asked it to."""
        return self.over and self.exit is not None and self.exit.kind is not ExitKind.STOPPED

    @property
    def ready_at(self) -> float | None:
        """When it became what it still is: healthy, or alive where it serves nothing."""
        if self.serves:
            return self.ready_since
        return self.began if self.alive else None

    def begin(self, now: float) -> None:
        """A supervisor and the engine under it."""
        self.began, self.alive, self.supervised = now, True, True
        if not self.serves:
            # Nobody asks it anything: it is ready when it is alive.
            self.ever_ready = True

    def ask_stop(self, now: float, grace_s: float | None, busy_s: float | None = None) -> None:
        """The intent; the first one counts. `busy_s` None: as its engine usually is."""
        if self.stop_at is None:
            self.stop_at = now
            self.grace_s = float(grace_s if grace_s is not None else self.spec["stop_grace_s"])
            self.busy_s = self.behaviour.in_flight_s if busy_s is None else busy_s
            if self.supervised:
                self.ending_since = now

    def supervise(self, now: float) -> None:
        """It gets a supervisor, if it has none; what was asked of the last one goes on."""
        if not self.supervised and self.stop_at is not None:
            self.ending_since = now
        self.supervised = True

    @property
    def drain_s(self) -> float:
        """For how long its requests are awaited at most, by its spec."""
        profile = self.spec.get("profile")
        inner = profile.get("profile") if isinstance(profile, Mapping) else None
        told = inner.get("drain_s", 0.0) if isinstance(inner, Mapping) else 0.0
        return float(self.spec.get("drain_s", told))

    @property
    def signalled_at(self) -> float:
        """When its engine is sent the stop signal: nothing is in flight, or the drain is over."""
        if self.stop_at is None or self.ending_since is None:
            return NEVER
        if not self.ever_ready or not self.drains:
            return self.ending_since
        left_s = max(0.0, self.busy_s - (self.ending_since - self.stop_at))
        return self.ending_since + min(left_s, self.drain_s)

    def reboot(self) -> None:
        """Its processes are gone, whatever they were doing."""
        if self.alive or self.never_began:
            self.exit = ShardExit(ExitKind.REBOOT, message="the node was rebooted")
        self.alive = self.supervised = False
        self.rebooted = True
        self.ready_since = None

    def settle(self, now: float, whole: bool) -> None:
        """What was due until now, in order of time."""
        if not self.alive or self.began is None:
            if self.never_began and self.stop_at is not None and not self.rebooted:
                self._end(self.stop_at, ShardExit(ExitKind.STOPPED))
            return
        behaviour = self.behaviour
        dues = [(self.began + behaviour.crash_s, "crash")]
        if self.stop_at is not None and self.supervised and not behaviour.unkillable:
            dues.append((self._stopped_at, "stopped"))
        if not self.ever_ready and self.supervised and self.stop_at is None:
            loaded = self.began + behaviour.load_s
            if loaded <= now and whole and not self.sick and self.serves:
                dues.append((loaded, "ready"))
            elif self.serves:
                dues.append((self.began + float(self.spec["start_timeout_s"]), "timeout"))
        for due, what in sorted(dues):
            if due > now or not self.alive:
                continue
            if what == "crash":
                ended = ShardExit(ExitKind.EXITED, behaviour.code, command="serve")
                self._end(due, ended if self.supervised and not self.adopted else None)
            elif what == "stopped":
                self._end(due, ShardExit(ExitKind.STOPPED))
            elif what == "timeout":
                self._end(due, ShardExit(ExitKind.TIMEOUT))
            else:
                self.ever_ready, self.ready_since = True, due
        if self.watched:
            self._probe(now, whole)

    def next_due(self, now: float) -> float:
        """When something happens to it next by itself; NEVER where nothing does."""
        if not self.alive or self.began is None:
            return NEVER
        times = [self.began + self.behaviour.crash_s]
        if self.supervised and self.stop_at is not None and not self.behaviour.unkillable:
            times.append(self._stopped_at)
        if self.supervised and self.stop_at is None and not self.ever_ready and self.serves:
            times.append(self.began + self.behaviour.load_s)
            times.append(self.began + float(self.spec["start_timeout_s"]))
        return min((t for t in times if t > now), default=NEVER)

    @property
    def _stopped_at(self) -> float:
        return self.signalled_at + min(self.behaviour.stop_s, self.grace_s)

    @property
    def watched(self) -> bool:
        """It lives, and its supervisor does."""
        return self.alive and self.supervised

    @property
    def serves(self) -> bool:
        """Whether this rank has a health path."""
        return self.spec.get("health") is not None

    def seen(
        self, name: str, now: float, boot_id: str, record: Record | None, locked: bool
    ) -> Shard:
        """The shard as the agent would show it."""
        phase, ended = self._phase(now, locked)
        began = self.began if self.began is not None else now
        return Shard(
            launch=name,
            rank=int(self.spec["rank"]),
            record=record,
            record_error="" if record else "absent",
            labels=self.labels if self.record_written else None,
            phase=phase,
            stop_asked=self.stop_at is not None,
            stop_age_s=now - self.stop_at if self.stop_at is not None else 0.0,
            alive=self.alive or (self.never_began and locked and not self.rebooted),
            supervised=self.supervised and self.alive,
            serves=self.serves,
            health=self._health(now),
            fresh=self.supervised and self.alive,
            ever_ready=self.ever_ready,
            started_age_s=now - began,
            start_timeout_s=float(self.spec["start_timeout_s"]),
            stop_grace_s=float(self.spec["stop_grace_s"]),
            exit=ended,
            pids=(self.pid,) if self.alive else (),
            boot_id=self.boot_id,
            log_tail=self.behaviour.log if ended else (),
        )

    def _phase(self, now: float, locked: bool) -> tuple[Phase, ShardExit | None]:
        if self.alive:
            if self.stop_at is not None:
                return Phase.STOPPING, None
            return (Phase.RUNNING if self.ever_ready or not self.serves else Phase.STARTING), None
        if self.never_began and not self.rebooted:
            if locked:
                return Phase.STARTING, None
            message = "the start was cut off before anything was executed"
            return Phase.ENDED, ShardExit(ExitKind.PREFLIGHT, message=message)
        ended = self.exit
        if ended is None:
            kind = ExitKind.STOPPED if self.stop_at is not None else ExitKind.UNKNOWN
            ended = ShardExit(kind, message="nobody saw how it ended")
        age = max(0.0, now - self.ended_at)
        return Phase.ENDED, ShardExit(
            ended.kind, ended.code, ended.signal, ended.command, ended.message, age
        )

    def _health(self, now: float) -> Health:
        if not self.serves or not self.alive:
            return Health()
        ok = self.ready_since is not None
        return Health(
            ok=ok,
            age_s=1.0,
            ready_for_s=now - self.ready_since if self.ready_since is not None else 0.0,
            failing_for_s=now - self.failing_since if self.failing_since is not None else 0.0,
        )

    def _probe(self, now: float, whole: bool) -> None:
        """A supervisor that lives asks the health path; a dead rank makes the leader's fail."""
        if not self.ever_ready or not self.serves:
            return
        healthy = whole and not self.sick
        if healthy and self.ready_since is None:
            self.ready_since, self.failing_since = now, None
        elif not healthy and self.ready_since is not None:
            self.ready_since, self.failing_since = None, now

    def _end(self, when: float, ended: ShardExit | None) -> None:
        self.exit, self.ended_at = ended, when
        self.alive = self.supervised = False
        self.ready_since = None
