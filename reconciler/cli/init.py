"""`reconcile init`: the folders and the fleet.yaml of a new fleet repo, with an id of its own, and
Node documents of machines that can be reached already."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reconciler.cli.options import Folder
from reconciler.errors import Exit, SettingsError
from reconciler.fleet.root import fleet_of
from reconciler.fleet.starter import SCHEMA_FOLDER, files, name_problem, schema_line
from reconciler.report.words import plural
from reconciler.settings import Settings

if TYPE_CHECKING:
    from reconciler.nodes.discover import Discovered

MAX_NAME = 63
"""As the schema of a Fleet has it; a folder's name may be longer."""

NEXT = (
    "1. Describe your nodes: `reconcile init --from-node USER@HOST`, or copy"
    " nodes/gpu-a.yaml.example to nodes/gpu-a.yaml and edit it.",
    "2. Say what runs: likewise catalog/llama-8b.yaml.example and placements/chat.yaml.example.",
    "3. `reconcile validate` reads it all; `git init` and a commit (a daemon follows commits).",
    "4. `reconcile doctor` looks at the nodes; `reconcile --dry-run` shows what would be done.",
)


@click.command()
@click.argument("folder", default=".", type=Folder())
@click.option("--name", help="The fleet's name; default: the folder's.")
@click.option(
    "--from-node",
    metavar="[USER@]HOST[:PORT]",
    help="Look at this machine over SSH and write its Node document; in a fleet repo, only that.",
)
@click.option(
    "--host-key",
    metavar="SHA256:…",
    default="",
    help="Fingerprint of the machine's host key; default: known_hosts decides. Never learnt.",
)
@click.option("--identity", metavar="FILE", default="", help="Private key to log in with.")
@click.option("--jump", metavar="[USER@]HOST[:PORT]", default="", help="Jump host on the way.")
@click.option("--node-name", metavar="NAME", default="", help="The node's name; default: HOST's.")
@click.option("--pool", metavar="NAME", default="", help="Its pool; default: its GPU class.")
@click.pass_context
def init(
    ctx: click.Context,
    folder: Path,
    name: str | None,
    from_node: str | None,
    host_key: str,
    identity: str,
    jump: str,
    node_name: str,
    pool: str,
) -> int:
    """Make a fleet repo in FOLDER (the working directory): files only, git is yours.

    What exists already is left as it is. In a fleet, --from-node adds the node to that.
    """
    target = folder.resolve()
    for option, kind, field, text in (
        ("--name", "Fleet", "name", name),
        ("--node-name", "Node", "name", node_name),
        ("--pool", "Node", "pool", pool),
    ):
        problem = name_problem(kind, field, text) if text else ""
        if problem:
            raise click.BadParameter(f"{text!r} is no name here: {problem}", param_hint=option)
    identity = identity_path(identity, Path.cwd(), Settings.read().home)
    if from_node is None:
        given = {"--host-key": host_key, "--identity": identity, "--jump": jump}
        given |= {"--node-name": node_name, "--pool": pool}
        for option, value in given.items():
            if value:
                raise click.UsageError(f"{option} belongs to --from-node", ctx)
        return _new_fleet(target, name)
    found = _look(ctx, from_node, host_key, identity, jump, node_name)
    around = fleet_of(target)
    if around is None:
        _new_fleet(target, name)
    target = around or target
    _write_node(target, found, identity, jump, pool)
    return int(Exit.OK)


def identity_path(given: str, cwd: Path, home: Path) -> str:
    """A private key as a document names it: `~/…` where it lies in `home`, else the whole path.

    As the shell means it, from where the command was typed: in a document, which is read anywhere,
    the same words would name another file. SettingsError where there is no such file.
    """
    if not given:
        return ""
    path = Path(os.path.abspath(home / given[2:] if given.startswith("~/") else cwd / given))
    if not path.is_file():
        raise SettingsError("--identity", f"there is no file {path}", "give a private key's file")
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _new_fleet(target: Path, name: str | None) -> int:
    fleet, around = target / "fleet.yaml", fleet_of(target)
    if around == target:
        raise SettingsError(str(fleet), "exists already", "edit it, or choose another folder")
    if around is not None:
        raise SettingsError(
            str(target),
            f"lies in the fleet {around}, and a fleet holds no other",
            f"work in {around}, or choose a folder outside it",
        )
    chosen = name or _default_name(target)
    with _telling(target):
        for part, text in files(chosen, str(uuid.uuid4())).items():
            path = target / part
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_text(text, encoding="utf-8")
    click.echo(f"Made fleet {chosen} in {target}. Next:")
    for step in NEXT:
        click.echo(f"  {step}")
    return int(Exit.OK)


def _default_name(target: Path) -> str:
    name = re.sub(r"[^a-z0-9-]+", "-", target.name.lower())[:MAX_NAME].strip("-")
    return name or "fleet"


@dataclass(frozen=True)
class _Found:
    """A machine that answered, and what a person called it."""

    name: str
    host: str
    user: str
    """As given; empty: ~/.ssh/config or the fleet says it, and the document need not."""
    seen: Discovered


def _look(
    ctx: click.Context, text: str, host_key: str, identity: str, jump: str, node_name: str
) -> _Found:
    from reconciler.cli.session import Session
    from reconciler.fleet import scaffold
    from reconciler.nodes.discover import Target, discover, parse_target

    user, host, port = parse_target(text)
    name = node_name or scaffold.node_name(host)
    target = Target(host, user, port, identity, jump, host_key)
    with Session.of(ctx, None, None) as session:
        settings = session.pool_settings()
        # An id that no launch carries: whatever runs there is shown as it is, and nothing is ours.
        seen = discover(target, name=name, settings=settings, fleet=str(uuid.uuid4()))
    return _Found(name, host, user, seen)


def _write_node(target: Path, found: _Found, identity: str, jump: str, pool: str) -> None:
    from reconciler.fleet import scaffold

    seen = found.seen
    text = scaffold.node_document(
        seen.answer,
        name=found.name,
        address=found.host,
        pool=pool or scaffold.pool_name(seen.answer),
        user=found.user,
        port=seen.port,
        host_key=f"{seen.host_key.type} {seen.host_key.base64}",
        identity_file=identity,
        jump=jump,
    )
    part = f"nodes/{found.name}.yaml"
    path = target / part
    if (target / SCHEMA_FOLDER / "document.v1.json").exists():
        text = f"{schema_line(part)}\n{text}"
    with _telling(target):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            hint = "remove it, or give the node another name with --node-name"
            raise SettingsError(str(path), "exists already", hint) from None
    gpus = seen.answer.gpus
    said = plural(len(gpus.items), "GPU") if not gpus.error else f"GPUs not read: {gpus.error}"
    click.echo(f"Wrote {path}: {said}, host key {seen.host_key.fingerprint}.")
    click.echo(
        "Read it, correct what it cannot know (pool, labels, fabrics), `reconcile validate`."
    )


@contextmanager
def _telling(target: Path) -> Iterator[None]:
    """A file system that refuses is told as such."""
    try:
        yield
    except OSError as error:
        subject, reason = str(error.filename or target), error.strerror or "cannot be written"
        raise SettingsError(subject, reason) from error
