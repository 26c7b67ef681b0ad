"""`tools/lab`: the lab by hand. One command a verb; what fails says what to do next."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable

from tools.labfleet import host, image, nvml
from tools.labfleet.fleet import CACHE, LabFleet, all_labs
from tools.labfleet.measure import measure
from tools.labfleet.record import LabOptions

Verb = Callable[[LabFleet, argparse.Namespace], None]


def main(argv: list[str]) -> int:
    """Run one command; 0 done, 1 said why not."""
    args = _parser().parse_args(argv)
    try:
        args.run(args)
    except host.LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/lab",
        description="Whole Debian nodes with systemd on this machine (docs/lab.md).",
    )
    parser.add_argument("--name", default="lab", help="which lab, where there are several")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")

    up = verbs.add_parser("up", help="make and boot nodes")
    up.add_argument("count", nargs="?", type=int, default=3)
    up.set_defaults(run=_up)
    make = verbs.add_parser("image", help="only make what nodes start from (once, about 45 s)")
    make.set_defaults(run=_image)
    for sub in (up, make):
        sub.add_argument("--suite", default="bookworm", help="Debian suite of the nodes")
        sub.add_argument("--package", action="append", default=[], help="one more package in them")
    up.add_argument("--disk-mib", type=int, default=LabOptions.disk_mib)
    up.add_argument(
        "--nvml",
        nargs="?",
        default="",
        const=str(nvml.SOURCE),
        help="give the nodes eight GPUs by the stand-in NVML library (of this source folder)",
    )

    down = verbs.add_parser("down", help="take the lab down, also what a crash left of it")
    down.add_argument("--all", action="store_true", help="all labs of this checkout")
    down.set_defaults(run=_down)

    figures = verbs.add_parser("measure", help="how long the steps take, on a lab of its own")
    figures.set_defaults(run=_measure)

    _verb(verbs, "status", "how the nodes stand", _status, node=False)
    nodes = _verb(verbs, "nodes", "Node documents for a fleet repo, as YAML", _nodes, node=False)
    nodes.add_argument("--pool", default="lab")
    nodes.add_argument("--gpu-class", default="lab")
    nodes.add_argument("--gpus", type=int, default=8, help="GPUs that each is said to have")
    shell = _verb(verbs, "shell", "log in, or run a command", _shell)
    shell.add_argument("--user", default="root")
    shell.add_argument("command", nargs=argparse.REMAINDER)
    _verb(verbs, "start", "switch on", lambda lab, a: _timed(lab.start, a.node))
    _verb(verbs, "stop", "switch off in an orderly way", lambda lab, a: lab.stop(a.node))
    _verb(verbs, "reboot", "reboot from within", lambda lab, a: _timed(lab.reboot, a.node))
    power = _verb(verbs, "power-cut", "cut the power, then boot again", _power_cut)
    power.add_argument("--off", action="store_true", help="leave it off")
    _verb(verbs, "freeze", "stop all its processes", lambda lab, a: lab.freeze(a.node))
    _verb(verbs, "thaw", "go on after freeze", lambda lab, a: lab.thaw(a.node))
    cut = _verb(verbs, "cut", "off the network", lambda lab, a: lab.cut(a.node, cable=a.cable))
    cut.add_argument("--cable", action="store_true", help="the node sees its carrier go")
    _verb(verbs, "join", "back on the network", lambda lab, a: lab.join(a.node))
    fill = _verb(verbs, "fill", "fill its disk", _fill)
    fill.add_argument("--leave-kib", type=int, default=0)
    _verb(verbs, "unfill", "give the space back", lambda lab, a: lab.unfill(a.node))
    gpu = _verb(verbs, "gpu", "what the stand-in NVML shows of one GPU", _gpu)
    gpu.add_argument("index", type=int)
    gpu.add_argument("state", choices=nvml.STATES)
    gpu.add_argument("--pid", type=int, action="append", default=[], help="a process on it")
    gpu.add_argument("--used-mib", type=int, default=0)
    return parser


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    act: Verb,
    *,
    node: bool = True,
) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=summary)
    if node:
        verb.add_argument("node", help="a node's name, or its number")
    verb.set_defaults(run=lambda args: act(LabFleet.open(args.name), args))
    return verb


def _options(args: argparse.Namespace) -> LabOptions:
    return LabOptions(args.suite, tuple(args.package), args.disk_mib, args.nvml)


def _up(args: argparse.Namespace) -> None:
    host.install_missing()
    image.ensure(CACHE, args.suite, args.package)
    begin = time.monotonic()
    lab = LabFleet.create(args.count, name=args.name, options=_options(args), owned=False)
    print(f"{len(lab.names)} nodes are up after {time.monotonic() - begin:.1f} s")
    _status(lab, args)


def _image(args: argparse.Namespace) -> None:
    host.install_missing()
    print(image.ensure(CACHE, args.suite, args.package))


def _down(args: argparse.Namespace) -> None:
    labs = all_labs() if args.all else [LabFleet.open(args.name)]
    for lab in labs:
        lab.close()


def _measure(args: argparse.Namespace) -> None:
    host.install_missing()
    for step, median, longest in measure("measure"):
        print(f"{step:<36} {median:7.2f} s   longest {longest:.2f} s")


def _status(lab: LabFleet, args: argparse.Namespace) -> None:
    row = "{:<12} {:<16} {:<8} {:<8} {:>5} {:>6}"
    print(row.format("node", "address", "power", "network", "boots", "disk"))
    for node in lab.nodes:
        network = "cut" if lab.is_cut(node.name) else "joined"
        disk = f"{lab.disk_used_percent(node.name)}%"
        print(
            row.format(
                node.name, node.address, lab.state(node.name), network, lab.boots(node.name), disk
            )
        )


def _nodes(lab: LabFleet, args: argparse.Namespace) -> None:
    source = "nvml" if lab.options.nvml else "declared"
    for node in lab.nodes:
        # JSON's strings are YAML's: quoted, nothing in them can be taken for anything else.
        print(f"""---
kind: Node
name: {node.name}
address: {json.dumps(node.address)}
pool: {args.pool}
gpus: {{class: {args.gpu_class}, count: {args.gpus}, source: {source}}}
ssh:
  user: {node.user}
  port: {node.port}
  identity_file: {json.dumps(node.identity_file)}
  host_key: {json.dumps(node.host_key)}""")


def _shell(lab: LabFleet, args: argparse.Namespace) -> None:
    argv = lab.ssh_argv(args.node, user=args.user)
    terminal = ["-t"] if sys.stdin.isatty() and not args.command else []
    sys.stdout.flush()
    os.execvpe(
        "ssh", [argv[0], *terminal, *argv[1:], *args.command], {**os.environ, "PATH": host.PATH}
    )


def _power_cut(lab: LabFleet, args: argparse.Namespace) -> None:
    lab.power_cut(args.node)
    if not args.off:
        _timed(lab.start, args.node)


def _fill(lab: LabFleet, args: argparse.Namespace) -> None:
    print(f"{lab.fill(args.node, leave_kib=args.leave_kib)} KiB taken")


def _gpu(lab: LabFleet, args: argparse.Namespace) -> None:
    changes = {"state": args.state, "pids": tuple(args.pid), "used_mib": args.used_mib}
    print(lab.set_gpu(args.node, args.index, **changes).uuid)


def _timed(act: Callable[[str], float], node: str) -> None:
    print(f"accepts SSH logins after {act(node):.1f} s")
