"""The requests that change something: start, stop, relabel, adopt. Safe to repeat, each of them.

Every one is fenced and written under the same lock. `start` writes the whole record before anything
is executed; `stop` writes an intent and leaves the work to the supervisor.
"""

from __future__ import annotations

import os
import shutil
from typing import List, Mapping, Optional

from . import (
    cgroup,
    environment,
    heartbeat,
    hold,
    lease,
    locks,
    preflight,
    records,
    retention,
    secretfiles,
    spawn,
    store,
)
from . import spec as specs
from .node import Node, boottime
from .observe import Observer
from .probes import Probes
from .records import Seen
from .spec import Spec
from .store import Damaged
from .wire import AgentError, Fields, Json

RESERVE = 16384


class Actor:
    """Acts on this node's launches for whoever holds the lease."""

    def __init__(
        self, node: Node, observer: Observer, probes: Probes, env: Mapping[str, str]
    ) -> None:
        self.node = node
        self.observer = observer
        self.probes = probes
        self.env = env

    # --- check --------------------------------------------------------------------------------

    def check(self, request: Json) -> Json:
        """What `start` of this spec would refuse now, all at once; nothing is written or fenced.

        What the launch `replaces` holds does not count: it will have ended by then.
        """
        fields = Fields(request)
        asked, replaces = fields.object("spec"), fields.text("replaces", "")
        spec = self._parse(asked, str(asked.get("fleet")))
        found = []
        try:
            hold.refuse_if_held(self.node, spec.launch)
        except AgentError as error:
            found.append(error.message)
        try:
            self._refuse_taken(spec, replaces)
        except AgentError as error:
            found.append(error.message)
        found += self._findings(spec, replaces, trying=True)
        return {"findings": found, **preflight.facts(spec, self.probes, self.env)}

    # --- start --------------------------------------------------------------------------------

    def start(self, request: Json) -> Json:
        """`started`, `already` or `ended`; a refusal leaves no record."""
        fields = Fields(request)
        asked, labels = fields.object("spec"), _labels(request)
        values = fields.object("secrets", {})
        fleet, _, _ = lease.fence(self.node, request)
        spec = self._parse(asked, fleet)
        hold.refuse_if_held(self.node, spec.launch)
        state = self._existing(asked, spec)
        if state in ("already", "ended"):
            return {"state": state}
        secrets = secretfiles.checked(spec, values)
        self._refuse_taken(spec)
        self._preflight(spec)
        with locks.acting(*self.node.acting_locks):
            lease.fence(self.node, request)
            hold.refuse_if_held(self.node, spec.launch)
            state = self._existing(asked, spec)
            if state in ("already", "ended"):
                return {"state": state}
            self._refuse_taken(spec)
            if state == "absent":
                self._make_room(spec)
                self._write_record(asked, spec, labels, secrets)
            else:
                self._write_secrets(spec, secrets)
            self._spawn(records.folder_of(self.node, spec.launch), spec.mark, [], spec)
        return {"state": "started"}

    def _parse(self, asked: Json, fleet: str) -> Spec:
        try:
            spec = specs.parse(asked)
        except Damaged as error:
            raise AgentError("bad-request", "spec: %s" % error) from None
        if spec.fleet != fleet:
            raise AgentError(
                "bad-request", "spec: fleet %s under the lease of %s" % (spec.fleet, fleet)
            )
        if spec.machine_id != self.node.identity.machine_id:
            raise AgentError(
                "bad-request",
                "spec: rank %d is for machine %s, this is %s"
                % (spec.rank, spec.machine_id, self.node.identity.machine_id),
            )
        return spec

    def _existing(self, asked: Json, spec: Spec) -> str:
        """absent | cut-off (record, nothing executed) | already | ended. AgentError `conflict`."""
        seen = self._see(spec.launch)
        if seen is None:
            return "absent"
        if seen.ended or seen.phase == records.ENDED:
            return "ended"
        if seen.spec is None:
            raise AgentError(
                "conflict", "launch %s is here, its record %s" % (seen.name, seen.spec_error)
            )
        if not records.same_spec(seen.spec, asked):
            raise AgentError("conflict", "launch %s is here with another spec" % seen.name)
        return "cut-off" if seen.never_began else "already"

    def _refuse_taken(self, spec: Spec, replaces: str = "") -> None:
        """AgentError where another live launch, of whichever fleet, holds a GPU or a port."""
        for other in self._others(spec.launch):
            if not other.alive or other.name == replaces:
                continue
            held_gpus, held_ports = _holds(other)
            if held_gpus is None:
                if spec.gpus and spec.gpu_source == "declared":
                    raise AgentError(
                        "gpu-taken",
                        "launch %s is alive and its record %s: which GPUs it holds is not known"
                        % (other.name, other.spec_error),
                    )
                continue
            for gpu in spec.gpus:
                if gpu in held_gpus:
                    raise AgentError("gpu-taken", "GPU %s is held by launch %s" % (gpu, other.name))
            for gpu in _alias(spec, other):
                raise AgentError(
                    "gpu-taken",
                    "GPU %s has the index of one that launch %s holds by another name"
                    % (gpu, other.name),
                )
            for name, port in sorted(spec.ports.items()):
                if port in held_ports:
                    raise AgentError(
                        "port-taken", "port %d (%s) is held by launch %s" % (port, name, other.name)
                    )

    def _others(self, launch: str) -> List[Seen]:
        try:
            seen = self.observer.launches(self.observer.marks())
        except OSError as error:
            raise AgentError("io", "%s: %s" % (error.filename, error.strerror)) from None
        return [s for s in seen if s.name != launch]

    def _preflight(self, spec: Spec) -> None:
        found = self._findings(spec, "")
        if found:
            raise AgentError("preflight", "; ".join(found), found)

    def _findings(self, spec: Spec, replaces: str, *, trying: bool = False) -> List[str]:
        gpus: Json = {}
        if spec.gpus and spec.gpu_source == "nvml":
            pids, _ = records.by_launch(self.node, self.observer.marks())
            owners = {pid: name for name, found in pids.items() for pid in found}
            gpus = self.observer.gpus.look(owners, preflight.DEADLINE_S)
        return preflight.findings(
            self.node, spec, self.probes, gpus, self.env, replaces, trying=trying
        )

    def _make_room(self, spec: Spec) -> None:
        others = self._others(spec.launch)
        gone = retention.removable(others, spec.fleet, spec.replica, boottime())
        retention.remove(gone)

    def _write_record(
        self, asked: Json, spec: Spec, labels: Json, secrets: Mapping[str, bytes]
    ) -> None:
        """The whole folder at once, by one rename: there is never a launch without its record."""
        part = os.path.join(self.node.root, "part-%s" % spec.launch)
        try:
            shutil.rmtree(part, ignore_errors=True)
            os.makedirs(os.path.join(part, "files"), 0o700)
            os.makedirs(self.node.launches, 0o700, exist_ok=True)
            _write_files(part, dict(spec.files))
            _write_files(part, labels.get("files", {}))
            secretfiles.write(part, secrets)
            store.write(os.path.join(part, "labels.json"), labels)
            # Room for the supervisor's first status, given back by it: a disk that fills up between
            # the record and the start would leave a record of nothing.
            store.write_bytes(os.path.join(part, "reserve"), bytes(RESERVE))
            # Room for the heartbeat while there is some: written in place it then never fails.
            store.write_bytes(os.path.join(part, "lock"), b" " * heartbeat.SIZE)
            record = {**asked, "boot_id": self.node.identity.boot_id}
            store.write(os.path.join(part, "spec.json"), record)
            os.rename(part, self.node.launch_dir(spec.launch))
            store.sync_folder(self.node.launches)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise AgentError("io", "record of %s: %s" % (spec.launch, error.strerror)) from None

    def _write_secrets(self, spec: Spec, secrets: Mapping[str, bytes]) -> None:
        """Those of a start that was cut off: nothing has read them, and they may be newer now."""
        try:
            secretfiles.write(records.folder_of(self.node, spec.launch), secrets)
        except OSError as error:
            raise AgentError("io", "secrets of %s: %s" % (spec.launch, error.strerror)) from None

    def _spawn(self, folder: str, mark: str, options: List[str], spec: Optional[Spec]) -> None:
        """`spec`: None where the record cannot be read; then there is only something to end."""
        env = environment.of_supervisor(self.env, mark)
        launch, runs_from = os.path.basename(folder), self.node.runs_from
        if spec is not None and spec.mode == "system":
            why = spawn.in_unit(runs_from, folder, options, env, spec)
        else:
            why = spawn.supervisor(runs_from, folder, options, env)
        if why:
            self._undo(launch, why)
            raise AgentError("io", "launch %s: %s" % (launch, why))

    def _undo(self, launch: str, why: str) -> None:
        """A refused start leaves no record, unless its supervisor may yet come."""
        seen = self._see(launch)
        if seen is not None and seen.never_began and why not in spawn.MAY_COME:
            retention.remove([seen])

    # --- stop, adopt, relabel -----------------------------------------------------------------

    def stop(self, request: Json) -> Json:
        """`stopping`: the intent is written, somebody carries it out; `ended`: nothing is left."""
        with locks.acting(*self.node.acting_locks):
            seen, fleet = self._fenced(request)
            if seen.spec is None and not seen.alive:
                # A copy, or what damage left: whoever asks for its end says that it may go.
                retention.remove([seen])
                return {"state": "ended"}
            if seen.ended:
                return {"state": "ended"}
            if seen.never_began:
                self._write_end(seen, "stopped", "stopped before anything was executed")
                return {"state": "ended"}
            self._write_intent(seen, request)
            if seen.supervised:
                _nudge(seen)
            else:
                self._supervise_again(seen, fleet)
        return {"state": "stopping"}

    def _write_intent(self, seen: Seen, request: Json) -> None:
        before = seen.intent or {}
        intent: Json = {
            "format": "1.0",
            "intent": "stop",
            # Asked again (perhaps with a shorter grace), the age still counts from the first time.
            "boottime": before.get("boottime", boottime()),
            "boot_id": self.node.identity.boot_id,
            "by": request["owner"],
            "epoch": request["epoch"],
        }
        if request.get("grace_s") is not None:
            intent["grace_s"] = Fields(request).number("grace_s")
        try:
            os.makedirs(seen.folder, 0o700, exist_ok=True)
            store.write(os.path.join(seen.folder, "intent.json"), intent)
        except OSError as error:
            raise AgentError("io", "intent of %s: %s" % (seen.name, error.strerror)) from None

    def adopt(self, request: Json) -> Json:
        """`supervised`: it has a supervisor; `adopted`: a new one; `ended`: nothing is left."""
        with locks.acting(*self.node.acting_locks):
            seen, fleet = self._fenced(request)
            if seen.supervised:
                return {"state": "supervised"}
            if seen.alive:
                if seen.spec is None and seen.intent is None:
                    raise AgentError(
                        "not-found", "launch %s: its record %s" % (seen.name, seen.spec_error)
                    )
                self._supervise_again(seen, fleet)
                return {"state": "adopted"}
            if seen.same_boot and seen.phase != records.ENDED:
                kind = "preflight" if seen.never_began else "unknown"
                kind = "stopped" if seen.intent is not None else kind
                self._write_end(seen, kind, "its supervisor was killed, so nobody saw how")
            return {"state": "ended"}

    def relabel(self, request: Json) -> Json:
        """Replace what may change without a restart."""
        labels = _labels(request)
        with locks.acting(*self.node.acting_locks):
            seen, _ = self._fenced(request)
            try:
                # First the files: should this end in between, labels.json asks for them again.
                _write_files(seen.folder, labels.get("files", {}))
                store.write(os.path.join(seen.folder, "labels.json"), labels)
            except OSError as error:
                raise AgentError("io", "labels of %s: %s" % (seen.name, error.strerror)) from None
        return {}

    def _fenced(self, request: Json) -> "tuple[Seen, str]":
        """The launch that the request is about, once fence, hold and fleet allow to touch it."""
        fleet, _, _ = lease.fence(self.node, request)
        launch = Fields(request).text("launch")
        if not specs.LAUNCH.match(launch):
            raise AgentError("bad-request", "launch %r is no launch id" % launch)
        hold.refuse_if_held(self.node, launch)
        seen = self._see(launch)
        if seen is None:
            raise AgentError("not-found", "launch %s is not on this node" % launch)
        owner = seen.fleet or self._fleet_by_mark(launch)
        if owner and owner != fleet:
            raise AgentError("conflict", "launch %s belongs to fleet %s" % (launch, owner))
        return seen, fleet

    def _fleet_by_mark(self, launch: str) -> str:
        return records.by_launch(self.node, self.observer.marks())[1].get(launch, "")

    def _see(self, launch: str) -> "Seen | None":
        try:
            found = self.observer.launches(self.observer.marks())
        except OSError as error:
            raise AgentError("io", "%s: %s" % (error.filename, error.strerror)) from None
        return next((s for s in found if s.name == launch), None)

    def _supervise_again(self, seen: Seen, fleet: str) -> None:
        mark = "%s/%s/-@%s" % (fleet, seen.name, self.node.identity.machine_id)
        try:
            spec = specs.parse(seen.spec) if seen.spec is not None else None
        except Damaged:
            spec = None
        self._spawn(seen.folder, mark, ["--adopt", fleet], spec)

    def _write_end(self, seen: Seen, kind: str, message: str) -> None:
        """Record the end of a launch without supervisor; nothing is done where it gets one now."""
        fd = locks.try_lock(os.path.join(seen.folder, "lock"), 1.0)
        if fd is None:
            return
        ending = {"kind": kind, "message": message, "boottime": boottime()}
        boot = {"format": "1.0", "boot_id": self.node.identity.boot_id}
        status = {**seen.status, **boot, "phase": records.ENDED, "exit": ending}
        secretfiles.remove(seen.folder)
        try:
            store.write(os.path.join(seen.folder, "status.json"), status)
            heartbeat.write(fd, heartbeat.of(status))
            group = str(seen.status.get("cgroup") or "")
            if cgroup.belongs(group, seen.name):
                cgroup.remove(group)
        except OSError as error:
            raise AgentError("io", "status of %s: %s" % (seen.name, error.strerror)) from None
        finally:
            os.close(fd)


def _write_files(folder: str, files: Json) -> None:
    """Each whole or as it was: an engine may read them at any moment."""
    for path, content in files.items():
        target = os.path.join(folder, "files", path)
        os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
        store.write_bytes(target, content.encode("utf-8", "surrogatepass"))


def _labels(request: Json) -> Json:
    try:
        return specs.labels_of(Fields(request).object("labels", {}))
    except Damaged as error:
        raise AgentError("bad-request", str(error)) from None


def _holds(seen: Seen) -> "tuple[set[str] | None, set[int]]":
    """GPUs and ports of the launch on this node; None where its record cannot be read."""
    record = seen.record
    if record is None:
        return None, set()
    mine = [p for p in record["places"] if p["rank"] == record["rank"]]
    return {g for p in mine for g in p["gpus"]}, {n for p in mine for n in p["ports"].values()}


def _alias(spec: Spec, other: Seen) -> List[str]:
    """Declared GPUs of `spec` that `other` holds: a renamed node or an edited list renames GPUs,
    and what they are told apart by on the node is the index."""
    theirs = other.spec.get("gpu_index") if other.spec else None
    if spec.gpu_source != "declared" or not isinstance(theirs, dict):
        return []
    held, _ = _holds(other)
    taken = [theirs[name] for name in held or () if name in theirs]
    return [name for name in spec.gpus if spec.gpu_index.get(name, -1) in taken]


def _nudge(seen: Seen) -> None:
    """Tell the supervisor to look at its intent now; it looks each second anyway."""
    import signal

    from . import procs

    supervisor = seen.status.get("supervisor")
    entry = procs.Process.from_json(supervisor)
    if entry is not None:
        procs.signal_process(entry.pid, entry.start_time, signal.SIGUSR1)
