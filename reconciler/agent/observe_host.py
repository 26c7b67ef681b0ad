"""Network and resources of this node, asked in one question to the `system` probe child.

Sysfs and file systems may hang, so nothing here touches them itself; what cannot hang (sockets, by
netlink) is read while the child works.
"""

from __future__ import annotations

import time
from typing import List, Tuple

from . import netlink
from .probes import Probe
from .wire import Json

STATIC_S = 5.0
"""How long adapters and interfaces are believed: sysfs costs half a millisecond per adapter."""


class HostLooks:
    """Looks at what the machine has beside GPUs."""

    def __init__(self, probe: Probe, root: str) -> None:
        self._probe = probe
        self._root = root
        self._static: Tuple[float, Json] = (float("-inf"), {})
        self._asked: Json = {}

    def begin(self, parts: List[str]) -> None:
        """Ask for `network` and `resources`, as far as they are among `parts`."""
        # Resources first: a full disk's answer must not wait for an adapter that hangs.
        self._asked = {"resources": self._root} if "resources" in parts else {}
        if "network" in parts and time.monotonic() - self._static[0] > STATIC_S:
            self._asked.update(adapters=None, interfaces=None)
        if self._asked:
            self._probe.begin(self._asked)

    def finish(self, parts: List[str], deadline_s: float) -> Json:
        """The parts that `begin` asked for, each with its `error`."""
        found: Json = {}
        listening = _listening() if "network" in parts else {}
        told, error = {}, ""
        if self._asked:
            reply = self._probe.finish(deadline_s)
            error = reply.error or "no answer"
            for part in reply.parts:
                told.update(part)
        if "resources" in parts:
            found["resources"] = told.get("resources") or {"error": error}
        if "network" not in parts:
            return found
        if "adapters" in self._asked:
            if "adapters" not in told or "interfaces" not in told:
                return {**found, "network": {"error": error}}
            static = {name: told[name] for name in ("adapters", "interfaces")}
            self._static = (time.monotonic(), static)
        return {**found, "network": {**self._static[1], "error": "", **listening}}


def _listening() -> Json:
    try:
        sockets = sorted({(s.address, s.port) for s in netlink.listeners()})
        return {"listening": sockets, "ephemeral": _ephemeral()}
    except OSError as error:
        return {"error": "listening sockets: %s" % error}


def _ephemeral() -> Tuple[int, int]:
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first, last = file.read().split()
    return int(first), int(last)
