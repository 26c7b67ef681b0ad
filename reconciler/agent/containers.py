"""The container tool, asked within deadlines: a container's processes are no children of ours."""

from __future__ import annotations

import subprocess
from typing import Dict, List, Optional

from .spec import Container

ASK_S = 10.0


def is_running(container: Container, env: Dict[str, str]) -> Optional[bool]:
    """Whether it runs; None where the tool did not say."""
    out = _run([container.tool, "ps", "--quiet", "--filter", "name=^%s$" % container.name], env)
    return None if out is None else bool(out.strip())


def stop_command(container: Container, grace_s: float) -> List[str]:
    """Asks the container to end, and ends it after the grace."""
    return [container.tool, "stop", "--time", str(max(0, int(grace_s))), container.name]


def remove(container: Container, env: Dict[str, str]) -> None:
    """End and remove what is left of it."""
    _run([container.tool, "rm", "--force", container.name], env)


def _run(command: List[str], env: Dict[str, str]) -> Optional[str]:
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ASK_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")
