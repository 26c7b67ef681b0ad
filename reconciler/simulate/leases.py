"""The lease of a node in memory: owner, rising epoch, time to live, and what must outlive us."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from reconciler.core.codec import from_json, to_json
from reconciler.core.observed import ApprovedChange, Lease


class Refused(Exception):
    """A node's refusal, with the protocol's code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass
class Leases:
    """One lease for each fleet."""

    now: Callable[[], float]
    bugs: frozenset[str] = frozenset()
    stored: dict[str, Lease] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)

    def shown(self, fleet: str) -> Lease | None:
        """The lease with what is left of it."""
        lease = self.stored.get(fleet)
        return replace(lease, remaining_s=self._left(fleet)) if lease else None

    def expire_all(self) -> None:
        """A lease of another boot has expired."""
        self.until = dict.fromkeys(self.until, self.now())

    def take_newer(self, other: Leases | None) -> None:
        """What `other` knows of a later epoch."""
        if other is None:
            return
        for fleet, lease in other.stored.items():
            mine = self.stored.get(fleet)
            if mine is None or lease.epoch > mine.epoch:
                self.stored[fleet], self.until[fleet] = lease, other.until.get(fleet, 0.0)

    def change(self, fields: Mapping[str, Any]) -> Lease:
        """acquire | renew | release | update | take. Raises Refused."""
        fleet, owner, action = fields["fleet"], fields["owner"], fields["action"]
        old = self.stored.get(fleet)
        left = self._left(fleet)
        if action == "acquire":
            if old and left > 0 and old.owner != owner and "lease-not-held" not in self.bugs:
                raise Refused("lease-held", f"{old.owner} holds it for another {left:.0f} s")
            unbroken = old is not None and left > 0 and old.owner == owner
            epoch = (old.epoch if old else 0) + (0 if unbroken else 1)
        elif action == "take":
            if not fields.get("reason"):
                raise Refused("bad-request", "take needs a reason")
            epoch = (old.epoch if old else 0) + 1
        elif action in ("renew", "release", "update"):
            self.fence(fields)
            epoch = fields["epoch"]
        else:
            raise Refused("bad-request", f"action {action!r}")
        lease = self._merged(old or Lease(fleet), fields)
        self.stored[fleet] = replace(lease, owner=owner, epoch=epoch)
        if action == "release":
            self.until[fleet] = self.now()
        elif action != "update":
            self.until[fleet] = self.now() + float(fields.get("ttl_s", 60))
        shown = self.shown(fleet)
        assert shown is not None
        return shown

    def fence(self, fields: Mapping[str, Any]) -> None:
        """Refuses all but the current owner and epoch, and any under an expired lease."""
        if "no-fence" in self.bugs:
            return
        lease = self.stored.get(fields["fleet"])
        if lease is None:
            raise Refused("fenced", "nobody has a lease here")
        stale = lease.epoch != fields["epoch"] and "fence-ignores-epoch" not in self.bugs
        if lease.owner != fields["owner"] or stale:
            raise Refused("fenced", f"{lease.owner} leads here with epoch {lease.epoch}")
        if self._left(fields["fleet"]) <= 0 and "fence-ignores-expiry" not in self.bugs:
            raise Refused("fenced", "the lease has expired")

    def _left(self, fleet: str) -> float:
        return self.until.get(fleet, 0.0) - self.now()

    @staticmethod
    def _merged(lease: Lease, fields: Mapping[str, Any]) -> Lease:
        """Each field that is given replaces what is stored."""
        changes = {
            name: fields[name]
            for name in ("root_commit", "revision", "departed", "retries")
            if fields.get(name) is not None
        }
        if fields.get("approvals") is not None:
            given = to_json(fields["approvals"])
            changes["approvals"] = from_json(tuple[ApprovedChange, ...], given)
        return replace(lease, **changes)
