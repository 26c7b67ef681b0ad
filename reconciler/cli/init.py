"""`reconcile init`: the folders and the fleet.yaml of a new fleet repo, with an id of its own."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import click

from reconciler.errors import Exit, SettingsError

FOLDERS = {
    "nodes": "One document per GPU machine (kind: Node).",
    "catalog": "What can run: weights (kind: Model) and how they run (kind: Profile).",
    "placements": "What does run, how often and where (kind: Placement).",
}

FLEET = """\
# The fleet's identity and what holds for all of it.
kind: Fleet
name: {name}
version: 1
# Every launch carries this id. Two repositories with one id would fight: never copy it.
id: {id}
ssh: {{}}
"""

NODE = """\
# A GPU machine. Rename to <name>.yaml, correct the values, and look: `reconcile doctor`.
#
# kind: Node
# name: gpu-a
# address: 10.0.0.1
# pool: h100
# gpus: {class: h100-80gb, count: 8}
# ssh:
#   user: ops
#   # The machine's own /etc/ssh/ssh_host_ed25519_key.pub; it is never learnt by itself.
#   host_key: ssh-ed25519 AAAA...
"""


@click.command()
@click.argument("folder", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", help="The fleet's name; default: the folder's.")
def init(folder: Path, name: str | None) -> int:
    """Make a fleet repo in FOLDER (the working directory): files only, git is yours.

    What exists already is left as it is.
    """
    target = folder.resolve()
    fleet = target / "fleet.yaml"
    if fleet.exists():
        raise SettingsError(str(fleet), "exists already", "edit it, or choose another folder")
    chosen = name or re.sub(r"[^a-z0-9-]+", "-", target.name.lower()).strip("-") or "fleet"
    try:
        for part, text in FOLDERS.items():
            (target / part).mkdir(parents=True, exist_ok=True)
            readme = target / part / "README.md"
            if not readme.exists():
                readme.write_text(f"{text}\n", encoding="utf-8")
        fleet.write_text(FLEET.format(name=chosen, id=uuid.uuid4()), encoding="utf-8")
        (target / "nodes" / "README.md").write_text(
            f"{FOLDERS['nodes']}\n\n```yaml\n{NODE}```\n", encoding="utf-8"
        )
    except OSError as error:
        raise SettingsError(
            str(error.filename or target), error.strerror or "cannot be written"
        ) from error
    click.echo(f"Made fleet {chosen} in {target}.")
    click.echo("Next: describe your nodes (nodes/README.md has one), then `reconcile validate` and")
    click.echo("`reconcile doctor`; commit, and `reconcile --dry-run` shows what would be done.")
    return int(Exit.OK)
