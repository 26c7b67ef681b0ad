"""SIGTERM, SIGINT and SIGHUP while the fleet is acted on.

The first ends the work at the next step, and the leases are given back: whoever comes next need not
wait for their end. Where nothing is being done yet (a fetch, a look, a question) it ends at once.
The second ends the process at once, whatever is under way; the nodes' leases then end by time.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ONCE_MORE = b"\nEnding after the step that is under way; once more to end at once.\n"


class Interrupted(KeyboardInterrupt):
    """A signal came where nothing is lost by ending at once."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Stop:
    """The wish to end, from a signal handler."""

    def __init__(self, also: Callable[[], None] = lambda: None, *, tell: bool = True) -> None:
        """`also` is called by the first signal, in its handler."""
        self.number = 0
        """The signal that came first; 0: none."""
        self._also, self._tell = also, tell
        self._abrupt = False

    def cancelled(self) -> bool:
        """Whether no new step is to be begun."""
        return bool(self.number)

    @contextmanager
    def abrupt(self) -> Iterator[None]:
        """While nothing is being done: the first signal raises Interrupted, also one before."""
        if self.number:
            raise Interrupted(self.number)
        self._abrupt = True
        try:
            yield
        finally:
            self._abrupt = False

    def handle(self, number: int, frame: FrameType | None = None) -> None:
        """The handler of all signals."""
        if self.number:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.number = number
        self._also()
        if self._abrupt:
            self._abrupt = False
            raise Interrupted(number)
        if self._tell:
            with suppress(OSError):
                os.write(2, ONCE_MORE)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None], *numbers: int) -> Iterator[None]:
    """`handler` for signals that are not ignored (nohup, a job in the background) meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {n: signal.getsignal(n) for n in numbers or SIGNALS}
    old = {n: before for n, before in old.items() if before is not signal.SIG_IGN}
    try:
        for number in old:
            signal.signal(number, handler)
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before if before is not None else signal.SIG_DFL)


@contextmanager
def to_the_end() -> Iterator[None]:
    """What is begun in here is ended, too: a signal counts after it, a second one at once."""
    stop = Stop(tell=False)
    with handled(stop.handle):
        yield
    if stop.number:
        raise Interrupted(stop.number)


def end_by(number: int, frame: FrameType | None = None) -> None:
    """For commands that ask or change one thing: what they hold is given back on the way out."""
    signal.signal(number, signal.SIG_DFL)
    raise Interrupted(number)


def exit_code(error: BaseException | int | None) -> int:
    """128 and the signal's number, as a shell has it; SIGINT where none is known."""
    while isinstance(error, BaseException) and not isinstance(error, Interrupted):
        error = error.__cause__ or error.__context__
    number = error.number if isinstance(error, Interrupted) else error
    return 128 + (number or signal.SIGINT)
