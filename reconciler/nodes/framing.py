"""Bytes from the agent's channel to answers, without a socket: docs/agent-protocol.md, "Framing".

Everything that is not a framed line is noise (a banner, a chatty login profile, an engine's
output) and is dropped but for its end, which error messages quote. A line with our marker that is
not well-formed is *damaged*: that is a value too, never an exception and never an empty answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

MAX_ANSWER = 8 * 1024 * 1024
"""Longest JSON of one answer; a longer one is damaged."""
MAX_DEPTH = 64
NOISE_KEPT = 4096
"""So much of the noise is kept for messages."""


@dataclass(frozen=True)
class Frame:
    """One answer. `size` is that of its JSON text in bytes."""

    data: dict[str, Any]
    size: int


@dataclass(frozen=True)
class Damaged:
    """A framed line that cannot be trusted, and why."""

    reason: str


class FrameReader:
    """Feed it bytes in any pieces; it gives back what they complete."""

    def __init__(self, marker: str) -> None:
        self._prefix = f"\x1eRECONCILE {marker} ".encode("ascii")
        self._buffer = bytearray()
        self._noise = bytearray()
        self._oversized = False

    @property
    def noise(self) -> str:
        """The end of what was said beside answers."""
        return self._noise.decode("utf-8", "replace").strip()

    def feed(self, data: bytes) -> list[Frame | Damaged]:
        """Answers that are whole now, in order."""
        found: list[Frame | Damaged] = []
        buffer = self._buffer
        scanned = len(buffer)
        buffer += data
        end = buffer.find(b"\n", scanned)
        while end >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            if self._oversized:
                # The rest of a line that was given up before.
                self._oversized = False
            elif (start := line.find(self._prefix)) >= 0:
                self._drop(line[:start])
                found.append(parse(line[start + len(self._prefix) :]))
            else:
                self._drop(line + b"\n")
            end = buffer.find(b"\n")
        if len(buffer) > MAX_ANSWER + 64:
            if not self._oversized and self._prefix in buffer[:MAX_ANSWER]:
                found.append(Damaged(f"an answer has more than {MAX_ANSWER} bytes"))
                self._oversized = True
            self._drop(bytes(buffer[-NOISE_KEPT:]))
            buffer.clear()
        return found

    def rest(self) -> str:
        """At the end of the stream: why the last answer is not whole; empty where none began."""
        if self._prefix in self._buffer:
            return f"the connection ended {len(self._buffer)} bytes into an answer"
        self._drop(bytes(self._buffer))
        self._buffer.clear()
        return ""

    def _drop(self, noise: bytes) -> None:
        self._noise += noise[-NOISE_KEPT:]
        if len(self._noise) > NOISE_KEPT:
            del self._noise[:-NOISE_KEPT]


def parse(text: bytes) -> Frame | Damaged:
    """`<bytes of json> <json>` of one framed line."""
    size_text, _, body = text.partition(b" ")
    if not size_text.isdigit() or len(size_text) > 10:
        return Damaged(f"an answer's length reads {size_text[:20]!r}")
    size = int(size_text)
    if size > MAX_ANSWER:
        return Damaged(f"an answer of {size} bytes, more than {MAX_ANSWER}")
    if size != len(body):
        return Damaged(f"an answer of {len(body)} bytes says that it has {size}")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        return Damaged(f"an answer is no JSON: {str(error)[:200]}")
    if not isinstance(data, dict):
        return Damaged(f"an answer is {type(data).__name__} where an object belongs")
    return Frame(data, size)


def too_deep(data: object, limit: int = MAX_DEPTH) -> bool:
    """Whether `data` nests deeper than `limit`; without recursion, so any depth can be asked."""
    level: list[object] = [data]
    for _ in range(limit + 1):
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(v for v in item.values() if isinstance(v, (dict, list)))
            elif isinstance(item, list):
                inner.extend(v for v in item if isinstance(v, (dict, list)))
        if not inner:
            return False
        level = inner
    return True
