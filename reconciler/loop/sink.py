"""Events to a file or stream as JSON lines, through a bounded queue off the hot path.

A reader that is slow or gone must not hold up a pass: the oldest events are dropped and counted,
and the count is the next thing that is written.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterable
from typing import TextIO

from reconciler.core.codec import to_json
from reconciler.report.clean import cleaned
from reconciler.report.events import Event

LIMIT = 10_000
"""Events kept for a reader that does not read: some minutes of the worst day."""


class EventSink:
    """Writes events from a thread of its own. `close` writes what is left, for a bounded time."""

    def __init__(self, stream: TextIO, *, limit: int = LIMIT) -> None:
        self._stream = stream
        self._queue: deque[str] = deque(maxlen=limit)
        self._dropped = 0
        self._ready = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def put(self, events: Iterable[Event], *, at: str) -> None:
        """Never blocks for longer than it takes to append."""
        data = [{"at": at, **cleaned(to_json(event))} for event in events]
        lines = [json.dumps(one, ensure_ascii=False) for one in data]
        with self._ready:
            for line in lines:
                if len(self._queue) == self._queue.maxlen:
                    self._dropped += 1
                self._queue.append(line)
            self._ready.notify()

    def close(self, timeout_s: float = 2.0) -> None:
        """End the thread; a stream that does not take what is left is given up."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: bool(self._queue) or self._closing)
                lines, dropped = list(self._queue), self._dropped
                self._queue.clear()
                self._dropped = 0
                closing = self._closing
            if dropped:
                lines.insert(0, json.dumps({"kind": "events.dropped", "count": dropped}))
            try:
                for line in lines:
                    self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                return
            if closing and not lines:
                return
