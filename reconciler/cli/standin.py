"""What a dry run or a forecast begins with in place of the nodes: chosen by one set of options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reconciler.cli.session import Session
from reconciler.errors import SettingsError

if TYPE_CHECKING:
    from reconciler.loop.offline import OnlyLooks


def check_stand_in(offline: bool, base: str | None, observed: Path | None) -> None:
    """SettingsError where the options contradict each other."""
    if observed and (offline or base):
        raise SettingsError("--observed", "excludes --offline and --base", "begin with one of them")


def chosen(
    session: Session, offline: bool, base: str | None, observed: Path | None
) -> OnlyLooks | None:
    """The base as if all of it ran, a saved observation, empty nodes; None: the nodes."""
    from reconciler.loop.offline import AssumedNodes, SavedNodes

    if base is not None:
        from reconciler.loop.comparing import BaseNodes, find_base

        head = session.revision()
        return BaseNodes(find_base(session.source, base, head.commit))
    if observed is not None:
        return SavedNodes.read(observed)
    return AssumedNodes() if offline else None
