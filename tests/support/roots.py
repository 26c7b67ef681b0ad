"""Gives a loopback node another root of its records, as an edit of `root` does."""

from __future__ import annotations

from pathlib import Path

from reconciler.nodes.loopback import LoopbackFleet


def move_root(fleet: LoopbackFleet, name: str) -> Path:
    """Its new root; the former one stays as it is, and the node is told of it by nobody."""
    node = fleet[name]
    config, new = node.folder / "sshd_config", node.folder / "root-2"
    text = config.read_text()
    assert f"RECONCILE_ROOT={node.root}" in text
    config.write_text(text.replace(f"RECONCILE_ROOT={node.root}", f"RECONCILE_ROOT={new}"))
    fleet.restart(name)
    return new
