"""Times of the node edge over real sshd on loopback, each beside its goal. Claims nothing itself.

    python tools/bench_nodes.py [--nodes 100] [--many 1000] [--rows 3,1,2,8,9] [--agent probe|real]

`probe` answers 2 KB at once, so that what is measured is the client and the way there; `real` is
the agent that ships. Nodes are connections to a few sshd servers: the client cannot tell, and a
thousand servers would only measure this machine's memory. Compare rows of one run, never runs.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reconciler.core.changes import Change, Plan, ShardSpec, StartStep, Symbol
from reconciler.core.model import Desired, Fleet, Revision
from reconciler.core.observed import Labels, Observed
from reconciler.nodes.apply import Outcome, apply
from reconciler.nodes.channel import AgentPackage
from reconciler.nodes.loopback import LoopbackFleet, LoopbackNode
from reconciler.nodes.pool import NodePool, PoolSettings
from tests.nodes.standin import package
from tests.support.desired import FLEET_ID, node_of

SERVERS = 20
PROBE_BYTES = 2048


@dataclass(frozen=True)
class Times:
    """One thing measured: wall seconds, and CPU seconds of this process."""

    wall: float
    cpu: float


def measure(work: Callable[[], Any]) -> Times:
    """Runs `work` once."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Times(time.perf_counter() - wall, time.process_time() - cpu)


def median(times: list[Times]) -> Times:
    """Medians of both."""
    return Times(statistics.median(t.wall for t in times), statistics.median(t.cpu for t in times))


def row(number: str, what: str, value: str, goal: str = "", met: bool | None = None) -> None:
    """One line of the table."""
    verdict = {True: "met", False: "MISSED", None: ""}[met]
    print(f"{number:>3} | {what:<58} | {value:<26} | {goal:<20} | {verdict}", flush=True)


def nodes_on(fleet: LoopbackFleet, count: int, timeout_s: int = 300) -> Desired:
    """`count` Node documents over the fleet's servers."""
    servers = list(fleet.nodes.values())
    named = [replace(servers[i % len(servers)], name=f"n{i:04}") for i in range(count)]
    nodes = {node.name: node_of(node) for node in named}
    settings = Fleet("bench", FLEET_ID, observe_timeout_s=timeout_s)
    return Desired(Revision("0" * 40), settings, nodes)


def look(pool: NodePool, desired: Desired) -> Observed:
    """A look in which everybody answered."""
    observed = pool.look(desired)
    failed = [f"{n}: {v.detail}" for n, v in observed.nodes.items() if v.error]
    if failed:
        raise SystemExit(f"{len(failed)} nodes did not answer: {failed[0]}")
    return observed


@contextmanager
def servers(count: int, probe: bool) -> Iterator[LoopbackFleet]:
    """Servers whose probes answer 2 KB."""
    with tempfile.TemporaryDirectory(prefix="rcl-") as folder:
        options = {"MaxStartups": "500", "MaxSessions": "10"}
        with LoopbackFleet(Path(folder), count, options=options) as fleet:
            for node in fleet.nodes.values():
                node.root.mkdir()
                if probe:
                    padding = "x" * (PROBE_BYTES - 200)
                    (node.root / "extra").write_text(f'{{"hostname": "{padding}"}}')
            yield fleet


class Bench:
    """All rows over one set of servers."""

    def __init__(self, fleet: LoopbackFleet, agent: AgentPackage | None, options: Any) -> None:
        self.fleet, self.agent, self.options = fleet, agent, options
        self.home = fleet.folder

    def pool(self, **settings: Any) -> NodePool:
        """A pool that knows nothing yet."""
        given = {"home": self.home, "agent": self.agent, **settings}
        return NodePool(owner="bench", settings=PoolSettings(**given))

    def prime(self) -> None:
        """The agent's file is on every server: first contact is about the way there."""
        with self.pool() as pool:
            look(pool, nodes_on(self.fleet, len(self.fleet.nodes)))

    def row1(self) -> None:
        """An idle pass."""
        count = self.options.nodes
        desired = nodes_on(self.fleet, count)
        with self.pool() as pool:
            look(pool, desired)
            for _ in range(3):
                look(pool, desired)
            warm = median([measure(lambda: look(pool, desired)) for _ in range(15)])
        cpu = warm.cpu / count * 1000
        what = f"idle pass over {count} warm nodes: wall"
        row("1", what, f"{warm.wall * 1000:.1f} ms", "30 ms", warm.wall <= 0.030)
        row("1", "  client CPU a node", f"{cpu:.3f} ms", "0.20 ms", cpu <= 0.20)
        master = self._control_master(min(count, 50))
        if master:
            ratio = master * count / min(count, 50) / warm.wall
            row("1", "  against ControlMaster + xargs -P16", f"{ratio:.0f} x", "35 x", ratio >= 35)
        if not shutil.which("ansible"):
            row("1", "  against ansible raw", "not installed, not measured", "200 x")

    def _control_master(self, count: int) -> float:
        """Wall seconds of `count` commands over kept OpenSSH connections."""
        if not shutil.which("ssh"):
            return 0.0
        nodes = list(self.fleet.nodes.values())
        with tempfile.TemporaryDirectory(prefix="rcl-") as folder:
            lines = []
            for i in range(count):
                node = nodes[i % len(nodes)]
                lines.append(" ".join([*ssh_options(node, Path(folder)), *kept(folder, i)]))
                argv = ["ssh", *lines[-1].split(), "-fN", target(node)]
                subprocess.run(argv, check=True, capture_output=True, timeout=60)
            script = Path(folder) / "all"
            probe = f"python3 -c 'print(\"x\"*{PROBE_BYTES})'"
            script.write_text(
                "\n".join(
                    f'ssh {line} {target(nodes[i % len(nodes)])} "{quoted(probe)}" >/dev/null'
                    for i, line in enumerate(lines)
                )
            )
            command = f"xargs -a {script} -P16 -d '\\n' -n1 sh -c"
            argv = ["sh", "-c", command]
            taken = [
                measure(lambda: subprocess.run(argv, check=True, timeout=120)) for _ in range(3)
            ]
            for i, line in enumerate(lines):
                argv = ["ssh", *line.split(), "-O", "exit", target(nodes[i % len(nodes)])]
                subprocess.run(argv, capture_output=True, check=False, timeout=60)
        return median(taken).wall

    def row2(self) -> None:
        """First contact."""
        one = nodes_on(self.fleet, 1)
        node = next(iter(self.fleet.nodes.values()))

        def cold(desired: Desired) -> Times:
            with self.pool() as pool:
                return measure(lambda: look(pool, desired))

        ours = median([cold(one) for _ in range(11)])
        with tempfile.TemporaryDirectory(prefix="rcl-") as folder:
            options = ssh_options(node, Path(folder))
            options += ["-o", "KexAlgorithms=curve25519-sha256"]
            probe = f"python3 -c 'print(\"x\"*{PROBE_BYTES})'"
            argv = ["ssh", *options, target(node), probe]
            theirs = median(
                [
                    measure(lambda: subprocess.run(argv, check=True, capture_output=True))
                    for _ in range(11)
                ]
            )
        row(
            "2", "first contact, one node", f"{ours.wall * 1000:.1f} ms", "50 ms", ours.wall <= 0.05
        )
        ratio = ours.wall / theirs.wall
        what = f"  against ssh, x25519, the same probe ({theirs.wall * 1000:.1f} ms)"
        row("2", what, f"{ratio:.2f} x", "0.4 x", ratio <= 0.4)
        count = self.options.nodes
        many = median([cold(nodes_on(self.fleet, count)) for _ in range(3)])
        cpu = many.cpu / count * 1000
        row("2", f"  {count} nodes at once: wall", f"{many.wall:.2f} s")
        row("2", "  client CPU a node", f"{cpu:.2f} ms", "3 ms", cpu <= 3)

    def row3(self) -> None:
        """Many open nodes."""
        count = self.options.many
        threads = set(threading.enumerate())
        desired = nodes_on(self.fleet, count)
        before = rss_mb()
        pool = self.pool()
        first = measure(lambda: look(pool, desired))
        row("3", f"{count} nodes: first look", f"{first.wall:.1f} s, {first.cpu:.1f} s CPU")
        for _ in range(3):
            look(pool, desired)
        warm = median([measure(lambda: look(pool, desired)) for _ in range(7)])
        row("1", f"idle pass over {count} nodes", f"{warm.wall:.2f} s", "0.40 s", warm.wall <= 0.4)
        cpu = warm.cpu / count * 1000
        row("1", "  client CPU a node", f"{cpu:.3f} ms", "0.20 ms", cpu <= 0.20)
        used = rss_mb()
        what = f"  memory of the process ({before:.0f} MB before)"
        row("3", what, f"{used:.0f} MB", "120 MB", used <= 120)
        idle = measure(lambda: time.sleep(10))
        share = idle.cpu / idle.wall * 100
        row("3", "  CPU while idle", f"{share:.2f} % of a core", "2.5 %", share <= 2.5)
        closing = measure(pool.close)
        time.sleep(1.0)
        left = len([t for t in threading.enumerate() if t not in threads])
        row("3", f"  threads 1 s after close ({closing.wall:.2f} s)", str(left), "0", left == 0)

    def row8(self) -> None:
        """Mute nodes."""
        count, deadline = self.options.nodes, 3
        mute = list(self.fleet.nodes)[:1]
        desired = nodes_on(self.fleet, count, timeout_s=60)
        with self.pool() as pool:
            look(pool, desired)
            for _ in range(3):
                healthy = max(v.look_ms for v in look(pool, desired).nodes.values())
            for name in mute:
                self.fleet.freeze(name)
            try:
                short = nodes_on(self.fleet, count, timeout_s=deadline)
                observed: list[Observed] = []
                took = measure(lambda: observed.append(pool.look(short)))
            finally:
                for name in mute:
                    self.fleet.thaw(name)
        seen = observed[0].nodes.values()
        others = max(v.look_ms for v in seen if v.error is None)
        silent = sum(v.error is not None for v in seen)
        ratio = others / healthy
        what = f"{silent} mute of {count}: the last other one, healthy {healthy:.0f} ms"
        row("8", what, f"{ratio:.2f} x ({others:.0f} ms)", "2 x", ratio <= 2)
        over = took.wall / deadline
        what = f"  the mute ones told (deadline {deadline} s)"
        row("8", what, f"{over:.3f} x the deadline", "1.10 x", over <= 1.1)

    def row9(self) -> None:
        """From a plan to the last start request, with the looks and leases around it."""
        count = self.options.nodes
        desired = nodes_on(self.fleet, count)
        with self.pool() as pool:
            look(pool, desired)
            look(pool, desired)
            steps = [self._start(name) for name in desired.nodes]
            change = Change("x", "x", Symbol.START, "", steps=tuple(steps))
            plan = Plan(desired.revision, (change,))
            laps: dict[str, float] = {}

            def whole() -> None:
                laps["look"] = measure(lambda: look(pool, desired)).wall
                names = list(desired.nodes)
                began = time.perf_counter()
                leases = pool.lease(desired, names, "acquire")
                laps["lease"] = time.perf_counter() - began
                laps["look again"] = measure(lambda: look(pool, desired)).wall
                epochs = {name: lease.epoch for name, lease in leases.items() if lease.lease}
                began = time.perf_counter()
                report = apply(plan, desired, pool, epochs=epochs)
                laps["apply"] = time.perf_counter() - began
                bad = [r for r in report.results if r.result is not Outcome.DONE]
                if bad:
                    raise SystemExit(f"{len(bad)} starts were not done: {bad[0]}")

            took = measure(whole)
        parts = ", ".join(f"{name} {seconds * 1000:.0f}" for name, seconds in laps.items())
        what = f"{count} starts, warm, without git and plan ({parts} ms)"
        row("9", what, f"{took.wall:.2f} s", "1.5 s", took.wall <= 1.5)

    def _start(self, name: str) -> StartStep:
        spec = {"launch": f"{name}-x", "commands": [{"argv": ["sleep", "1"] * 20}] * 4}
        shard = ShardSpec(name, spec, Labels(replica=name))
        return StartStep(name, f"{name}-x", 1, "p1:x", (shard,))


def ssh_options(node: LoopbackNode, folder: Path) -> list[str]:
    """OpenSSH's options for a loopback node."""
    known = folder / f"known-{node.name}"
    known.write_text(f"[{node.address}]:{node.port} {node.host_key}\n")
    pairs = {"UserKnownHostsFile": str(known), "BatchMode": "yes", "IdentitiesOnly": "yes"}
    options = [word for key, value in pairs.items() for word in ("-o", f"{key}={value}")]
    return ["-F", "none", "-p", str(node.port), "-i", str(node.identity_file), *options]


def kept(folder: str, index: int) -> list[str]:
    """ControlMaster options with a socket of its own."""
    return ["-o", "ControlMaster=auto", "-o", "ControlPersist=60", "-S", f"{folder}/s{index}"]


def target(node: LoopbackNode) -> str:
    """`user@address`."""
    return f"{node.user}@{node.address}"


def quoted(text: str) -> str:
    """Inside double quotes of sh."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def rss_mb() -> float:
    """Resident memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--many", type=int, default=1000)
    parser.add_argument("--rows", default="3,1,2,8,9")
    parser.add_argument("--agent", choices=("probe", "real"), default="probe")
    options = parser.parse_args()
    agent = package() if options.agent == "probe" else None
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, agent: {options.agent}")
    with servers(SERVERS, agent is not None) as fleet:
        bench = Bench(fleet, agent, options)
        bench.prime()
        for name in options.rows.split(","):
            getattr(bench, f"row{name}")()


if __name__ == "__main__":
    main()
