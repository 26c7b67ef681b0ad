"""What `doctor` tells of one node: facts in a line, and what is not as it should be. Pure.

A finding says what to do; a note is worth knowing and nothing to mend.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING

from reconciler.core import rails

if TYPE_CHECKING:
    from reconciler.core.model import Fleet, Node
    from reconciler.core.observed import NodeAnswer, NodeLook

LEAST_DISK_MIB = 1024
"""Records are small; 16 MiB of log a command and a few kept launches are not."""
CLOCK_S = 30.0
"""No decision compares clocks; certificates, tokens and whoever reads logs do."""
RDMA = ("ib", "roce")


def facts(fleet: Fleet, node: Node, look: NodeLook | None, asked_s: float) -> dict[str, object]:
    """For JSON; `row` makes a line of them. `asked_s`: this machine's clock as the look began."""
    answer = look.answer if look else None
    told: dict[str, object] = {"mode": node.mode or fleet.mode, "state": node.state.value}
    if look is None or answer is None:
        return {**told, "reachable": look.error.value if look and look.error else node.state.value}
    return {
        **told,
        "reachable": f"{look.look_ms:.0f} ms",
        "user": answer.user,
        "sudo": node.ssh.sudo or fleet.ssh.sudo,
        "agent": answer.agent_version,
        "os": answer.os,
        "python": answer.python_version,
        "python_path": answer.python,
        "system_mode": None if answer.no_system is None else not answer.no_system,
        "gpus": f"{_gpus(node, answer)} of {node.gpus.count}",
        "driver": answer.gpus.driver,
        "cuda": answer.gpus.cuda,
        "memlock": answer.resources.memlock,
        "nofile": answer.resources.nofile,
        "ram_free_mib": answer.resources.ram_free_mib,
        "shm_free_mib": answer.resources.shm_free_mib,
        "disk_free_mib": answer.resources.disk_free_mib,
        "clock_offset_s": _clock_offset_s(look, answer, asked_s),
        "clock_error_s": _clock_error_s(look),
    }


HEADS = (
    "node",
    "reachable",
    "user",
    "system",
    "mode",
    "GPUs",
    "driver",
    "memlock, nofile",
    "free RAM, shm, disk",
    "clock",
)


def row(name: str, told: dict[str, object]) -> list[str]:
    """The facts as a line under HEADS."""
    if "user" not in told:
        return [name, str(told["reachable"]), *["-"] * (len(HEADS) - 2)]
    sudo = f" (sudo {told['sudo']})" if told["sudo"] else ""
    free = (told["ram_free_mib"], told["shm_free_mib"], told["disk_free_mib"])
    return [
        name,
        str(told["reachable"]),
        f"{told['user'] or '?'}{sudo}",
        f"{told['os'] or '?'}, Python {told['python'] or '?'}",
        str(told["mode"]),
        str(told["gpus"]),
        str(told["driver"] or "-"),
        f"{told['memlock'] or '?'}, {told['nofile'] or '?'}",
        ", ".join(map(_gib, free)),
        _clock(told["clock_offset_s"], told["clock_error_s"]),
    ]


def _gib(mib: object) -> str:
    return f"{mib / 1024:.0f} GiB" if isinstance(mib, int) else "?"


def _clock(offset: object, error: object) -> str:
    """Only what is more than the measurement's own error is told as an offset."""
    if not isinstance(offset, float) or not isinstance(error, float):
        return "?"
    return f"{offset:+.1f} s" if abs(offset) > error else f"±{error:.1f} s"


def _clock_offset_s(look: NodeLook, answer: NodeAnswer, asked_s: float) -> float | None:
    """Against the middle of the look: the node read its clock somewhere between its two ends."""
    middle_s = asked_s + look.look_ms / 2000
    return round(answer.clock_s - middle_s, 1) if answer.clock_s else None


def _clock_error_s(look: NodeLook) -> float:
    """Half of what the look took, its connection included; rounded up, as the offset is rounded."""
    return math.ceil(look.look_ms / 200 + 0.5) / 10


def _gpus(node: Node, answer: NodeAnswer) -> int:
    """GPUs that can be used: those that were seen without a fault, or that the document lists."""
    if node.gpus.source == "declared":
        return len(node.gpus.ids) or node.gpus.count
    return sum(not gpu.error for gpu in answer.gpus.items)


def notes(fleet: Fleet, node: Node, look: NodeLook | None) -> Iterator[str]:
    """Worth knowing, and nothing to mend."""
    answer = look.answer if look else None
    if answer is None:
        return
    if (node.mode or fleet.mode) == "plain":
        more = "; it could use mode system" if answer.no_system == "" else ""
        yield (
            "mode plain: what leaves its session and takes off its mark may escape a stop, and all"
            f" share the login's limits{more}"
        )
    for former in node.previous_roots:
        there = posixpath.normpath(former)
        living = [s.launch for s in answer.shards if s.alive and s.former_root == there]
        if living:
            yield f"former root {former}: {', '.join(living)} lives there until it is replaced"
        elif not answer.shards_error:
            yield f"former root {former}: nothing runs there; it can leave previous_roots"
    for name in sorted(node.fabrics):
        yield from rails.apart(node, answer, name)
    strange = [s for s in answer.shards if s.alive and s.record and s.record.fleet != fleet.id]
    if strange:
        names = ", ".join(shard.launch for shard in strange)
        yield f"launches of another fleet live here and are never touched: {names}"


def findings(fleet: Fleet, node: Node, look: NodeLook | None, asked_s: float) -> Iterator[str]:
    """What is wrong with one node, each with what to do. `asked_s`: as for `facts`."""
    if look is None:
        return
    answer = look.answer
    if answer is None:
        yield f"{look.detail}; {look.hint}" if look.hint else look.detail or "no answer"
        return
    yield from _gpu_findings(node, answer)
    parts = (
        ("its launches", answer.shards_error),
        ("network", answer.network.error),
        ("resources", answer.resources.error),
        ("lease", answer.lease_error),
    )
    for part, error in parts:
        if error:
            yield f"{part}: {error}"
    yield from _system_findings(fleet, node, answer)
    offset = _clock_offset_s(look, answer, asked_s)
    if offset is not None and abs(offset) - _clock_error_s(look) >= CLOCK_S:
        yield f"its clock is {offset:+.0f} s off this machine's; is time synchronised on both?"
    yield from _network_findings(node, answer)
    if answer.hold is not None:
        launch = answer.hold.launch
        what, only = (f"launch {launch} is ", f" --launch {launch}") if launch else ("", "")
        yield (
            f"{what}held by {answer.hold.who or '?'}: {answer.hold.reason};"
            f" `reconcile hold {node.name}{only} --clear` lifts it"
        )
    for shard in answer.shards:
        if shard.record_error:
            yield (
                f"launch {shard.launch}: its record is {shard.record_error};"
                f" `reconcile stop {shard.launch}` ends it"
            )
        if shard.alive and not shard.supervised:
            yield f"launch {shard.launch}: lives without a supervisor; the next pass adopts it"


def _system_findings(fleet: Fleet, node: Node, answer: NodeAnswer) -> Iterator[str]:
    mode = node.mode or fleet.mode
    if mode == "system" and answer.no_system:
        yield f"{answer.no_system}: nothing can be started here"
    first, last = answer.network.ephemeral
    if first <= fleet.ports.last and fleet.ports.first <= last:
        yield (
            f"the kernel hands out ports {first} to {last}, which meets the fleet's"
            f" {fleet.ports.first} to {fleet.ports.last}; set net.ipv4.ip_local_port_range or"
            " `ports` in fleet.yaml"
        )
    fabrics = sorted(name for name, f in node.fabrics.items() if f.kind in RDMA)
    memlock = answer.resources.memlock
    if fabrics and mode == "plain" and memlock and memlock != "unlimited":
        yield (
            f"memlock is {memlock} and fabric {fabrics[0]} pins memory; raise it in"
            f" /etc/security/limits.conf for {answer.user or 'the user'}, or use mode system"
        )
    disk = answer.resources.disk_free_mib
    if disk is not None and disk < LEAST_DISK_MIB:
        yield f"{disk} MiB are free under {answer.root}; without room nothing is started: free some"


def _gpu_findings(node: Node, answer: NodeAnswer) -> Iterator[str]:
    if node.gpus.source == "declared":
        return
    if answer.gpus.error:
        yield f"GPUs: {answer.gpus.error}"
        return
    if len(answer.gpus.items) != node.gpus.count:
        yield (
            f"has {len(answer.gpus.items)} GPUs where its document says {node.gpus.count};"
            " look at `nvidia-smi` there or correct the document"
        )
    absent = sorted(set(node.gpus.ids) - {gpu.uuid for gpu in answer.gpus.items})
    if absent:
        yield f"GPUs of its document are not there: {', '.join(absent)}"
    for gpu in answer.gpus.items:
        name = f"GPU {gpu.index} ({gpu.uuid})" if gpu.index >= 0 else f"GPU {gpu.uuid}"
        for warning in gpu.warnings:
            yield f"{name}: {warning}"
        if gpu.error:
            yield f"{name}: {gpu.error}"
        strangers = [p for p in gpu.processes if not p.launch]
        if strangers:
            pids = ", ".join(f"{p.pid} {p.name}".strip() for p in strangers)
            yield f"GPU {gpu.index} is used by processes that are not ours: {pids}"


def _network_findings(node: Node, answer: NodeAnswer) -> Iterator[str]:
    if answer.network.error:
        return
    names = {i.name: i for i in answer.network.interfaces}
    wanted = [node.management.interface, *(f.interface for f in node.fabrics.values())]
    for name in filter(None, wanted):
        if name not in names:
            yield f"has no interface {name}; it has {', '.join(sorted(names)) or 'none'}"
        elif not names[name].up:
            yield f"interface {name} is down"
    seen = {(a.name, a.port): a for a in answer.network.adapters}
    for fabric_name, fabric in sorted(node.fabrics.items()):
        for adapter in fabric.adapters:
            found = seen.get((adapter.name, adapter.port))
            if found is None:
                yield f"fabric {fabric_name}: has no adapter {adapter.name}:{adapter.port}"
            elif found.state and "ACTIVE" not in found.state.upper():
                yield f"fabric {fabric_name}: {adapter.name}:{adapter.port} is {found.state}"
        yield from rails.misplaced(node, answer, fabric_name)
