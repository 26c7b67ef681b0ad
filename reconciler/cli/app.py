"""The one place where errors become messages and exit codes.

A ReconcileError is told in one line and ends with its own code. A usage error ends with 1, not
with click's 2, which is taken: it says that changes are present. Anything else is a bug of ours: it
shows its traceback and says how to report it.
"""

from __future__ import annotations

import errno
import signal
import sys
import traceback
from collections.abc import Sequence

import click

from reconciler.cli.stopping import end_by, exit_code, handled
from reconciler.errors import Exit, InvalidFleet, ReconcileError

_OUTPUT_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def run(args: Sequence[str], tree: click.Group | None = None) -> int:
    """Run the command line (of `tree`; `reconcile` by default); every way out is an exit code."""
    try:
        from reconciler.cli.reconcile import root

        with handled(end_by, signal.SIGTERM):
            result = (tree or root).main(list(args), prog_name="reconcile", standalone_mode=False)
        return int(result or 0)
    except InvalidFleet as error:
        _say_findings(error)
        return int(error.exit_code)
    except ReconcileError as error:
        _say(f"Error: {error}")
        return int(error.exit_code)
    except click.UsageError as error:
        _say(f"Error: {error.format_message()}")
        if error.ctx is not None:
            _say(f"Try '{error.ctx.command_path} --help'.")
        return int(Exit.ERROR)
    except click.ClickException as error:
        _say(f"Error: {error.format_message()}")
        return int(Exit.ERROR)
    except (KeyboardInterrupt, click.Abort) as error:
        _say(" ".join(["Interrupted.", *_notes(error)]))
        return exit_code(error)
    except BrokenPipeError:
        # The reader of our output has enough (`| head`): no error, and nothing to print it to.
        sys.stderr.close()
        return int(Exit.ERROR)
    except OSError as error:
        if error.errno not in _OUTPUT_FULL or error.filename is not None:
            return _bug()
        _say(f"Error: what is to be shown cannot be written: {error.strerror}")
        return int(Exit.ERROR)
    except Exception:  # noqa: BLE001  the edge: a bug must show itself and end in a code
        return _bug()


def _notes(error: BaseException | None) -> list[str]:
    """What whoever was interrupted had to say of it, through click's own exception."""
    found: list[str] = []
    while error is not None:
        found += getattr(error, "__notes__", [])
        error = error.__cause__ or error.__context__
    return found


def _bug() -> int:
    traceback.print_exc()
    _say("This is a bug in reconcile, not in your fleet. Please report it with the lines above,")
    _say("the command you ran, and what `reconcile --version` says.")
    return int(Exit.ERROR)


def _say_findings(error: InvalidFleet) -> None:
    from reconciler.fleet.findings import Finding, as_text

    findings = [f for f in error.findings if isinstance(f, Finding)]
    if findings:
        _say(as_text(findings).rstrip())
    _say(f"Error: {error}")


def _say(text: str) -> None:
    from reconciler.report.clean import printable

    for line in text.splitlines():
        click.echo(printable(line), err=True)
