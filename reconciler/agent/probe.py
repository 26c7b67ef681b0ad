"""The child that asks what may hang: NVML, sysfs, file systems on paths that a spec names.

One request line in, one or more answer lines out, the last one `{"done": true}`. It knows nothing
of deadlines: its parent has one and kills it.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from typing import Any, Callable, Dict, Iterator, List

from . import containers, environment, netlink, nvml
from .wire import Json

VERSION_S = 6.0
"""Less than a request may take. An engine that imports all of itself to tell its version may need
longer on a cold disk: its version is then not known, and it is let through."""

_VERSION = re.compile(r"(?<![\w.])v?(\d+(?:\.\d+)+)")
SYSFS = "/sys/class/infiniband"


def main(kind: str) -> int:
    """Answer requests on stdin until it ends."""
    asks = {"nvml": _nvml_ask, "system": _system_ask}
    answer = asks[kind]()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            for parts in answer(request):
                _say(*parts)
            _say({"done": True})
        except Exception as error:  # noqa: BLE001 - the one edge of this process
            _say({"done": True, "error": "%s: %s" % (type(error).__name__, error)})
    return 0


def _say(*parts: Json) -> None:
    """At once: whatever is asked next may hang. One write, or the parent is woken for each part."""
    sys.stdout.write("".join(json.dumps(part) + "\n" for part in parts))
    sys.stdout.flush()


def _nvml_ask() -> Callable[[Json], Iterator[List[Json]]]:
    gpus = nvml.Gpus()
    return lambda request: gpus.look(str(request.get("kernel_log", "")))


def _system_ask() -> Callable[[Json], Iterator[List[Json]]]:
    return _system


def _system(request: Json) -> Iterator[List[Json]]:
    asks: Dict[str, Callable[[Any], Any]] = {
        "adapters": lambda _: adapters(),
        "interfaces": lambda _: [dict(i._asdict()) for i in netlink.interfaces()],
        "resources": lambda root: resources(root),
        "containers": lambda _: containers.by_launch(environment.base(os.environ)),
        "sizes": sizes,
        "version": version,
        "paths": lambda paths: [path_state(p) for p in paths],
    }
    for name, argument in request.items():
        yield [{name: asks[name](argument)}]


def adapters() -> List[Json]:
    """RDMA adapter ports; a node without such hardware has none."""
    found: List[Json] = []
    for name in _names(SYSFS):
        device = "%s/%s" % (SYSFS, name)
        links = _names("%s/device/net" % device)
        for port in _names("%s/ports" % device):
            folder = "%s/ports/%s" % (device, port)
            found.append(
                {
                    "name": name,
                    "port": int(port),
                    # "4: ACTIVE"
                    "state": _value("%s/state" % folder).partition(": ")[2].lower(),
                    "link_layer": _value("%s/link_layer" % folder),
                    "rate": _value("%s/rate" % folder),
                    "interface": links[0] if links else "",
                }
            )
    return found


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _value(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(256).strip()
    except OSError:
        return ""


def resources(root: str) -> Json:
    """What is free, and the limits as far as a launch of this user can have them raised."""
    most = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    return {
        "ram_free_mib": _ram_free_mib(),
        "shm_free_mib": _free_mib("/dev/shm"),
        "disk_free_mib": _free_mib(root),
        "memlock": "unlimited" if most == resource.RLIM_INFINITY else "%d KiB" % (most // 1024),
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    }


def _ram_free_mib() -> Any:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) // 1024
    return None


def _free_mib(path: str) -> Any:
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize >> 20


def sizes(paths: List[str]) -> Dict[str, int]:
    """Bytes of each path: a file's, or of all files right in a folder (weights lie flat)."""
    found = {}
    for path in paths:
        try:
            if os.path.isdir(path):
                with os.scandir(path) as entries:
                    found[path] = sum(e.stat().st_size for e in entries if e.is_file())
            else:
                found[path] = os.stat(path).st_size
        except OSError:
            continue
    return found


_versions: Dict[Any, str] = {}


def version(asked: List[str]) -> str:
    """What `PROGRAM --version` says, once per file; empty where it says nothing in time."""
    program, path = asked
    try:
        stat = os.stat(program)
    except OSError:
        return ""
    key = (program, stat.st_mtime_ns, stat.st_size)
    if key not in _versions:
        env = {**environment.base(os.environ), "PATH": path}
        _versions[key] = _version_line(program, env)
    return _versions[key]


def _version_line(program: str, env: Dict[str, str]) -> str:
    try:
        said = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=VERSION_S,
            env=env,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = _VERSION.search(said.stdout[:4096].decode("utf-8", "replace"))
    return match.group(1) if match and said.returncode == 0 else ""


def path_state(path: str) -> Json:
    """Whether a path that a launch needs is there and readable."""
    try:
        stat = os.stat(path)
    except OSError as error:
        return {"path": path, "error": error.strerror or "cannot be read"}
    if not os.access(path, os.R_OK):
        return {"path": path, "error": "not readable by %s" % os.getuid()}
    return {"path": path, "error": "", "size": stat.st_size}
