"""What silent nodes held: the last answers under this owner's unbroken lease.

Kept in memory and in a cache file. To lose it is safe: then what a silent node holds is not known,
and nothing that may live there is started. To keep something wrong is not, so an answer is kept
only while nobody else can have acted on the node since, as far as this owner can know.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reconciler.core.codec import DecodeError, from_json, to_json
from reconciler.core.observed import Labels, NodeAnswer, Phase, Record, Shard

FORMAT = 1
REFRESH_S = 10.0
"""How often the leases' ends are brought up to date in the file while nothing else changes."""


@dataclass(frozen=True)
class Kept:
    """One node's last answer, and until when (by `clock`) its lease is known to have lived."""

    answer: NodeAnswer
    until: float


def boottime() -> float:
    """Seconds since boot, suspend included: a lease runs on while this machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Which boot `boottime` counts from; empty where the system does not say (then no cache)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


class Memory:
    """The memory of one owner. Not locked: one pass at a time writes it."""

    def __init__(
        self,
        owner: str,
        path: Path | None,
        clock: Callable[[], float] = boottime,
        boot: Callable[[], str] = boot_id,
    ) -> None:
        self._owner, self._path, self._clock, self._boot = owner, path, clock, boot
        self._kept: dict[str, Kept] = {}
        self._machines: dict[str, str] = {}
        self._saved: object = None
        self._saved_at = 0.0
        self._texts: dict[str, tuple[object, str]] = {}
        self._load()

    def last(self, node: str) -> NodeAnswer | None:
        """What `node` held when it was last seen, if that can still be relied on."""
        kept = self._kept.get(node)
        return kept.answer if kept else None

    def machine_id(self, node: str) -> str:
        """The machine id that `node` had when it was last seen; empty: never seen."""
        return self._machines.get(node, "")

    def see(self, node: str, answer: NodeAnswer) -> None:
        """`node` answered. Without a living lease of ours the answer is not relied on later."""
        self._machines[node] = answer.machine_id
        lease = answer.lease
        if lease is None or lease.owner != self._owner or lease.remaining_s <= 0:
            self._kept.pop(node, None)
            return
        self._kept[node] = Kept(answer, self._clock() + lease.remaining_s)

    def started(self, node: str, spec: Mapping[str, Any], labels: Labels) -> None:
        """A start was sent to `node`: from now on it holds that, whatever the reply."""
        kept = self._kept.get(node)
        if kept is None:
            return
        try:
            record = from_json(Record, dict(spec))
        except DecodeError:
            self._kept.pop(node)
            return
        others = tuple(s for s in kept.answer.shards if s.launch != record.launch)
        shard = Shard(
            launch=record.launch,
            rank=record.rank,
            record=record,
            labels=labels,
            phase=Phase.STARTING,
            alive=True,
            supervised=True,
            boot_id=kept.answer.boot_id,
        )
        answer = replace(kept.answer, shards=(*others, shard))
        self._kept[node] = replace(kept, answer=answer)

    def forget(self, nodes: Iterable[str]) -> None:
        """A person said `lost`, or the nodes are no longer in the fleet."""
        for node in list(nodes):
            self._kept.pop(node, None)
            self._machines.pop(node, None)

    def known(self) -> set[str]:
        """Nodes that something is remembered of."""
        return self._kept.keys() | self._machines.keys()

    # --- the cache file ------------------------------------------------------------------------

    def save(self) -> None:
        """Writes the cache file where what is held has changed, or its leases have been renewed.

        A full disk is not an error.
        """
        held = {
            node: (kept.answer.boot_id, tuple((s.launch, s.alive) for s in kept.answer.shards))
            for node, kept in self._kept.items()
        }
        state = (held, dict(self._machines))
        fresh = self._clock() < self._saved_at + REFRESH_S
        if self._path is None or (state == self._saved and fresh):
            return
        head = {
            "format": FORMAT,
            "owner": self._owner,
            "boot_id": self._boot(),
            "machines": self._machines,
            "until": {node: kept.until for node, kept in self._kept.items()},
        }
        # Turning an answer into text costs more than all else: only where what it holds changed.
        self._texts = {node: self._text(node, held[node]) for node in self._kept}
        kept = ",".join(f"{json.dumps(node)}:{text}" for node, (_, text) in self._texts.items())
        content = f'{json.dumps(head)[:-1]},"kept":{{{kept}}}}}'
        try:
            write_atomically(self._path, content.encode())
        except OSError:
            return
        self._saved, self._saved_at = state, self._clock()

    def _text(self, node: str, held: object) -> tuple[object, str]:
        known = self._texts.get(node)
        if known is not None and known[0] == held:
            return known
        answer = to_json(self._kept[node].answer, compact=True)
        return held, json.dumps(answer, separators=(",", ":"))

    def _load(self) -> None:
        """Takes over a file of the same owner; of its answers those whose lease still lives."""
        if self._path is None:
            return
        try:
            content = json.loads(self._path.read_bytes())
            if content["format"] != FORMAT or content["owner"] != self._owner:
                return
            self._machines = from_json(dict[str, str], content["machines"], "machines")
            if not content["boot_id"] or content["boot_id"] != self._boot():
                return
            for node, item in content["kept"].items():
                until = float(content["until"][node])
                if until > self._clock():
                    answer = from_json(NodeAnswer, item, f"kept.{node}")
                    self._kept[node] = Kept(answer, until)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            # Damaged or absent: the same as never written.
            self._kept.clear()


def write_atomically(path: Path, data: bytes) -> None:
    """Whole or not at all, readable by its owner only. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise
