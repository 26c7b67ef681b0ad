"""Times of reading a fleet repo, each beside its goal. Claims nothing itself.

    python tools/bench_fleet.py [--documents 1000] [--large 10000] [--rows version,offline,large]

Rows of the command are whole processes: their CPU time includes starting Python. A fleet of N
documents is half placements, a third profiles (half of them `extends` a base), the rest nodes and
models, about ten documents a file. Compare rows of one run, never runs.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pygit2
import yaml

PER_FILE = 10
ID = "5f0c2f0e-7a63-4b52-9d3e-0c5d7f1a2b3c"


def documents(count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """(folder, document) of a fleet with `count` documents beside fleet.yaml."""
    nodes, models, profiles = count // 10, count // 15, count // 3
    for n in range(nodes):
        fabric = {"kind": "ib", "adapters": [{"name": f"mlx5_{i}"} for i in range(4)]}
        yield (
            "nodes",
            {
                "kind": "Node",
                "name": f"gpu-{n}",
                "address": f"10.0.{n // 250}.{n % 250 + 1}",
                "pool": f"pool-{n % 4}",
                "gpus": {"class": "h100-80gb", "count": 8, "memory_gib": 80},
                "fabrics": {"ib": {**fabric, "address": f"10.1.{n // 250}.{n % 250 + 1}"}},
                "labels": {"rack": f"r{n % 20}"},
            },
        )
    for n in range(models):
        facts = {"attention_heads": 64, "weights_gib": 40}
        yield (
            "catalog",
            {"kind": "Model", "name": f"model-{n}", "path": f"/models/{n}", "facts": facts},
        )
    for n in range(profiles):
        base = n - n % 2
        own: dict[str, Any] = {"kind": "Profile", "name": f"profile-{n}"}
        if n != base:
            yield "catalog", {**own, "extends": f"profile-{base}", "args": ["--max-num-seqs", n]}
            continue
        yield (
            "catalog",
            {
                **own,
                "model": f"model-{n % models}",
                "engine": "vllm",
                "gpu_class": "h100-80gb",
                "gpus_per_node": 1,
                "args": ["--max-model-len", 8192, "--gpu-memory-utilization", "0.92"],
                "env": {"VLLM_LOGGING_LEVEL": "INFO"},
                "start_timeout_s": 1200,
            },
        )
    for n in range(count - nodes - models - profiles):
        body = {"profile": f"profile-{n % profiles}", "pool": f"pool-{n % 4}", "replicas": 1}
        yield (
            "placements",
            {"kind": "Placement", "name": f"p-{n}", **body, "labels": {"team": f"t{n % 9}"}},
        )


def make_repo(folder: Path, count: int) -> Path:
    """The fleet in a git repository with one commit."""
    pygit2.init_repository(str(folder), initial_head="main")
    fleet = {"kind": "Fleet", "version": 1, "name": "bench", "id": ID}
    files: dict[str, list[dict[str, Any]]] = {"fleet.yaml": [fleet]}
    for number, (part, document) in enumerate(documents(count)):
        files.setdefault(f"{part}/f{number // PER_FILE}.yaml", []).append(document)
    for path, bodies in files.items():
        target = folder / path
        target.parent.mkdir(exist_ok=True)
        target.write_text(yaml.dump_all(bodies, Dumper=yaml.CSafeDumper, sort_keys=False))
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    """Everything, on the current branch."""
    repo = pygit2.Repository(str(folder))
    repo.index.add_all()
    repo.index.write()
    author = pygit2.Signature("Bench", "bench@fleet.example")
    parents = [] if repo.head_is_unborn else [repo.head.target]
    repo.create_commit("HEAD", author, author, "bench", repo.index.write_tree(), parents)


def row(what: str, value_ms: float, goal_ms: float | None) -> None:
    """One line of the table."""
    goal = "" if goal_ms is None else f"{goal_ms:g} ms"
    verdict = "" if goal_ms is None else "met" if value_ms <= goal_ms else "MISSED"
    print(f"{what:<62} | {value_ms:9.1f} ms | {goal:>8} | {verdict}", flush=True)


def cpu_of(argv: list[str], env: dict[str, str], times: int = 5) -> float:
    """Median CPU milliseconds, user and system, of a whole process that ends well."""
    taken = []
    subprocess.run(argv, env=env, check=True, capture_output=True, timeout=120)
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, env=env, check=True, capture_output=True, timeout=120)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(taken) * 1000


def wall_of(work: Callable[[], Any], times: int = 5) -> float:
    """Median wall milliseconds."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


def row_version(options: Any, folder: Path, env: dict[str, str]) -> None:
    """The command that does nothing."""
    argv = [sys.executable, "-m", "reconciler.cli", "--version"]
    row("reconcile --version: CPU", cpu_of(argv, env), 40)


def row_offline(options: Any, folder: Path, env: dict[str, str]) -> None:
    """What CI runs for a pull request, as a whole process."""
    count = options.documents
    repo = make_repo(folder / "offline", count)
    argv = [sys.executable, "-m", "reconciler.cli", "--repo", str(repo)]
    dry = [*argv, "--dry-run", "--offline"]
    row(f"dry run --offline, {count} documents: CPU", cpu_of(dry, env), 330)
    row(f"  validate, {count} documents: CPU", cpu_of([*argv, "validate"], env), None)


def row_large(options: Any, folder: Path, env: dict[str, str]) -> None:
    """Reading, in this process: first, the same again, and with one file edited."""
    from reconciler.core.diff import diff
    from reconciler.core.plan import plan
    from reconciler.fleet.source import Source
    from reconciler.loop.offline import AssumedNodes

    count = options.large
    repo = make_repo(folder / "large", count)

    def cold() -> None:
        fresh = Source.open(str(repo), cache_dir=folder / "cache", timeout_s=5)
        fresh.load(fresh.resolve(None))

    row(f"{count} documents from the object database: wall", wall_of(cold, 3), 2300)
    source = Source.open(str(repo), cache_dir=folder / "cache", timeout_s=5)
    desired = source.load(source.resolve(None))
    assert len(desired.placements) > count // 3

    edits = iter(range(1000))

    def edited() -> None:
        target = repo / "placements" / sorted(os.listdir(repo / "placements"))[0]
        text = target.read_text()
        head, _, rest = text.partition("team:")
        target.write_text(f"{head}team: t{next(edits)}x{rest[rest.index(chr(10)) :]}")
        commit(repo)
        began = time.perf_counter()
        source.load(source.resolve(None))
        taken.append(time.perf_counter() - began)

    taken: list[float] = []
    for _ in range(5):
        edited()
    row("  read again after a commit to one file: wall", statistics.median(taken) * 1000, 300)
    observed = AssumedNodes().look(desired)
    numbers = iter(range(10**9))

    def planned() -> None:
        plan(desired, observed, diff(desired, observed), lambda: f"s{next(numbers)}")

    row("  a plan in which everything is to be started: wall", wall_of(planned, 1), None)


ROWS = {"version": row_version, "offline": row_offline, "large": row_large}


def main() -> None:
    """All rows, or those that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--large", type=int, default=10_000)
    parser.add_argument("--rows", default=",".join(ROWS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rcl-") as name:
        folder = Path(name)
        env = {**os.environ, "RECONCILE_CACHE_DIR": str(folder / "cache"), "HOME": name}
        # As an installed command: compiled once, before what is measured.
        env |= {"PYTHONPYCACHEPREFIX": str(folder / "compiled"), "PYTHONDONTWRITEBYTECODE": ""}
        for asked in options.rows.split(","):
            ROWS[asked](options, folder, env)


if __name__ == "__main__":
    main()
