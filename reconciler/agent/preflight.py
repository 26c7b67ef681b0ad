"""Whether this node is fit for a launch now: all findings at once, before anything is written.

Asks what the start would stumble over, in words that name values. What may hang is asked in probe
children; a question that got no answer is a finding too, never a pass.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import socket
from typing import Any, Dict, Iterable, List, Mapping, Tuple

from . import environment, logout, netlink, reaching, secretfiles, units
from .node import Node
from .probe import SYSFS, VERSION_S
from .probes import Probes
from .spec import Command, Spec
from .wire import Json

DEADLINE_S = 8.0
UNSEEN_MIB = 2048
"""Memory in use on a GPU on which no process can be seen (another pid namespace): a driver alone
uses less."""


def findings(
    node: Node,
    spec: Spec,
    probes: Probes,
    gpus: Json,
    env: Mapping[str, str],
    replaces: str = "",
    *,
    trying: bool = False,
) -> List[str]:
    """Why the launch must not be started here now; `gpus` is a fresh `GpusPart`.

    `replaces`: a launch that will have ended by then. Its processes on GPUs do not count, and what
    RAM and /dev/shm it gives back cannot be told, so these two are not looked at. `trying`: the
    leader is not being started yet, so a worker may knock at its ports.
    """
    found: List[str] = []
    found += _mode(spec)
    found += _ports(spec)
    found += _interface(spec)
    found += _adapters(spec, probes)
    found += reaching.findings(spec, trying=trying)
    found += _programs(spec, env)
    found += _version(spec, probes, env)
    found += _paths(node, spec, probes)
    found += _gpus(spec, gpus, replaces)
    found += _needs(node, spec, probes, replaces)
    found += _root(node)
    return found


def _mode(spec: Spec) -> List[str]:
    if spec.mode not in ("plain", "system"):
        return ["mode %s: this agent knows plain and system" % spec.mode]
    if spec.mode == "system":
        why = units.unavailable()
        return [why] if why else []
    why = logout.ends_all()
    return [why] if why else []


def _ports(spec: Spec) -> List[str]:
    if not spec.address or not spec.ports:
        return []
    try:
        family, _, _, _, target = socket.getaddrinfo(
            spec.address, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        return ["address %s: %s" % (spec.address, error)]
    found = []
    for name, port in sorted(spec.ports.items(), key=lambda item: item[1]):
        why = _cannot_bind(family, (target[0], port, *target[2:]))
        if why:
            found.append("port %d (%s) on %s: %s" % (port, name, spec.address, why))
    return found


def _cannot_bind(family: int, target: Any) -> str:
    """A listener of another process makes this fail, also where both would share the port."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(target)
            probe.listen(1)
        except (OSError, OverflowError) as error:
            return getattr(error, "strerror", None) or str(error)
    return ""


def _interface(spec: Spec) -> List[str]:
    if not spec.interface:
        return []
    try:
        found = {interface.name: interface for interface in netlink.interfaces()}
    except OSError as error:
        return ["interface %s cannot be looked for: %s" % (spec.interface, error)]
    if spec.interface not in found:
        return ["interface %s is not here (%s are)" % (spec.interface, ", ".join(sorted(found)))]
    return [] if found[spec.interface].up else ["interface %s is down" % spec.interface]


def _adapters(spec: Spec, probes: Probes) -> List[str]:
    if not spec.adapters:
        return []
    reply = probes.system.ask({"adapters": None}, DEADLINE_S)
    if reply.error or not reply.parts:
        return ["adapters: %s" % (reply.error or "no answer")]
    return missing_adapters(spec.adapters, reply.parts[0]["adapters"])


def missing_adapters(wanted: Iterable[Tuple[str, int]], adapters: List[Json]) -> List[str]:
    """The fabric's adapters that are not here or not up; nothing where none at all can be seen."""
    seen: Dict[Tuple[str, int], Json] = {(a["name"], a["port"]): a for a in adapters}
    found = []
    for name, port in wanted if seen else ():
        adapter = seen.get((name, port))
        if adapter is None:
            names = ", ".join("%s:%d" % key for key in sorted(seen))
            found.append("adapter %s:%d is not here (%s are)" % (name, port, names))
        elif adapter["state"] and adapter["state"] != "active":
            found.append("adapter %s:%d is %s, not active" % (name, port, adapter["state"]))
    return found


def _version(spec: Spec, probes: Probes, env: Mapping[str, str]) -> List[str]:
    """The engine's version against what the profile needs; one that is not known is let through."""
    if not spec.engine_version:
        return []
    told, program = engine_version(spec, probes, env)
    have, need = _numbers(told), _numbers(spec.engine_version)
    if not have or not need or have >= need[: len(have)]:
        return []
    return ["%s is version %s, the profile needs %s" % (program, told, spec.engine_version)]


def engine_version(spec: Spec, probes: Probes, env: Mapping[str, str]) -> Tuple[str, str]:
    """Version of the last command's program as it says it itself (empty: not known), and its path.

    An engine in a container is another one than any on the node: not known.
    """
    command = spec.commands[-1]
    path = command.env.get("PATH") or environment.base(env)["PATH"]
    program = shutil.which(command.argv[0], path=path) or command.argv[0]
    if spec.container is not None:
        return "", program
    reply = probes.system.ask({"version": [program, path]}, VERSION_S + 2)
    told = reply.parts[0]["version"] if reply.parts and not reply.error else ""
    return str(told), program


def _numbers(version: str) -> Tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def facts(spec: Spec, probes: Probes, env: Mapping[str, str]) -> Json:
    """What a check tells beside findings: sizes to compare between nodes, and what is not known."""
    sizes: Dict[str, int] = {}
    if spec.require_paths:
        reply = probes.system.ask({"sizes": list(spec.require_paths)}, DEADLINE_S)
        if reply.parts and not reply.error:
            sizes = reply.parts[0]["sizes"]
    notes = []
    if spec.adapters and not glob.glob(SYSFS + "/*"):
        names = ", ".join("%s:%d" % key for key in spec.adapters)
        notes.append("no RDMA adapter can be seen here, so %s could not be looked for" % names)
    version = ""
    if spec.engine_version:
        version, program = engine_version(spec, probes, env)
        if not version:
            notes.append(
                "%s does not tell its version; the profile needs %s"
                % (program, spec.engine_version)
            )
    return {"sizes": sizes, "engine_version": version, "notes": notes}


def _programs(spec: Spec, env: Mapping[str, str]) -> List[str]:
    return [why for why in (_missing_program(c, env) for c in spec.commands) if why]


def _missing_program(command: Command, env: Mapping[str, str]) -> str:
    program = command.argv[0]
    path = command.env.get("PATH") or environment.base(env)["PATH"]
    if "/" in program and not os.path.isabs(program):
        return "command %s: program %s is neither absolute nor a name" % (command.name, program)
    if shutil.which(program, path=path) is None:
        where = "" if "/" in program else " in PATH %s" % path
        return "command %s: program %s is not found or not executable%s" % (
            command.name,
            program,
            where,
        )
    return ""


def _paths(node: Node, spec: Spec, probes: Probes) -> List[str]:
    # What comes with the start is written with its record, so it cannot be there yet.
    sent = secretfiles.paths(node, spec)
    files = [path for command in spec.commands for path in command.env_files.values()]
    secrets = [path for path in files if path not in sent]
    paths = [*spec.require_paths, *secrets]
    if not paths:
        return []
    reply = probes.system.ask({"paths": paths}, DEADLINE_S)
    if reply.error or not reply.parts:
        return ["paths %s: %s" % (", ".join(paths), reply.error or "no answer")]
    states: List[Json] = reply.parts[0]["paths"]
    found = ["path %s: %s" % (s["path"], s["error"]) for s in states if s["error"]]
    empty = [s["path"] for s in states if s["path"] in secrets and s.get("size", 1) <= 1]
    return found + ["secret %s: the file is empty" % path for path in empty]


def _gpus(spec: Spec, gpus: Json, replaces: str) -> List[str]:
    if not spec.gpus:
        return []
    if spec.gpu_source == "declared":
        absent = [name for name in spec.gpus if name not in spec.gpu_index]
        return ["GPU %s: the spec gives no index for it" % name for name in absent]
    if gpus.get("error"):
        return ["GPUs cannot be seen: %s" % gpus["error"]]
    by_uuid: Dict[str, Json] = {gpu["uuid"]: gpu for gpu in gpus["items"]}
    found = []
    for uuid in spec.gpus:
        gpu = by_uuid.get(uuid)
        if gpu is None:
            found.append("GPU %s is not on this node (%d others are)" % (uuid, len(by_uuid)))
        else:
            found += _busy(uuid, gpu, replaces) or _small(
                uuid, gpu, spec.needs.get("gpu_memory_gib")
            )
    return found


def _small(uuid: str, gpu: Json, need_gib: Any) -> List[str]:
    # An "80 GB" card has 79.6 GiB: what the label says counts, so a tenth less is let pass.
    memory = gpu.get("memory_mib") or 0
    if not isinstance(need_gib, int) or not memory or memory >= need_gib * 1024 * 0.9:
        return []
    return ["GPU %s has %d MiB, the profile needs %d GiB" % (uuid, memory, need_gib)]


def _busy(uuid: str, gpu: Json, replaces: str) -> List[str]:
    if gpu["error"]:
        return ["GPU %s: %s" % (uuid, gpu["error"])]
    processes: List[Json] = gpu.get("processes", [])
    if replaces and any(p["launch"] == replaces for p in processes):
        strangers = [p for p in processes if p["launch"] != replaces]
        return ["GPU %s is held by %s" % (uuid, _holder(p)) for p in strangers]
    if processes:
        return ["GPU %s is held by %s" % (uuid, _holder(p)) for p in processes]
    used = gpu.get("used_mib") or 0
    if used > UNSEEN_MIB:
        return ["GPU %s has %d MiB in use by processes that cannot be seen" % (uuid, used)]
    return []


def _holder(process: Json) -> str:
    owner = "launch %s" % process["launch"] if process["launch"] else "a stranger"
    memory = process["used_mib"]
    return "%s: pid %d (%s, user %s, %s MiB)" % (
        owner,
        process["pid"],
        process["name"] or "?",
        process["user"] or "?",
        "?" if memory is None else memory,
    )


def _needs(node: Node, spec: Spec, probes: Probes, replaces: str) -> List[str]:
    """RAM, shared memory and limits against what the profile asks for."""
    needs = {k: v for k, v in spec.needs.items() if v and not isinstance(v, bool)}
    wanted = {"ram_gib", "shm_gib", "nofile", "memlock"} & needs.keys()
    if not wanted:
        return []
    reply = probes.system.ask({"resources": node.root}, DEADLINE_S)
    if reply.error or not reply.parts:
        return ["resources: %s" % (reply.error or "no answer")]
    have: Json = reply.parts[0]["resources"]
    found = []
    for name, free, what in (
        ("ram_gib", have["ram_free_mib"], "RAM"),
        ("shm_gib", have["shm_free_mib"], "/dev/shm"),
    ):
        need = 0 if replaces else needs.get(name, 0)
        if need and (free is None or free < need * 1024):
            found.append("%s: %s MiB free, the profile needs %s GiB" % (what, free, need))
    if spec.mode == "system":
        return found
    if needs.get("nofile", 0) > have["nofile"]:
        found.append("nofile: at most %d, the profile needs %s" % (have["nofile"], needs["nofile"]))
    if not _enough_memlock(have["memlock"], str(needs.get("memlock", ""))):
        found.append("memlock: %s, the profile needs %s" % (have["memlock"], needs["memlock"]))
    return found


def _enough_memlock(have: str, need: str) -> bool:
    if not need or have == "unlimited":
        return True
    return need.isdigit() and have.split()[0].isdigit() and int(have.split()[0]) >= int(need)


def _root(node: Node) -> List[str]:
    """Written to for real: a file system that went read-only still says that it may be."""
    path = os.path.join(node.root, ".writable.%d" % os.getpid())
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, b"x" * 65536)
        finally:
            os.close(fd)
            os.unlink(path)
    except OSError as error:
        return ["root %s is not writable: %s" % (node.root, error.strerror)]
    return []
