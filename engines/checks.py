"""Checks that hold for every engine: arguments, environment, images, ports, arithmetic.

They need no node, so they run in a pull request. What an engine would refuse clearly enough by
itself is left to it; what it would silently misread is found here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from engines import references, runtime_checks
from engines.base import EngineProfile, Problem
from engines.env_checks import SHELL, unexpanded
from engines.flags import Flag, FlagTable, Word, is_flag, walk

PORT_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")


TLS = "the launch serves HTTP: end TLS in a sidecar in front of it, with `listens`"
"""Why an engine gets no certificate: the node asks it for its health without."""


def check_args(
    table: FlagTable, reserved: Mapping[str, str], profile: EngineProfile
) -> Iterator[Problem]:
    """Findings about `args` and the roles' args against an engine's flag table."""
    for path, args in arguments(profile):
        for word in walk(table, args):
            yield from _check_word(table, reserved, f"{path}[{word.index}]", word)
            yield from _check_values(path, word)
        for index, arg in enumerate(args):
            if SHELL.search(arg):
                yield unexpanded(f"{path}[{index}]", arg)


def arguments(profile: EngineProfile) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every list of arguments of `profile` that reaches its engine, with its key path."""
    yield "args", profile.args
    yield "leader.args", profile.leader.args
    yield "worker.args", profile.worker.args


def _check_word(
    table: FlagTable, reserved: Mapping[str, str], path: str, word: Word
) -> Iterator[Problem]:
    if word.text == "--":
        yield Problem(path, "`--` ends the options, so nothing after it is a flag", "remove it")
        return
    owned = [flag for flag in word.flags if flag.name in reserved]
    if owned:
        yield Problem(path, *_reserved(word, owned[0], reserved[owned[0].name]))
    elif any(flag.removed for flag in word.flags):
        yield Problem(path, f"{word.text}: {table.source} refuses it: it was removed", "remove it")
    elif word.stray and word.text.startswith("-"):
        yield Problem(path, f"{word.text!r} is one word with a space in it", "split it in two")
    elif word.stray:
        yield Problem(
            path,
            f"{word.text!r} belongs to no flag",
            "one item of args is one word: write a flag and its value as two items",
            warning=True,
        )
    elif len(word.flags) > 1:
        yield Problem(
            path,
            f"{word.text} may mean {' or '.join(flag.name for flag in word.flags[:4])}: "
            f"{table.source} refuses it",
            "write the one that is meant",
            warning=True,
        )
    elif not word.flags and is_flag(word.text):
        near = table.nearest(word.text)
        hint = f"did you mean {near}?" if near else "check the spelling"
        yield Problem(path, f"{word.text} is no flag of {table.source}", hint, warning=True)


def _reserved(word: Word, flag: Flag, why: str) -> tuple[str, str]:
    text = word.text.split("=", 1)[0]
    meant = f"{text} means {flag.name}, which" if text != flag.name else flag.name
    return f"{meant} is set by the reconciler ({why})", "remove it from args"


def _check_values(path: str, word: Word) -> Iterator[Problem]:
    for index, value in word.values:
        where, name = f"{path}[{index}]", word.text.split("=", 1)[0]
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            yield Problem(
                where,
                f"the value of {name} has shell quotes in it: {value[:60]}",
                "args reach the engine untouched: remove the outer quotes",
                warning=True,
            )
        elif _looks_like_json(word, value) and "." not in name:
            try:
                json.loads(value)
            except (ValueError, RecursionError) as error:
                yield Problem(
                    where,
                    f"the value of {name} is not JSON ({error}): {value[:60]}",
                    "JSON needs double quotes around names and text; single-quote the item in YAML",
                )


def _looks_like_json(word: Word, value: str) -> bool:
    known = any(flag.json for flag in word.flags)
    return value[:1] in ("{", "[") if known else value[:2] in ('{"', "[{")


# --- The rest ---------------------------------------------------------------------------------


def check_shape(
    profile: EngineProfile, ports: tuple[str, ...], count: tuple[int, str] | None
) -> Iterator[Problem]:
    """GPUs that multiply out, distinct ports, an image that is one, references that resolve."""
    declared = profile.gpus_per_node * profile.nodes
    if count is not None and count[0] != declared:
        yield Problem(
            "parallel",
            f"{count[1]} needs {count[0]} GPUs, but {profile.gpus_per_node} per node × "
            f"{profile.nodes} nodes gives {declared}",
            "change gpus_per_node, nodes or the parallelism",
        )
    yield from _check_unread(profile)
    yield from _check_ports(profile, ports)
    yield from _check_sidecars(profile)
    yield from runtime_checks.check(profile)
    yield from references.check(profile, ports)
    yield from references.check_secrets(profile)


def _check_unread(profile: EngineProfile) -> Iterator[Problem]:
    """Fields that nothing reads: whoever wrote them believes that they do something."""
    if profile.engine != "command":
        if profile.command:
            hint = "use args, or engine command"
            yield Problem("command", f"{profile.engine} builds its own command line", hint)
        if profile.serves != "leader":
            hint = "remove it; parallel.dp_balancing says which ranks of vLLM serve"
            yield Problem("serves", f"{profile.engine} knows which ranks serve", hint)
    if profile.nodes > 1:
        return
    if profile.worker.args or profile.worker.env:
        hint = "set nodes, or remove it"
        yield Problem("worker", "there are no workers on one node", hint, warning=True)
    for index, sidecar in enumerate(profile.sidecars):
        if sidecar.ranks == "workers":
            where = f"sidecars[{index}].ranks"
            hint = "use all or leader"
            yield Problem(where, "there are no workers on one node", hint, warning=True)


def _check_ports(profile: EngineProfile, ports: tuple[str, ...]) -> Iterator[Problem]:
    for index, name in enumerate(profile.ports):
        if not PORT_NAME.fullmatch(name):
            hint = "use lower-case letters, digits and dashes"
            yield Problem(f"ports[{index}]", f"{name!r} is no name of a port", hint)
        if ports.count(name) > 1:
            hint = f"the launch already has {', '.join(dict.fromkeys(ports))}"
            yield Problem(f"ports[{index}]", f"port {name} is there twice", hint)
    if profile.listens and (profile.listens == "http" or profile.listens not in ports):
        hint = "name one of `ports`; `http` is then for the sidecar in front of the engine"
        yield Problem("listens", f"{profile.listens!r} is no port of the profile's own", hint)
    for role, said in (("leader", profile.leader), ("worker", profile.worker)):
        if said.waits_for and said.waits_for not in ports:
            hint = f"the launch has {', '.join(ports)}"
            yield Problem(f"{role}.waits_for", f"there is no port {said.waits_for}", hint)
        if profile.engine != "command" and (said.command or said.waits_for):
            hint = "remove it: use args, or engine command"
            name = "command" if said.command else "waits_for"
            yield Problem(f"{role}.{name}", f"{profile.engine} starts its ranks itself", hint)
    if profile.health_port and profile.health_port not in ports:
        hint = f"the launch has {', '.join(ports)}"
        yield Problem("health.port", f"there is no port {profile.health_port}", hint)
    if profile.health_path and not profile.health_path.startswith("/"):
        yield Problem("health.path", f"{profile.health_path!r} is no path", "begin it with /")


def _check_sidecars(profile: EngineProfile) -> Iterator[Problem]:
    taken = {"serve", "ray", "rpc", "supervisor"}
    for index, sidecar in enumerate(profile.sidecars):
        if sidecar.name in taken:
            hint = "give it a name of its own: it names the log file"
            yield Problem(f"sidecars[{index}].name", f"{sidecar.name!r} is taken", hint)
        taken.add(sidecar.name)
        if not sidecar.argv:
            hint = "give the program and its arguments as a list"
            yield Problem(f"sidecars[{index}].argv", "a sidecar needs a command", hint)
        if sidecar.ranks not in ("all", "leader", "workers"):
            hint = "use all, leader or workers"
            yield Problem(f"sidecars[{index}].ranks", f"{sidecar.ranks!r} is unknown", hint)


def check_heads(profile: EngineProfile) -> Iterator[Problem]:
    """Attention heads are divided among tensor-parallel ranks; only where the model says them."""
    heads, tp = profile.model_attention_heads, profile.parallel.tp
    if heads and heads % tp:
        fits = ", ".join(str(n) for n in range(1, min(heads, 64) + 1) if heads % n == 0)
        hint = f"use a tp that divides it: {fits}"
        yield Problem("parallel.tp", f"tp {tp} does not divide {heads} attention heads", hint)


def positive(profile: EngineProfile) -> Iterator[Problem]:
    """Counts below one would multiply to nothing."""
    parallel = profile.parallel
    named = {"tp": parallel.tp, "pp": parallel.pp, "dp": parallel.dp, "dcp": parallel.dcp}
    for name, value in named.items():
        if value < 1:
            yield Problem(f"parallel.{name}", f"{name} is {value}", "it is at least 1")
    if profile.nodes < 1:
        yield Problem("nodes", f"nodes is {profile.nodes}", "it is at least 1")


def unused_parallelism(profile: EngineProfile, engine: str, *used: str) -> Iterator[Problem]:
    """Fields of `parallel` that this engine has no flag for: it would silently ignore them."""
    defaults = type(profile.parallel)()
    for name in type(profile.parallel).__dataclass_fields__:
        if name not in used and getattr(profile.parallel, name) != getattr(defaults, name):
            yield Problem(f"parallel.{name}", f"{engine} has no {name}", "remove it")


def flag_values(table: FlagTable, args: Iterable[str], name: str) -> list[str]:
    """The values that `args` give to the flag `name`, in any spelling; one '' where it has none."""
    found: list[str] = []
    for word in walk(table, tuple(args)):
        if [flag.name for flag in word.flags] == [name]:
            found += [value for _, value in word.values] or [""]
    return found
