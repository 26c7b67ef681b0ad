"""When the next pass begins: a level, not a queue. A poke during a pass is one more after it."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue

POLL_S = 1.0
"""How often a waiting loop asks git for a new commit: reading a local ref costs 0.2 ms."""


class Trigger:
    """Pokes and the wish to stop; may be called from signal handlers and other threads.

    A handler runs in the thread that waits, at any instruction of it. An Event has a lock that this
    thread may just hold, and a daemon that waits for itself neither repairs nor ends; what is put
    into a SimpleQueue needs none (its `put` is documented as reentrant).
    """

    def __init__(self) -> None:
        self._changed: SimpleQueue[None] = SimpleQueue()
        self._stopping = False

    def poke(self) -> None:
        """One more pass, soon: a webhook, a signal or a new commit. Carries no data."""
        self._changed.put(None)

    def stop(self) -> None:
        """End after the step that is being carried out."""
        self._stopping = True
        self._changed.put(None)

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping

    def clear(self) -> None:
        """A pass begins: what was poked until now is answered by it."""
        for _ in range(self._changed.qsize()):
            self._poked(0.0)
        if self._stopping:
            self._changed.put(None)

    def wait(self, seconds: float, has_news: Callable[[], bool], poll_s: float = POLL_S) -> None:
        """Until a poke, news or the time is over, whichever is first."""
        left = seconds
        while left > 0 and not self._poked(min(poll_s, left)):
            left -= poll_s
            if has_news():
                return

    def _poked(self, within_s: float) -> bool:
        """Whether a poke has come since the last one that was taken out, or comes in time."""
        try:
            self._changed.get(timeout=within_s)
        except Empty:
            return False
        return True
