"""`reconcile demo`: a day with a small fleet, on this machine, with the real commands."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import click

from reconciler.cli.options import Folder
from reconciler.errors import Exit, SettingsError

FOLDER = ".demo"


@click.command()
@click.option(
    "--folder",
    type=Folder(),
    help=f"Where it all happens; default: {FOLDER}/ here, removed at the end.",
)
@click.option("--keep", is_flag=True, help="Keep the folder (the nodes are ended all the same).")
def demo(folder: Path | None, keep: bool) -> int:
    """Show what this does: three nodes on loopback, a fleet repo, an edit, a rollout, a revert.

    Starts unprivileged SSH servers on 127.x addresses and a pretended inference engine. Takes about
    a minute, needs OpenSSH's sshd, and leaves nothing behind.
    """
    from reconciler.cli.story import Story, find_example

    example = find_example()
    target = _make(folder)
    try:
        Story(target, example).tell()
    finally:
        if not keep:
            shutil.rmtree(target, ignore_errors=True)
    click.echo()
    click.echo(f"Everything is in {target}." if keep else "Everything that the demo made is gone.")
    return int(Exit.OK)


def _make(folder: Path | None) -> Path:
    """A new folder: named, `.demo` here, or a temporary one where nothing can be written here."""
    target = (folder or Path(FOLDER)).resolve()
    if target.exists() and any(target.iterdir()):
        raise SettingsError(
            str(target), "exists and is not empty", "remove it (an earlier demo's?), or --folder"
        )
    try:
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        if folder is not None:
            raise SettingsError(str(target), error.strerror or "cannot be made") from error
        target = Path(tempfile.mkdtemp(prefix="reconcile-demo-"))
    return target
