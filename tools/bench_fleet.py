"""Times of reading a fleet repo, each beside its goal. Claims nothing itself.

    python tools/bench_fleet.py [--documents 1000] [--large 10000] [--shards 10000]
                                [--rows version,offline,large,drift,git]

All times are CPU time, user and system, the least of several runs: on a shared machine everything
above it is somebody else's. Rows of the command are whole processes and include starting Python. A
fleet of N documents is half placements, a third profiles (half of them `extends` a base), the rest
nodes and models, about ten documents a file. Compare rows of one run, never runs.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pygit2
import yaml

from reconciler.cli import GC_THRESHOLDS

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
    print(f"{what:<62} | {value_ms:9.2f} ms | {goal:>8} | {verdict}", flush=True)


def cpu_of(
    argv: list[str],
    env: dict[str, str],
    times: int = 7,
    before_each: Callable[[], object] = lambda: None,
) -> float:
    """Least CPU milliseconds of a whole process that ends well; the first run is not counted."""
    taken = []
    for _ in range(times + 1):
        before_each()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, env=env, check=True, capture_output=True, timeout=120)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(taken[1:]) * 1000


def cpu(work: Callable[[], object], times: int = 5) -> float:
    """Least CPU milliseconds of some work in this process."""
    taken = []
    for _ in range(times):
        gc.collect()
        began = time.process_time()
        kept = work()
        taken.append(time.process_time() - began)
        del kept
    return min(taken) * 1000


def row_version(options: Any, folder: Path, env: dict[str, str]) -> None:
    """The command that does nothing."""
    argv = [sys.executable, "-m", "reconciler.cli", "--version"]
    row("reconcile --version", cpu_of(argv, env), 40)


def row_offline(options: Any, folder: Path, env: dict[str, str]) -> None:
    """What CI runs for a pull request, as a whole process."""
    count = options.documents
    repo = make_repo(folder / "offline", count)
    cache = Path(env["RECONCILE_CACHE_DIR"])
    argv = [sys.executable, "-m", "reconciler.cli", "--repo", str(repo)]
    dry = [*argv, "--dry-run", "--offline"]

    def forget() -> None:
        shutil.rmtree(cache, ignore_errors=True)

    row(f"dry run --offline, {count} documents", cpu_of(dry, env, before_each=forget), 330)
    row("  the same again, its files unchanged", cpu_of(dry, env), 100)
    row(f"  validate, {count} documents", cpu_of([*argv, "validate"], env, 5, forget), None)
    row("  the same again, its files unchanged", cpu_of([*argv, "validate"], env, 5), None)


def row_large(options: Any, folder: Path, env: dict[str, str]) -> None:
    """Reading, in this process: first, from the cache, and with one file edited."""
    from reconciler.core.diff import diff
    from reconciler.core.plan import plan
    from reconciler.fleet.source import Source
    from reconciler.loop.comparing import Base, BaseNodes
    from reconciler.loop.offline import AssumedNodes

    count = options.large
    repo = make_repo(folder / "large", count)

    def opened() -> Source:
        return Source.open(str(repo), cache_dir=folder / "cache", timeout_s=5)

    def read() -> object:
        source = opened()
        return source.load(source.resolve(None))

    def cold() -> object:
        shutil.rmtree(folder / "cache", ignore_errors=True)
        return read()

    row(f"{count} documents from the object database", cpu(cold, 3), 2300)
    row("  the same again, its files unchanged", cpu(read, 3), 300)
    source = opened()
    desired = source.load(source.resolve(None))
    assert len(desired.placements) > count // 3
    numbers = iter(range(10**9))

    def planned(look: Any) -> object:
        return plan(desired, look, diff(desired, look), lambda: f"s{next(numbers)}")

    empty = AssumedNodes().look(desired)
    row("  a plan in which everything is to be started", cpu(lambda: planned(empty), 1), None)
    observed = BaseNodes(Base(desired.revision, desired)).look(desired)
    edits = iter(range(1000))

    def edit() -> None:
        target = repo / "placements" / sorted(os.listdir(repo / "placements"))[0]
        head, _, rest = target.read_text().partition("team:")
        target.write_text(f"{head}team: t{next(edits)}x{rest[rest.index(chr(10)) :]}")
        commit(repo)

    reading, planning = [], []
    for _ in range(5):
        edit()
        gc.collect()
        began = time.process_time()
        desired = source.load(source.resolve(None))
        read_at = time.process_time()
        planned(observed)
        reading.append(read_at - began)
        planning.append(time.process_time() - began)
    row("  planned again after a commit to one file", min(planning) * 1000, 60)
    row("    of that: read", min(reading) * 1000, None)


def row_drift(options: Any, folder: Path, env: dict[str, str]) -> None:
    """Diff and plan of a large fleet that runs as wanted but for one profile in a hundred."""
    from dataclasses import replace

    from reconciler.core import model
    from reconciler.core.diff import diff
    from reconciler.core.plan import plan
    from reconciler.loop.comparing import Base, BaseNodes

    shards, pools, each = options.shards, 50, 20
    gpus = model.GpuInventory("h100-80gb", 8, memory_gib=80)
    count = shards // 7
    nodes = {
        f"gpu-{n:04}": model.Node(
            f"gpu-{n:04}", f"10.{n // 250}.{n % 250}.1", f"pool-{n % pools}", gpus
        )
        for n in range(count)
    }
    profiles = {
        f"profile-{n}": model.Profile(
            f"profile-{n}", model="m", engine="vllm", args=("--max-model-len", "8192")
        )
        for n in range(100)
    }
    placements = {
        f"p-{n}": model.Placement(
            f"p-{n}", f"profile-{n % 100}", replicas=each, pool=f"pool-{n % pools}"
        )
        for n in range(shards // each)
    }
    desired = model.Desired(
        model.Revision("a" * 40, "main", root_commit="b" * 40),
        model.Fleet("bench", ID),
        nodes,
        {"m": model.Model("m", path="/models/m")},
        profiles,
        placements,
    )
    observed = BaseNodes(Base(desired.revision, desired)).look(desired)
    changed = replace(profiles["profile-7"], args=("--max-model-len", "4096"))
    edited = replace(desired, profiles={**profiles, "profile-7": changed})
    numbers = iter(range(10**9))
    judged = diff(edited, observed)
    stale = sum(replica.verdict == "stale" for replica in judged.replicas)
    assert stale == shards // 100, stale

    def both() -> object:
        return plan(edited, observed, diff(edited, observed), lambda: f"s{next(numbers)}")

    row(f"diff and plan of {shards} shards, {stale} of them stale", cpu(both), 40)
    row("  of that: diff", cpu(lambda: diff(edited, observed)), None)


def row_git(options: Any, folder: Path, env: dict[str, str]) -> None:
    """A pass of the daemon that finds the commit that it knows."""
    from reconciler.fleet.source import Source

    repo = make_repo(folder / "git", 100)
    source = Source.open(str(repo), cache_dir=folder / "cache", timeout_s=5)
    source.load(source.resolve("main"))
    rounds = 100

    def nothing_new() -> None:
        for _ in range(rounds):
            source.fetch()
            source.load(source.resolve("main"))

    row('"nothing new in git", local', cpu(nothing_new) / rounds, 0.5)


ROWS = {
    "version": row_version,
    "offline": row_offline,
    "large": row_large,
    "drift": row_drift,
    "git": row_git,
}


def main() -> None:
    """All rows, or those that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--large", type=int, default=10_000)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--rows", default=",".join(ROWS))
    options = parser.parse_args()
    gc.set_threshold(*GC_THRESHOLDS)
    with tempfile.TemporaryDirectory(prefix="rcl-") as name:
        folder = Path(name)
        env = {**os.environ, "RECONCILE_CACHE_DIR": str(folder / "cache"), "HOME": name}
        # As an installed command: compiled once, before what is measured.
        env |= {"PYTHONPYCACHEPREFIX": str(folder / "compiled"), "PYTHONDONTWRITEBYTECODE": ""}
        print(f"{'CPU time':<62} | {'measured':>12} | {'goal':>8} |")
        for asked in options.rows.split(","):
            ROWS[asked](options, folder, env)


if __name__ == "__main__":
    main()
