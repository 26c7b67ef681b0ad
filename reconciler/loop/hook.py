"""Runs the command that makes a balancer take new endpoints: an argv, no shell, with a deadline.

It is somebody else's program, so nothing of ours may hang on it: its output goes to a file and not
to a pipe (a child that it leaves behind would keep a pipe open), and at the deadline its whole
process group is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from reconciler.report.clean import printable
from reconciler.settings import child_environment

TAIL_BYTES = 400
"""Of its output, in the error: the last lines say what failed."""


def run_hook(argv: Sequence[str], folder: Path, timeout_s: float) -> str:
    """Why it failed; empty: it ended well. It finds the files under RECONCILE_ENDPOINTS_DIR."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=child_environment(RECONCILE_ENDPOINTS_DIR=str(folder)),
                start_new_session=True,
            )
        except OSError as error:
            return f"{argv[0]} cannot be started: {error.strerror}"
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"{argv[0]} was killed after {timeout_s:.0f} s{_tail(output.fileno())}"
        if code == 0:
            return ""
        ended = f"ended with {code}" if code > 0 else f"was ended by signal {-code}"
        return f"{argv[0]} {ended}{_tail(output.fileno())}"


def _tail(fd: int) -> str:
    size = os.fstat(fd).st_size
    text = os.pread(fd, TAIL_BYTES, max(0, size - TAIL_BYTES)).decode("utf-8", "replace").strip()
    return f": {printable(' | '.join(text.splitlines()))}" if text else ""
