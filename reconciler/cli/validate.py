"""`reconcile validate`: every finding of the working tree (or of a commit) at once."""

from __future__ import annotations

import click

from reconciler.cli.options import output_option, worktree_options
from reconciler.cli.output import say
from reconciler.cli.session import Session
from reconciler.errors import Exit


@click.command()
@worktree_options
@output_option("text", "json", "github")
@click.option("--strict", is_flag=True, help="Warnings are errors.")
@click.pass_context
def validate(
    ctx: click.Context, repo: str | None, ref: str | None, output: str, strict: bool
) -> int:
    """Check the fleet repo: the working tree, or the commit that --ref names.

    Needs no node, and the network only for a repo that is a URL. Exit code 0: nothing is wrong; 1:
    something is.
    """
    from reconciler.fleet import findings as told

    with Session.of(ctx, repo, ref) as session:
        if session.ref is None and session.source.has_worktree:
            loaded = session.source.check_worktree()
        else:
            loaded = session.source.check(session.revision())
    texts = {"text": told.as_text, "json": told.as_json, "github": told.as_github}
    click.echo(texts[output](loaded.findings).rstrip("\n"))
    if output == "github":
        say(told.summary(loaded.findings))  # the annotations themselves have no count
    if strict and not told.errors(loaded.findings) and loaded.findings:
        say("Warnings are errors (--strict).")
    revision = loaded.desired.revision if loaded.desired else None
    if output == "text" and revision is not None and revision.dirty and revision.commit:
        say("This is the working tree; it differs from HEAD.")
    return int(Exit.ERROR if told.errors(loaded.findings, strict=strict) else Exit.OK)
