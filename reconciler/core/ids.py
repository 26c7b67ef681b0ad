"""Names of launches. The suffix comes from an id source that is passed in, so tests are stable."""

from __future__ import annotations

from typing import Protocol

MAX_LAUNCH_ID = 63
"""A launch names a folder, a systemd unit and a container: the strictest of them allows this."""


class IdSource(Protocol):
    """Gives a new short suffix (lower-case letters and digits) at each call."""

    def __call__(self) -> str: ...


def replica_id(placement: str, ordinal: int) -> str:
    """`llama-prod-0`."""
    return f"{placement}-{ordinal}"


def launch_id(replica: str, suffix: str) -> str:
    """`llama-prod-0-k3f9a`; the replica's part is cut so that the whole fits."""
    return f"{replica[: MAX_LAUNCH_ID - len(suffix) - 1].rstrip('-')}-{suffix}"
