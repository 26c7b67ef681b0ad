"""Which program to execute: from PATH, the profile, a node's or the fleet's settings, or an image.

A profile says what its path is (`runtime.kind`: binary or venv). A path in a node's or the fleet's
`engines` is a program where its folder is `bin`, and for engines that never live in a virtual
environment; else it is that environment's folder (`/opt/vllm`).
"""

from __future__ import annotations

from engines.base import EngineProfile, Host


def program(profile: EngineProfile, host: Host, name: str, *, in_venv: bool = True) -> str:
    """The program `name`, the engine's main one. In an image: the profile's path, else by name."""
    if profile.runtime.kind == "container":
        return profile.runtime.path or name
    if host.binary:
        path = host.binary.rstrip("/")
        is_program = not in_venv or path.rpartition("/")[0].endswith("/bin")
        return path if is_program else f"{path}/bin/{name}"
    path = profile.runtime.path.rstrip("/")
    if not path:
        return name
    return f"{path}/bin/{name}" if profile.runtime.kind == "venv" else path


def beside(main: str, host: Host, profile: EngineProfile, name: str) -> str:
    """The program `name` that comes with the engine: set by name, else beside `main`."""
    if name in host.programs and profile.runtime.kind != "container":
        return host.programs[name]
    return f"{main.rsplit('/', 1)[0]}/{name}" if "/" in main else name
