"""`reconcile observe`: one look at all nodes as JSON, to be kept, replayed or planned against."""

from __future__ import annotations

import click

from reconciler.cli.options import repo_options
from reconciler.cli.output import say, show_json
from reconciler.cli.session import Session, utc_now
from reconciler.errors import Exit


@click.command()
@repo_options
@click.pass_context
def observe(ctx: click.Context, repo: str | None, ref: str | None) -> int:
    """Print what all nodes say, as JSON; `reconcile --dry-run --observed FILE` takes it back.

    Exit code 3: some node gave no answer.
    """
    from reconciler.core.codec import to_json
    from reconciler.loop.offline import OBSERVATION
    from reconciler.report.clean import cleaned

    with Session.of(ctx, repo, ref) as session:
        desired = session.inventory()
        observed = session.look(desired)
    show_json(
        {
            "format_version": OBSERVATION,
            "observed_at": utc_now(),
            "revision": str(desired.revision),
            "observed": cleaned(to_json(observed)),
        }
    )
    silent = sorted(name for name, look in observed.nodes.items() if look.answer is None)
    for name in silent:
        look = observed.nodes[name]
        say(f"{name}: {look.error or 'no answer'}: {look.detail}")
    return int(Exit.PARTIAL if silent else Exit.OK)
