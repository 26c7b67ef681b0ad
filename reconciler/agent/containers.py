"""The container tool, asked within deadlines: a container's processes are no children of ours.

A container is known by its name and by the labels `reconcile.launch` and `reconcile.fleet`; both
tools take the same words for all that is asked here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from .spec import Container
from .wire import Json

TOOLS = ("podman", "docker")
ASK_S = 10.0
LAUNCH_LABEL, FLEET_LABEL = "reconcile.launch", "reconcile.fleet"


class Outcome(NamedTuple):
    """How a container ended, by its runtime."""

    code: int
    out_of_memory: bool


def running(tool: str, env: Mapping[str, str]) -> Optional[List[Json]]:
    """Labelled containers that run (`launch`, `fleet`, `name`); None: the tool did not say."""
    ids = _run([tool, "ps", "--quiet", "--no-trunc", "--filter", "label=" + LAUNCH_LABEL], env)
    if ids is None or not ids.split():
        return None if ids is None else []
    # Not `ps --format`: the two tools print labels differently there.
    shown = _run([tool, "inspect", *ids.split()], env)
    try:
        entries: List[Any] = json.loads(shown or "")
        return [_entry(entry) for entry in entries]
    except (ValueError, KeyError, TypeError):
        return None


def _entry(entry: Json) -> Json:
    labels = entry["Config"]["Labels"]
    name = str(entry["Name"]).lstrip("/")
    return {"launch": labels[LAUNCH_LABEL], "fleet": labels.get(FLEET_LABEL, ""), "name": name}


def installed(env: Mapping[str, str]) -> List[str]:
    """The tools that this node has."""
    return [tool for tool in TOOLS if shutil.which(tool, path=env.get("PATH")) is not None]


def is_running(container: Container, env: Mapping[str, str]) -> Optional[bool]:
    """Whether it runs; None where the tool did not say."""
    pattern = "name=^%s$" % container.name
    out = _run([container.tool, "ps", "--quiet", "--filter", pattern], env)
    return None if out is None else bool(out.strip())


def outcome(container: Container, env: Mapping[str, str]) -> Optional[Outcome]:
    """How it ended; None where it is not there any more, or the tool did not say."""
    out = _run([container.tool, "inspect", container.name], env)
    try:
        state = json.loads(out or "")[0]["State"]
        return Outcome(int(state["ExitCode"]), state.get("OOMKilled") is True)
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def stop_command(container: Container, grace_s: float) -> Tuple[str, ...]:
    """Asks the container to end, and ends it after the grace."""
    return (container.tool, "stop", "--time", str(max(0, int(grace_s))), container.name)


def wait_command(container: Container) -> Tuple[str, ...]:
    """Ends when the container does."""
    return (container.tool, "wait", container.name)


def remove(container: Container, env: Mapping[str, str]) -> None:
    """End and remove what is left of it."""
    _run([container.tool, "rm", "--force", container.name], env)


def _run(command: List[str], env: Mapping[str, str]) -> Optional[str]:
    try:
        done = subprocess.run(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ASK_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


def by_launch(env: Mapping[str, str]) -> Dict[str, Optional[List[Json]]]:
    """What runs, for each tool that this node has."""
    return {tool: running(tool, env) for tool in installed(env)}
