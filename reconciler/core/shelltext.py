"""A described replica as text that a person pastes into a shell on each node.

For sh and bash. Every word is quoted once and arrives byte for byte. What only the node knows is
found by the text itself: a new folder stands in for the launch's (a folder without record among the
records would read as an unknown launch), and the sim engine is in the agent's own file.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from engines import secretref
from reconciler.core.describe import DescribedCommand, DescribedRank, Description

AGENT = "<agent>"
"""How an argv names the agent's file where no node was asked."""

NO_AGENT = "the agent is not on this machine; reconcile doctor puts it on every node"

_DEFAULT_ROOT = (
    '${RECONCILE_ROOT:-$([ "$(id -u)" = 0 ] && echo /var/lib/reconcile'
    ' || echo "${XDG_STATE_HOME:-$HOME/.local/state}/reconcile")}'
)
_ACCEPTS = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"

Quote = Callable[[str], str]


def shell(description: Description) -> str:
    """One part a rank, each to be pasted on its node."""
    parts = [f"# {description.subject} ({description.engine}); start in this order:"]
    parts += [f"#   {line}" for line in description.start_order]
    for rank in description.ranks:
        parts += ["", f"# --- rank {rank.rank} on {rank.node} ({rank.address}) ---"]
        parts += _rank_lines(rank, needs_agent=description.engine == "sim")
        parts += [f"# ready: {rank.ready}", f"# stop: {rank.stop}"]
    return "\n".join(parts) + "\n"


def _rank_lines(rank: DescribedRank, *, needs_agent: bool) -> Iterator[str]:
    def quote(word: str) -> str:
        quoted = _put(shlex.quote(word), rank.launch_dir, "DIR")
        # `:?`: in a person's own shell the check above ends no more than its own line.
        return _put(quoted, AGENT, "{AGENT:?}") if needs_agent else quoted

    lines = [*_file_lines(rank, quote), *_secret_lines(rank, quote)]
    for index, command in enumerate(rank.commands):
        files = secretref.on_node(command.env_files, rank.launch_dir)
        background = index + 1 < len(rank.commands)
        lines += _command_lines(command, files, quote, background=background)
    if any('"$DIR"' in line for line in lines):
        yield "DIR=$(mktemp -d)"
    if any('"${AGENT:?}"' in line for line in lines):
        yield f"ROOT={shlex.quote(rank.root) if rank.root else _DEFAULT_ROOT}"
        yield 'AGENT=$(ls -t "$ROOT"/agent/*.pyz 2>/dev/null | head -n 1)'
        yield f': "${{AGENT:?{NO_AGENT}}}"'
    yield from lines


def _put(quoted: str, stand_in: str, variable: str) -> str:
    """A variable in place of a stand-in, which has a `<` and so stands in single quotes."""
    if stand_in not in quoted:
        return quoted
    return quoted.replace(stand_in, f"'\"${variable}\"'").removeprefix("''").removesuffix("''")


def _file_lines(rank: DescribedRank, quote: Quote) -> Iterator[str]:
    for file in rank.files:
        path = f"{rank.launch_dir}/files/{file.path}"
        yield f"mkdir -p {quote(path.rsplit('/', 1)[0])}"
        yield f"printf %s {quote(file.content)} > {quote(path)}"


def _secret_lines(rank: DescribedRank, quote: Quote) -> Iterator[str]:
    """The reconciler's own files are not on the node: whoever pastes this has to bring them."""
    if rank.secrets:
        folder, names = quote(f"{rank.launch_dir}/{secretref.FOLDER}"), " ".join(rank.secrets)
        yield f': "${{SECRETS:?set it to a folder that holds {names}}}"'
        yield f"mkdir -m 700 {folder}"
        yield from (f'cp "$SECRETS"/{name} {folder}/{name}' for name in rank.secrets)


def _option_lines(argv: Sequence[str], quote: Quote) -> list[str]:
    """The command line with each option and its values on a line of their own."""
    lines: list[str] = []
    for word in argv:
        if not lines or word.startswith("-"):
            lines.append(quote(word))
        else:
            lines[-1] += f" {quote(word)}"
    return lines


def _command_lines(
    command: DescribedCommand, files: Mapping[str, str], quote: Quote, *, background: bool
) -> Iterator[str]:
    if command.wait_for:
        host, port = command.wait_for.split(" ")
        asks = f"python3 -c {shlex.quote(_ACCEPTS)} {shlex.quote(host)} {port}"
        yield f"until {asks} 2>/dev/null; do sleep 1; done"
    words = [f"{name}={quote(value)}" for name, value in sorted(command.env.items())]
    words += [f'{name}="$(cat {quote(path)})"' for name, path in files.items()]
    words += _option_lines(command.argv, quote)
    yield "env " + " \\\n  ".join(words) + (" &" if background else "")
