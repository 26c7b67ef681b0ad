"""The demo's story: what is done, in which order, and what the onlooker is told about it.

Each step runs the real command as a process of its own and shows its real output. The nodes are
real SSH servers; only their GPUs and the engine are pretended.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import click

from reconciler.errors import ReconcileError, SettingsError
from reconciler.nodes.loopback import LoopbackFleet
from reconciler.settings import child_environment

NODES = ("sim-a", "sim-b", "sim-c")
PARTS = ("fleet.yaml", "catalog/sim.yaml", "placements/sim.yaml")
PROFILE = "catalog/sim.yaml"
EDIT = ("--context, 4096", "--context, 8192")
COMMAND_TIMEOUT_S = 120.0
DIGEST_SHOWN = 19


class DemoFailed(ReconcileError):
    """A command of the demo ended as it should not."""


def find_example() -> Path:
    """`fleet-repo-example/` of the source checkout. SettingsError where this is a mere install."""
    found = Path(__file__).resolve().parents[2] / "fleet-repo-example"
    if not (found / "fleet.yaml").is_file():
        raise SettingsError(
            "demo",
            "the example fleet repo is not part of an installed package",
            "run it from a source checkout: `make demo`",
        )
    return found


class Story:
    """One telling. `folder` is empty and belongs to it."""

    def __init__(self, folder: Path, example: Path) -> None:
        self._folder = folder
        self._example = example
        self._repo = folder / "fleet"
        self._env = child_environment(
            RECONCILE_CACHE_DIR=str(folder / "cache"), PYTHONUNBUFFERED="1"
        )
        self._began_s = time.monotonic()
        self._chapter = 0

    def tell(self) -> None:
        """From nothing to nothing."""
        self._title("Three nodes and a fleet repo")
        self._say("Each node is an SSH server on an address of its own, with 8 declared GPUs.")
        with LoopbackFleet(self._folder / "nodes", names=NODES) as nodes:
            for node in nodes.nodes.values():
                click.echo(f"  {node.name}: ssh {node.user}@{node.address} -p {node.port}")
            self._make_repo(nodes)
            self._run("validate")
            self._first_day()
            self._an_edit()
            self._a_revert()
            self._title("The end")
            self._say("The nodes are ended, and with them what ran there.")
        click.echo(f"  That took {time.monotonic() - self._began_s:.0f} s.")

    def _first_day(self) -> None:
        self._title("What would be done")
        digest = self._plan()
        self._title("Do exactly that, and wait until everything is ready")
        self._run("--expect", digest, "--wait", "--timeout", "60s")
        self._title("What runs")
        self._run("status")
        self._title("Ask one of the replicas")
        self._chat()
        self._title("A second pass has nothing to do")
        self._run("--dry-run", "--detailed-exitcode")

    def _an_edit(self) -> None:
        self._title("Somebody edits a profile and merges it")
        self._edit(*EDIT, "chat: a longer context")
        self._say("What runs is now stale, and the plan names the field. One replica goes first:")
        click.echo()
        digest = self._plan()
        self._title(
            "Roll it out: one at a time, the new one before the old one where GPUs are free"
        )
        self._run("--expect", digest, "--wait", "--timeout", "90s")

    def _a_revert(self) -> None:
        self._title("It was a mistake: revert")
        self._edit(EDIT[1], EDIT[0], 'Revert "chat: a longer context"')
        self._run("--yes", "--wait", "--timeout", "90s")

    # --- telling ------------------------------------------------------------------------------

    def _title(self, text: str) -> None:
        self._chapter += 1
        click.echo()
        click.echo(click.style(f"{self._chapter}. {text}", bold=True))
        click.echo()

    def _say(self, text: str) -> None:
        click.echo(f"  {text}")

    def _run(self, *args: str) -> None:
        """The real command, with its output as it comes; any code but 0 ends the demo."""
        click.echo(click.style(f"$ reconcile {' '.join(args)}", fg="blue"))
        argv = [sys.executable, "-m", "reconciler.cli", *args]
        sys.stdout.flush()
        done = subprocess.run(
            argv,
            cwd=self._repo,
            env=self._env,
            stdin=subprocess.DEVNULL,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise DemoFailed(
                f"reconcile {' '.join(args)}", f"ended with {done.returncode}", "see above"
            )
        click.echo()

    def _plan(self) -> str:
        """A dry run, shown; the beginning of its digest."""
        click.echo(click.style("$ reconcile --dry-run", fg="blue"))
        argv = [sys.executable, "-m", "reconciler.cli", "--dry-run"]
        done = subprocess.run(
            argv, cwd=self._repo, env=self._env, capture_output=True, timeout=60, check=False
        )
        click.echo(done.stdout.decode() + done.stderr.decode())
        found = re.search(r"Digest (\S+)", done.stdout.decode())
        if done.returncode != 0 or found is None:
            raise DemoFailed("reconcile --dry-run", f"ended with {done.returncode}", "see above")
        return found[1][:DIGEST_SHOWN]

    def _status(self) -> Any:
        argv = [sys.executable, "-m", "reconciler.cli", "status", "--output", "json"]
        done = subprocess.run(
            argv, cwd=self._repo, env=self._env, capture_output=True, timeout=60, check=True
        )
        return json.loads(done.stdout)

    def _chat(self) -> None:
        placements = {p["placement"]: p for p in self._status()["placements"]}
        endpoint = placements["chat"]["replicas"][0]["endpoint"]
        body = {"model": "sim-small", "messages": [{"role": "user", "content": "Hello, fleet!"}]}
        url = f"http://{endpoint}/v1/chat/completions"
        click.echo(click.style(f"$ curl {url} -d '{json.dumps(body)}'", fg="blue"))
        request = urllib.request.Request(
            url, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            said = json.load(answer)
        self._say(f"the answer's message: {json.dumps(said['choices'][0]['message'])}")

    # --- the fleet repo -----------------------------------------------------------------------

    def _make_repo(self, nodes: LoopbackFleet) -> None:
        import pygit2
        import yaml

        for part in PARTS:
            target = self._repo / part
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._example / part, target)
        documents = [
            {
                "kind": "Node",
                "name": node.name,
                "address": node.address,
                "pool": "sim",
                "gpus": {"class": "sim-gpu", "count": 8, "source": "declared"},
                "ssh": node.ssh_document(),
            }
            for node in nodes.nodes.values()
        ]
        (self._repo / "nodes").mkdir()
        text = yaml.safe_dump_all(documents, sort_keys=False)
        (self._repo / "nodes" / "sim.yaml").write_text(text, encoding="utf-8")
        pygit2.init_repository(str(self._repo), initial_head="main")
        self._commit("a fleet of three nodes")

    def _edit(self, before: str, after: str, message: str) -> None:
        path = self._repo / PROFILE
        text = path.read_text(encoding="utf-8")
        if before not in text:
            raise DemoFailed(PROFILE, f"does not contain {before!r}", "the example has changed")
        path.write_text(text.replace(before, after), encoding="utf-8")
        click.echo(f"  {PROFILE}: {before} → {after}")
        self._commit(message)

    def _commit(self, message: str) -> None:
        import pygit2

        repo = pygit2.Repository(str(self._repo))
        repo.index.add_all()
        repo.index.write()
        author = pygit2.Signature("Demo", "demo@example.org")
        parents = [] if repo.head_is_unborn else [repo.head.target]
        commit = repo.create_commit(
            "HEAD", author, author, message, repo.index.write_tree(), parents
        )
        click.echo(f"  commit {str(commit)[:10]} on main: {message}")
        click.echo()
