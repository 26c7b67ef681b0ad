"""References in values: `$(node.address)`, `$(port.http)`, `$(members.http)`; `$$(` is a literal
`$(`.

They work in args, env, sidecars, rendered files and commands. Nothing else in a value is touched,
so JSON braces, `$HOME` and backquotes reach exec byte for byte. An unknown reference is a finding
with the nearest name, never an empty text: an empty address binds to all interfaces.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import islice

from engines import addresses, secretref
from engines.base import EngineProfile, Fabric, LaunchRequest, Problem, RenderedFile

REFERENCE = re.compile(r"\$(\$?)\(([^()\s]*)\)?")

NAMES: Mapping[str, str] = {
    "node.name": "name of this rank's node",
    "node.address": "this rank's own address, bare: to bind to",
    "node.host": "the same, with brackets where it is IPv6: for URLs",
    "leader.name": "name of rank 0's node",
    "leader.address": "rank 0's address, bare: to connect to",
    "leader.host": "the same, with brackets where it is IPv6",
    "rank": "this rank's number; 0 is the leader",
    "nodes": "number of ranks",
    "gpus.count": "number of this rank's GPUs",
    "gpus.total": "number of GPUs over all ranks",
    "gpus.ids": "UUIDs of this rank's GPUs, with commas",
    "model.path": "path of the weights on this node",
    "model.name": "first served name",
    "launch.id": "id of this launch",
    "launch.dir": "folder of this launch on the node; rendered files are in `files` in it, secrets "
    "of the reconciler in `secrets`",
    "replica": "id of the replica",
    "bootstrap.interface": "interface that carries node.address",
    "fabric.interface": "interface of the placement's fabric",
    "fabric.address": "this node's address on the fabric",
    "fabric.adapters": "names of the fabric's adapters, with commas",
    "fabric.adapter_ports": "the same as `mlx5_0:1,mlx5_1:1`",
    "fabric.adapter_pes": "the same with the number of GPUs that share each, `mlx5_0:1:2`: "
    "NVSHMEM_HCA_PE_MAPPING",
    "fabric.gid_index": "GID index of a RoCE fabric",
    "members.addresses": "addresses of all ranks in order, with commas",
}
"""Every reference but the families below."""

FAMILIES = ("port.", "members.")
"""By a port's name: its number; host:port of all ranks."""

NODES = ("address.", "host.")
"""By a node's name: its address, bare; the same, with brackets where it is IPv6. For what runs once
in a fleet (a store's master, a broker) and is pinned there."""


class References:
    """The values of all references for one rank; worked out when the first one is met."""

    def __init__(self, request: LaunchRequest, rank: int) -> None:
        self._request = request
        self._rank = rank

    @cached_property
    def values(self) -> Mapping[str, str]:
        """Name to value; empty where this rank has none."""
        return _values(self._request, self._rank)

    def expand(self, text: str) -> str:
        """`text` with every reference replaced. ValueError: unknown, or without a value here."""
        return REFERENCE.sub(self._one, text) if "$" in text else text

    def _one(self, match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        if match[2] not in self.values or not match[0].endswith(")"):
            raise ValueError(f"{match[0]} is not known; {_hint(match[2], self.values)}")
        value = self.values[match[2]]
        if not value:
            raise ValueError(f"{match[0]} has no value on node {self.values['node.name']}")
        return value

    def all(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Every text expanded, in order."""
        return tuple(self.expand(text) for text in texts)

    def env(self, env: Mapping[str, str]) -> dict[str, str]:
        """Every value expanded."""
        return {name: self.expand(value) for name, value in env.items()}

    def files(self, files: Iterable[RenderedFile]) -> tuple[RenderedFile, ...]:
        """Every content expanded."""
        return tuple(replace(file, content=self.expand(file.content)) for file in files)


def references(request: LaunchRequest, rank: int) -> References:
    """The references of one rank of `request`."""
    return References(request, rank)


def _values(request: LaunchRequest, rank: int) -> dict[str, str]:
    own, leader = request.hosts[rank], request.hosts[0]
    fabric = own.fabric or Fabric("", "none")
    gid = fabric.gid_index
    values = {
        "node.name": own.node,
        "node.address": own.address,
        "node.host": addresses.host(own.address),
        "leader.name": leader.node,
        "leader.address": leader.address,
        "leader.host": addresses.host(leader.address),
        "rank": str(rank),
        "nodes": str(len(request.hosts)),
        "gpus.count": str(len(own.gpus)),
        "gpus.total": str(sum(len(host.gpus) for host in request.hosts)),
        "gpus.ids": ",".join(gpu.uuid for gpu in own.gpus),
        "model.path": own.model_path,
        "model.name": next(iter(request.profile.served_names), ""),
        "launch.id": request.launch,
        "launch.dir": own.launch_dir,
        "replica": request.replica,
        "bootstrap.interface": own.interface,
        "fabric.interface": fabric.interface,
        "fabric.address": fabric.address,
        "fabric.adapters": ",".join(a.name for a in fabric.adapters),
        "fabric.adapter_ports": ",".join(f"{a.name}:{a.port}" for a in fabric.adapters),
        "fabric.adapter_pes": _adapter_pes(fabric, len(own.gpus)),
        "fabric.gid_index": "" if gid is None else str(gid),
        "members.addresses": ",".join(host.address for host in request.hosts),
    }
    for name, address in request.addresses.items():
        values[f"address.{name}"] = address
        values[f"host.{name}"] = addresses.host(address)
    for name, port in request.ports.items():
        values[f"port.{name}"] = str(port)
        ends = (host.http if name == "http" else host.address for host in request.hosts)
        values[f"members.{name}"] = ",".join(addresses.host_port(end, port) for end in ends)
    return values


def _adapter_pes(fabric: Fabric, gpus: int) -> str:
    """Empty where the GPUs cannot be shared out evenly: NVSHMEM would leave some without."""
    if not fabric.adapters or not gpus or gpus % len(fabric.adapters):
        return ""
    share = gpus // len(fabric.adapters)
    return ",".join(f"{a.name}:{a.port}:{share}" for a in fabric.adapters)


MAX_PROBLEMS = 50
"""Findings of one kind in one profile: a hostile text holds a million references, and to look for
the nearest name costs 50 µs each."""


def check(profile: EngineProfile, ports: Iterable[str]) -> list[Problem]:
    """A finding for each reference in `profile` that no rank could resolve; at most so many."""
    known = [*NAMES, *(f"{family}{port}" for family in FAMILIES for port in ports)]
    found = (
        Problem(path, f"{reference} is not known", _hint(name, known))
        for path, text in _texts(profile)
        for reference, name in dict.fromkeys(
            (match[0], match[2])
            for match in REFERENCE.finditer(text)
            if not match[1] and not _is_known(match, known)
        )
    )
    return list(islice(found, MAX_PROBLEMS))


def secret_names(profile: EngineProfile, rank: int) -> tuple[str, ...]:
    """The reconciler's secrets that `rank` needs: those of variables, and those named by path."""
    others = "worker." if rank == 0 else "leader."
    found = set(secretref.names(profile.secrets.values()))
    for path, text in _texts(profile):
        if not path.startswith(others):
            found.update(name for name, _ in _secret_paths(text) if name)
    return tuple(sorted(found))


def check_secrets(profile: EngineProfile) -> Iterator[Problem]:
    """A finding for each path under `$(launch.dir)/secrets` that can be no secret's file."""
    rule = "a name has small letters, digits, '.', '_' and '-', and stands right under 'secrets'"
    found = (
        Problem(path, f"{wrong} is no secret of the reconciler", rule)
        for path, text in _texts(profile)
        for wrong in dict.fromkeys(
            f"$(launch.dir)/{secretref.FOLDER}/{name}{rest}"
            for name, rest in _secret_paths(text)
            if rest
        )
    )
    yield from islice(found, MAX_PROBLEMS)


def _secret_paths(text: str) -> Iterator[tuple[str, str]]:
    """(name, what follows it and is wrong) of each path under the folder of secrets."""
    for match in REFERENCE.finditer(text):
        if match[1] or match[2] != "launch.dir":
            continue
        under = _UNDER_SECRETS.match(text, match.end())
        if under is not None:
            yield under["name"] or "", under["rest"]


_UNDER_SECRETS = re.compile(
    rf"/{secretref.FOLDER}/(?P<name>{secretref.NAME.pattern})?(?P<rest>[\w/.-]*[\w/-]|[.]{{2}})?"
)
"""A dot behind a name ends a sentence."""


def _is_known(match: re.Match[str], known: Iterable[str]) -> bool:
    # Which nodes there are is not the profile's to say: validation looks them up in the inventory.
    of_a_node = match[2].startswith(NODES) and not match[2].endswith(".")
    return match[0].endswith(")") and (of_a_node or match[2] in known)


def nodes_named(texts: Iterable[str]) -> Iterator[str]:
    """Names of the nodes whose address `texts` refer to."""
    for text in texts:
        for match in REFERENCE.finditer(text) if "$(" in text else ():
            if not match[1] and match[2].startswith(NODES):
                yield match[2].partition(".")[2]


def texts(profile: EngineProfile) -> Iterator[str]:
    """All text of a profile that may hold references."""
    return (text for _, text in _texts(profile))


def _hint(name: str, known: Iterable[str]) -> str:
    # As Kubernetes and shells write them: $(LWS_LEADER_ADDRESS).
    plain = name.lower().replace("_", ".")
    close = difflib.get_close_matches(plain, list(known), n=1, cutoff=0.5)
    literal = "write $$( for a literal $("
    return f"did you mean $({close[0]})? {literal}" if close else literal


def _texts(profile: EngineProfile) -> Iterator[tuple[str, str]]:
    """Those with a `$`, by key path: a few of the many that ten thousand profiles have."""
    yield from _many("args", profile.args)
    yield from _many("command", profile.command)
    yield from _env("env", profile.env)
    for name, role in (("leader", profile.leader), ("worker", profile.worker)):
        yield from _many(f"{name}.args", role.args)
        yield from _many(f"{name}.command", role.command)
        yield from _env(f"{name}.env", role.env)
    for index, sidecar in enumerate(profile.sidecars):
        yield from _many(f"sidecars[{index}].argv", sidecar.argv)
        yield from _env(f"sidecars[{index}].env", sidecar.env)
    for index, file in enumerate(profile.files):
        yield from _env(f"files[{index}]", {"content": file.content})


def _many(path: str, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    return ((f"{path}[{index}]", text) for index, text in enumerate(texts) if "$" in text)


def _env(path: str, env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((f"{path}.{name}", value) for name, value in env.items() if "$" in value)
