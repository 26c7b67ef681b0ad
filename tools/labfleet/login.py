"""SSH into a node by the system's own client: strict about the host key, silent, bounded."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from tools.labfleet.host import PATH, LabError
from tools.labfleet.record import LabNode


def argv(node: LabNode, known_hosts: Path, *, user: str, connect_s: int) -> list[str]:
    """The command that reaches a node, up to and without the remote command."""
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": connect_s,
        "IdentitiesOnly": "yes",
        "LogLevel": "ERROR",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": f'"{known_hosts}"',
    }
    flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    return ["ssh", "-F", "none", "-i", node.identity_file, *flags, f"{user}@{node.address}"]


def run(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run an ssh command to its end. LabError where it outlives `timeout_s`."""
    try:
        return subprocess.run(
            command,
            timeout=timeout_s,
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={"PATH": PATH},
        )
    except subprocess.TimeoutExpired:
        said = f"{command[-1]!r} took over {timeout_s:g} s"
        raise LabError(f"ssh {command[-2]}", said) from None


def listens(node: LabNode) -> bool:
    """Whether its SSH port accepts. Impatient: a SYN to a booting node is lost, the next is not."""
    try:
        with socket.create_connection((node.address, node.port), timeout=0.1):
            return True
    except OSError:
        return False
