"""Which commands there are. Each is imported when it is asked for: the rest must cost nothing."""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "validate": "reconciler.cli.validate",
    "status": "reconciler.cli.status",
    "observe": "reconciler.cli.observe",
    "command": "reconciler.cli.describe",
    "simulate": "reconciler.cli.simulate",
    "logs": "reconciler.cli.logs",
    "retry": "reconciler.cli.people",
    "approve": "reconciler.cli.people",
    "hold": "reconciler.cli.hold",
    "stop": "reconciler.cli.stop",
    "lease": "reconciler.cli.lease",
    "doctor": "reconciler.cli.doctor",
    "journal": "reconciler.cli.journal",
    "init": "reconciler.cli.init",
    "daemon": "reconciler.cli.daemon",
    "demo": "reconciler.cli.demo",
}
"""Command → the module that defines it, imported when it is asked for."""


class LateGroup(click.Group):
    """Subcommands are imported when they are looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which a new user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command object, or None where there is none of this name."""
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        found = getattr(importlib.import_module(module), cmd_name)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """With a hint where the name is near to one that exists."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"commands: {', '.join(COMMANDS)}"
            raise click.UsageError(f"no such command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)
