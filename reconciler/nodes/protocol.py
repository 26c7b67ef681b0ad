"""The one seam to a node: a request by name, a result or a NodeError. Real and in-memory nodes pass
the same contract suite behind it (tests/contract).

A node's "no" is told apart from no answer at all: `NodeRefused` is knowledge, `NodeUnseen` is the
lack of it, and `ReplyLost` is the worst of both: the node may have done it. docs/agent-protocol.md
has the requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from reconciler.core.changes import Reason
from reconciler.core.observed import Lease, LookError
from reconciler.errors import NodeError

ACTING_OPS = frozenset({"start", "stop", "relabel", "adopt"})
"""Requests that carry a fence and that the node refuses under any but the current lease."""


class NodeClient(Protocol):
    """One node. `request` raises NodeRefused, NodeUnseen or ReplyLost, and nothing else."""

    def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """The result of `op`, as docs/agent-protocol.md has it."""
        ...


class NodeUnseen(NodeError):
    """The node was not reached, not trusted or not understood; nothing has happened."""

    def __init__(self, subject: str, kind: LookError, reason: str, hint: str = "") -> None:
        super().__init__(subject, reason, hint)
        self.kind = kind


class ReplyLost(NodeUnseen):
    """The request went out and no reply came back: it may or may not have been carried out."""


class NodeRefused(NodeError):
    """The node answered no. `code` is one of docs/agent-protocol.md's."""

    def __init__(self, subject: str, code: str, message: str, findings: Sequence[str] = ()) -> None:
        super().__init__(subject, message)
        self.code = code
        self.findings = tuple(findings)


REFUSALS: Mapping[str, Reason] = {
    "fenced": Reason.FENCED,
    "lease-held": Reason.LEASE_HELD,
    "held": Reason.NODE_HELD,
    "preflight": Reason.PREFLIGHT_FAILED,
    "gpu-taken": Reason.PREFLIGHT_FAILED,
    "port-taken": Reason.PREFLIGHT_FAILED,
    "io": Reason.NODE_UNSUITABLE,
    "conflict": Reason.START_FAILED,
}


def reason_of(error: NodeError) -> Reason:
    """The reason under which a hold or a condition shows `error`."""
    if isinstance(error, NodeRefused):
        return REFUSALS.get(error.code, Reason.START_FAILED)
    if isinstance(error, NodeUnseen):
        return Reason(error.kind.value)
    return Reason.NODE_UNREACHABLE


def explain(error: NodeError) -> str:
    """Reason, findings and hint in one line."""
    text = error.reason
    if isinstance(error, NodeRefused):
        # The reason of a refusal may be the findings themselves.
        more = "; ".join(error.findings)
        text += f": {more}" if more and more not in text else ""
    return f"{text}; {error.hint}" if error.hint else text


@dataclass(frozen=True)
class LeaseResult:
    """What one node said to a lease request: the lease as stored, or why there is none."""

    node: str
    lease: Lease | None = None
    reason: Reason | None = None
    message: str = ""

    @property
    def epoch(self) -> int:
        """The epoch to act under; 0 where no lease was given."""
        return self.lease.epoch if self.lease else 0
