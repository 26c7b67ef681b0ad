"""Runs a program that judges what others wrote: an argv, no shell, a deadline, bounded output."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from reconciler.settings import child_environment

MAX_OUTPUT = 64 << 10
"""Bytes of stdout and of stderr; a program that says more is ended."""

TIMEOUT_S = 10.0
"""What it is run for takes milliseconds."""


@dataclass(frozen=True)
class Ended:
    """How it ended."""

    code: int
    """Its exit code; 127: it could not be started, 124: it was ended by us."""
    out: str = ""
    err: str = ""

    @property
    def ok(self) -> bool:
        """Exit code 0."""
        return self.code == 0


NOT_FOUND = 127
ENDED_BY_US = 124


def run_program(argv: Sequence[str], stdin: bytes = b"", timeout_s: float = TIMEOUT_S) -> Ended:
    """Runs `argv` with `stdin`, in English, whatever the account's language. Never raises."""
    with tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        try:
            process = subprocess.Popen(
                argv,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=child_environment(LC_ALL="C"),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            return Ended(NOT_FOUND, err=f"{argv[0]} cannot be started: {error.strerror}")
        with process:
            said, whole = _said(process, time.monotonic() + timeout_s)
            if not whole:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return Ended(ENDED_BY_US, err=f"{argv[0]} was ended after {timeout_s:g} s")
        return Ended(process.returncode, *said)


def _said(process: subprocess.Popen[bytes], deadline: float) -> tuple[list[str], bool]:
    """stdout and stderr, and whether both came to their end in time and within the bound."""
    pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
    got = [b"" for _ in pipes]
    with selectors.DefaultSelector() as selector:
        for number, pipe in enumerate(pipes):
            selector.register(pipe, selectors.EVENT_READ, number)
        while selector.get_map():
            left = deadline - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                return [], False
            for key, _ in ready:
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                got[key.data] += chunk
                if len(got[key.data]) > MAX_OUTPUT:
                    return [], False
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(0.1, deadline - time.monotonic()))
    return [text.decode("utf-8", "replace") for text in got], process.returncode is not None
