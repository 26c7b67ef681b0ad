"""The shape of spec.json, checked before it is written and each time it is read.

A record that does not have this shape is *damaged*, and damage is one launch's alone: an answer
must never be unreadable as a whole because one record in it is.
"""

from __future__ import annotations

import posixpath
import re
import signal
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .procs import MARK
from .store import Damaged
from .wire import Json

MAJOR = "1"
LAUNCH = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")
_COMMAND = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}\Z")
_SECRET = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?\Z")
PROBE_INTERVAL_S = 5.0
"""Pause between health probes of a shard that is ready: one request every five seconds costs an
engine nothing, and three of them (15 s) bound how old an answer may be that counts."""


class Command(NamedTuple):
    """One process of a shard."""

    name: str
    argv: Tuple[str, ...]
    env: Dict[str, str]
    wait_for: Optional[Tuple[str, int]]
    gpu_env: Tuple[str, ...]
    env_files: Dict[str, str]
    """Variable to the file on this node that holds its value: secrets."""


class HealthCheck(NamedTuple):
    """Where readiness is asked."""

    host: str
    port: int
    path: str
    model: str
    interval_s: float


class DrainCheck(NamedTuple):
    """Where requests in flight are asked before a stop."""

    metrics: Tuple[str, ...]
    path: str
    settle_s: float
    at: Tuple[Tuple[str, int], ...]
    """Host and port of every rank that serves."""


class Container(NamedTuple):
    """The last command runs in it."""

    tool: str
    name: str


class Spec(NamedTuple):
    """What a supervisor needs of spec.json."""

    fleet: str
    launch: str
    replica: str
    seq: int
    rank: int
    gpus: Tuple[str, ...]
    """This rank's."""
    ports: Dict[str, int]
    """This rank's."""
    machine_id: str
    mode: str
    address: str
    interface: str
    gpu_source: str
    gpu_index: Dict[str, int]
    commands: Tuple[Command, ...]
    files: Tuple[Tuple[str, str], ...]
    container: Optional[Container]
    health: Optional[HealthCheck]
    secrets: Tuple[str, ...]
    """Names of values that come beside the spec, as files of these names in the launch's folder."""
    require_paths: Tuple[str, ...]
    needs: Json
    start_timeout_s: float
    stop_grace_s: float
    drain_s: float
    drain: Optional[DrainCheck]
    """None: not known (an older record, an engine that does not tell); the whole time is waited."""
    stop_signal: int
    boot_id: str
    engine_version: str
    """Least version of the engine that the profile asks for; empty: any."""
    leader: str
    """Rank 0's address on the network on which ranks find each other."""
    leader_ports: Tuple[int, ...]
    """Where ranks will reach it; empty in an older record."""
    adapters: Tuple[Tuple[str, int], ...]
    """The fabric's on this node, each with its port."""

    @property
    def mark(self) -> str:
        """What every process of the shard carries in RECONCILE_MARK."""
        return "%s/%s/%d@%s" % (self.fleet, self.launch, self.rank, self.machine_id)


class _Reader:
    """Typed access by key path; the first misfit raises Damaged with that path."""

    def __init__(self, data: Any, path: str = "") -> None:
        if not isinstance(data, dict):
            raise Damaged("%s is no object" % (path or "spec.json"))
        self.data = data
        self.path = path

    def get(self, name: str, kind: Any, default: Any = None) -> Any:
        value = self.data.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise Damaged("%s%s: %s" % (self.path, name, type(value).__name__))
        return value

    def text(self, name: str, default: Optional[str] = None) -> str:
        value: str = self.get(name, str, default)
        if "\0" in value:
            raise Damaged("%s%s: holds a NUL" % (self.path, name))
        return value

    def integer(self, name: str, default: Optional[int] = None) -> int:
        value: int = self.get(name, int, default)
        return value

    def seconds(self, name: str, default: float) -> float:
        value = float(self.get(name, (int, float), default))
        if not 0 <= value <= 1e9:
            raise Damaged("%s%s: %r seconds" % (self.path, name, value))
        return value

    def texts(self, name: str, default: Any = None) -> Tuple[str, ...]:
        value = self.get(name, list, default)
        if not all(isinstance(v, str) and "\0" not in v for v in value):
            raise Damaged("%s%s: holds other than text" % (self.path, name))
        return tuple(value)

    def mapping(self, name: str, kind: type, default: Any = None) -> Dict[str, Any]:
        value = self.get(name, dict, default)
        for key, item in value.items():
            if not isinstance(item, kind) or isinstance(item, bool) or "\0" in "%s%s" % (key, item):
                raise Damaged("%s%s.%s: %s" % (self.path, name, key, type(item).__name__))
        return dict(value)

    def objects(self, name: str, default: Any = None) -> List["_Reader"]:
        items = self.get(name, list, default)
        return [_Reader(v, "%s%s[%d]." % (self.path, name, i)) for i, v in enumerate(items)]


def record_of(spec: Json) -> Json:
    """The part of spec.json that an observation shows (`Record`). Raises Damaged."""
    reader = _Reader(spec)
    refuse_newer(reader.text("format"))
    record: Json = {name: reader.text(name) for name in ("format", "fleet", "launch", "replica")}
    record["seq"], record["rank"] = reader.integer("seq"), reader.integer("rank")
    record["places"] = [_place(p) for p in reader.objects("places")]
    for name in ("boot_id", "mode", "restart", "fingerprint"):
        record[name] = reader.text(name, "")
    record["profile"] = spec.get("profile")
    for name in ("health", "container", "drain"):
        if not isinstance(spec.get(name), (dict, type(None))):
            raise Damaged("%s: %s" % (name, type(spec[name]).__name__))
    return record


def refuse_newer(version: str) -> None:
    """Damaged for another major than ours: it is left alone, and can be stopped all the same."""
    if version.split(".")[0] != MAJOR:
        raise Damaged("format %s: this agent reads %s.x" % (version[:20], MAJOR))


def _place(place: _Reader) -> Json:
    return {
        "rank": place.integer("rank"),
        "node": place.text("node"),
        "machine_id": place.text("machine_id"),
        "gpus": list(place.texts("gpus")),
        "ports": place.mapping("ports", int),
        "address": place.text("address", ""),
        # Not recorded is not the same as none.
        "fabric": None if place.data.get("fabric") is None else place.text("fabric"),
    }


def parse(spec: Json) -> Spec:
    """The whole of spec.json. Raises Damaged with the key path of the first misfit."""
    record = record_of(spec)
    reader = _Reader(spec)
    mine = [p for p in record["places"] if p["rank"] == record["rank"]]
    if len(mine) != 1:
        raise Damaged("places: %d of them have rank %d" % (len(mine), record["rank"]))
    if not LAUNCH.match(record["launch"]):
        raise Damaged("launch: %r is no launch id" % record["launch"])
    network = _Reader(reader.get("network", dict, {}), "network.")
    leader = _Reader(network.get("leader", dict, {}), "network.leader.")
    health, container, drain = spec.get("health"), spec.get("container"), spec.get("drain")
    return Spec(
        fleet=record["fleet"],
        launch=record["launch"],
        replica=record["replica"],
        seq=record["seq"],
        rank=record["rank"],
        gpus=tuple(mine[0]["gpus"]),
        ports=mine[0]["ports"],
        machine_id=mine[0]["machine_id"],
        mode=record["mode"] or "plain",
        address=reader.text("address", ""),
        interface=network.text("interface", ""),
        gpu_source=reader.text("gpu_source", "nvml"),
        gpu_index=reader.mapping("gpu_index", int, {}),
        commands=_commands(reader),
        files=tuple(_file(f) for f in reader.objects("files", [])),
        container=None if container is None else _container(_Reader(container, "container.")),
        health=None if health is None else _health(_Reader(health, "health.")),
        secrets=_secrets(reader.texts("secrets", [])),
        require_paths=reader.texts("require_paths", []),
        needs=reader.get("needs", dict, {}),
        start_timeout_s=reader.seconds("start_timeout_s", 1800.0),
        stop_grace_s=reader.seconds("stop_grace_s", 30.0),
        drain_s=reader.seconds("drain_s", 0.0),
        drain=None if drain is None else _drain(_Reader(drain, "drain.")),
        stop_signal=_signal(reader.text("stop_signal", "TERM")),
        boot_id=record["boot_id"],
        engine_version=reader.text("engine_version", ""),
        leader=leader.text("host", "")
        or next((p["address"] for p in record["places"] if p["rank"] == 0), ""),
        leader_ports=_ports(leader),
        adapters=tuple(
            (a.text("name"), a.integer("port")) for a in network.objects("adapters", [])
        ),
    )


def _ports(reader: _Reader) -> Tuple[int, ...]:
    ports = reader.get("ports", list, [])
    if not all(isinstance(p, int) and not isinstance(p, bool) and 0 < p < 65536 for p in ports):
        raise Damaged("%sports: %r" % (reader.path, ports))
    return tuple(ports)


def _commands(reader: _Reader) -> Tuple[Command, ...]:
    commands = tuple(_command(c) for c in reader.objects("commands"))
    names = [c.name for c in commands]
    if not commands or len(set(names)) != len(names):
        raise Damaged("commands: at least one, each with a name of its own; got %r" % names)
    return commands


def _command(reader: _Reader) -> Command:
    name, argv = reader.text("name"), reader.texts("argv")
    if not _COMMAND.match(name) or name == "supervisor":
        raise Damaged("%sname: %r names a log file and cannot be used" % (reader.path, name))
    if not argv or not argv[0]:
        raise Damaged("%sargv: names no program" % reader.path)
    env = reader.mapping("env", str, {})
    env_files = reader.mapping("env_files", str, {})
    for key in (*env, *env_files):
        if not key or "=" in key or key == MARK:
            raise Damaged("%senv: %r cannot be set" % (reader.path, key))
    wait = reader.data.get("wait_for")
    target = None if wait is None else _Reader(wait, reader.path + "wait_for.")
    address = None if target is None else (target.text("host"), target.integer("port"))
    return Command(name, argv, env, address, reader.texts("gpu_env", []), env_files)


def _secrets(names: Tuple[str, ...]) -> Tuple[str, ...]:
    for name in names:
        if not _SECRET.match(name):
            raise Damaged("secrets: %r is no name of a secret" % name)
    return names


def _file(reader: _Reader) -> Tuple[str, str]:
    return _file_at(reader.path, reader.text("path"), reader.get("content", str, ""))


def _file_at(where: str, path: str, content: str) -> Tuple[str, str]:
    parts = path.split("/")
    if posixpath.isabs(path) or posixpath.normpath(path) != path or ".." in parts or path == ".":
        raise Damaged("%spath: %r leaves the launch's folder" % (where, path))
    return path, content


def _container(reader: _Reader) -> Container:
    tool, name = reader.text("tool"), reader.text("name")
    if tool not in ("docker", "podman") or not LAUNCH.match(name):
        raise Damaged("container: tool %r, name %r" % (tool, name))
    return Container(tool, name)


def _drain(reader: _Reader) -> DrainCheck:
    at = [(t.text("host"), t.integer("port")) for t in reader.objects("at", [])]
    metrics = reader.texts("metrics")
    return DrainCheck(
        metrics, _path(reader, "/metrics"), reader.seconds("settle_s", 1.0), tuple(at)
    )


def _path(reader: _Reader, default: str) -> str:
    path = reader.text("path", default)
    if not path.startswith("/") or any(c <= " " or c > "~" for c in path):
        raise Damaged("%spath: %r" % (reader.path, path))
    return path


def _health(reader: _Reader) -> HealthCheck:
    path = _path(reader, "/health")
    return HealthCheck(
        host=reader.text("host", "127.0.0.1"),
        port=reader.integer("port"),
        path=path,
        model=reader.text("model", ""),
        interval_s=max(0.1, reader.seconds("interval_s", PROBE_INTERVAL_S)),
    )


def _signal(name: str) -> int:
    known = getattr(signal, "SIG" + name.upper().replace("SIG", "", 1), None)
    if not isinstance(known, signal.Signals):
        raise Damaged("stop_signal: %r is no signal" % name)
    return int(known)


def labels_of(data: Json) -> Json:
    """labels.json as an observation shows it (`Labels`). Raises Damaged."""
    reader = _Reader(data, "labels.")
    labels: Json = {n: reader.text(n, "") for n in ("placement", "replica", "owner", "revision")}
    labels["ordinal"] = reader.integer("ordinal", 0)
    labels["labels"] = reader.mapping("labels", str, {})
    labels["unhealthy_after_s"] = reader.integer("unhealthy_after_s", 300)
    files = reader.mapping("files", str, {})
    if files:
        # Absent where there are none: an answer to an older reconciler stays as it was.
        labels["files"] = dict(_file_at("labels.", path, text) for path, text in files.items())
    return labels
