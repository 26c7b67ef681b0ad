"""Awaits the requests in flight before a shard is told to end, by the engine's own count of them.

All ranks ask the ranks that serve: a worker that ended by itself would end the leader's requests.
What cannot be told counts as busy, so the worst that an odd answer costs is the whole drain time.
Nothing in here waits; the loop calls `step` at each turn.
"""

from __future__ import annotations

from typing import Iterable, List, Optional, Tuple

from .health import Exchange, Reply
from .spec import DrainCheck

ASK_S = 0.25
"""Pause between two rounds of questions."""

ROUND_S = 2.0
"""Who has not answered by then is busy for this round."""


class Draining:
    """One shard's wait; over once the count has been zero for as long as the engine needs."""

    def __init__(self, check: DrainCheck) -> None:
        self._check = check
        self._open: List[Exchange] = []
        self._began: Optional[float] = None
        self._next = 0.0
        self._zero_since: Optional[float] = None
        self.detail = "not asked yet"
        """What the last round said, for people."""

    def step(self, now: float) -> bool:
        """Go on as far as possible now; whether nothing is in flight any more."""
        if self._began is None:
            if now < self._next:
                return False
            self._began = now
            self._open = [Exchange(host, port, self._check.path) for host, port in self._check.at]
        for exchange in self._open:
            if exchange.reply is None:
                exchange.step()
            if exchange.reply is None and now - self._began > ROUND_S:
                exchange.give_up("no answer within %d s" % ROUND_S)
        if any(exchange.reply is None for exchange in self._open):
            return False
        return self._heed([e.reply for e in self._open if e.reply is not None], self._began, now)

    def cancel(self) -> None:
        """Close what is open; the answer is of no more interest."""
        for exchange in self._open:
            exchange.give_up("cancelled")

    def _heed(self, replies: List[Reply], began: float, now: float) -> bool:
        counts = [count(reply, self._check.metrics) for reply in replies]
        known = [number for number in counts if number is not None]
        self._began, self._next = None, now + ASK_S
        if len(known) < len(counts):
            odd = [r.error or "status %d" % r.status for r in replies if r.status != 200]
            why = (odd or ["the answer has none of the metrics"])[0]
            self.detail, self._zero_since = "cannot be told: " + why, None
        elif sum(known) > 0:
            self.detail, self._zero_since = "%d in flight" % sum(known), None
        else:
            self.detail = "none in flight"
            self._zero_since = began if self._zero_since is None else self._zero_since
        return self._zero_since is not None and began - self._zero_since >= self._check.settle_s


def count(reply: Reply, names: Iterable[str]) -> Optional[float]:
    """Requests in flight by one answer; None where it does not tell.

    Who refuses the connection has ended, and what it had in flight with it.
    """
    if reply.status == 200:
        return parse(reply.body.decode("utf-8", "replace"), frozenset(names))
    return 0.0 if reply.error == "refused" else None


def parse(text: str, names: "frozenset[str]") -> Optional[float]:
    """The sum of these gauges in Prometheus text, over all labels; None where none is there."""
    found: List[float] = []
    for line in text.splitlines():
        name, value = _sample(line)
        if name not in names:
            continue
        try:
            number = float(value)
        except ValueError:
            return None
        if not 0 <= number < 1e9:
            return None
        found.append(number)
    return sum(found) if found else None


def _sample(line: str) -> Tuple[str, str]:
    """Name and value of one line; label values may hold spaces and braces."""
    if "{" in line:
        name, _, rest = line.partition("{")
        rest = rest.rpartition("}")[2]
    else:
        name, _, rest = line.partition(" ")
    words = rest.split()
    return name.strip(), words[0] if words else ""
