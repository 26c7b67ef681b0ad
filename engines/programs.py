"""Which program to execute: from PATH, the profile, a node's or the fleet's settings, or an image.

A path is a program where its folder is `bin`, or where its name is the program's or one of
Python's; anything else is the folder of a virtual environment (`/opt/vllm`).
"""

from __future__ import annotations

from engines.base import EngineProfile, Host


def program(profile: EngineProfile, host: Host, name: str) -> str:
    """The program `name`, the engine's main one. In an image: by name, from its PATH."""
    path = _override(profile, host)
    if not path:
        return name
    return path if _is_program(profile, path, name) else f"{path}/bin/{name}"


def beside(profile: EngineProfile, host: Host, name: str, main: str) -> str:
    """The program `name` that comes with the engine: set by name, else beside the main program."""
    if profile.runtime.kind == "container":
        return name
    if name in host.programs:
        return host.programs[name]
    path = program(profile, host, main)
    return f"{path.rsplit('/', 1)[0]}/{name}" if "/" in path else name


def _override(profile: EngineProfile, host: Host) -> str:
    if profile.runtime.kind == "container":
        return ""
    return (host.binary or profile.runtime.path).rstrip("/")


def _is_program(profile: EngineProfile, path: str, name: str) -> bool:
    folder, _, last = path.rpartition("/")
    if profile.runtime.kind == "venv" and path == profile.runtime.path.rstrip("/"):
        return False
    return folder.endswith("/bin") or last == name or last.startswith("python")
