"""When the next pass begins: a level, not a queue. A poke during a pass is one more after it."""

from __future__ import annotations

import threading
from collections.abc import Callable

POLL_S = 1.0
"""How often a waiting loop asks git for a new commit: reading a local ref costs 0.2 ms."""


class Trigger:
    """Pokes and the wish to stop; may be called from signal handlers and other threads."""

    def __init__(self) -> None:
        self._changed = threading.Event()
        self._stopping = False

    def poke(self) -> None:
        """One more pass, soon: a webhook, a signal or a new commit. Carries no data."""
        self._changed.set()

    def stop(self) -> None:
        """End after the step that is being carried out."""
        self._stopping = True
        self._changed.set()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping

    def clear(self) -> None:
        """A pass begins: what was poked until now is answered by it."""
        self._changed.clear()
        if self._stopping:
            self._changed.set()

    def wait(self, seconds: float, has_news: Callable[[], bool], poll_s: float = POLL_S) -> None:
        """Until a poke, news or the time is over, whichever is first."""
        left = seconds
        while left > 0 and not self._changed.wait(min(poll_s, left)):
            left -= poll_s
            if has_news():
                return
