"""Every golden case gives the commands in it, and its flags are flags that the engine has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import engines
from engines import flags, llamacpp, sglang, sim, vllm
from engines.flags import FlagTable, is_flag, walk
from reconciler.core import build
from tests.engines import cases

FOLDERS = cases.folders()
IDS = [f"{folder.parent.name}/{folder.name}" for folder in FOLDERS]
per_case = pytest.mark.parametrize("folder", FOLDERS, ids=IDS)

RPC_FLAGS = {"-H", "-p"}
"""Of ggml-rpc-server, as read from its help (llama.cpp build b11669)."""

UNRESERVED = {"--metrics", "--enable-metrics", "--disaggregation-ib-device"}
"""Flags that we set and a profile may set too: they harm nothing twice, or the profile's wins."""


@per_case
def test_the_commands_are_those_of_the_golden(folder: Path, update_goldens: bool) -> None:
    made = cases.dump(cases.rendered(cases.load(folder).specs()))
    golden = folder / "expected.json"
    if update_goldens:
        golden.write_text(made, encoding="utf-8")
    assert json.loads(made) == json.loads(golden.read_text(encoding="utf-8")), (
        f"{golden} differs: if that is meant, run with --update-goldens and read the difference"
    )


@per_case
def test_a_golden_case_has_no_findings_but_those_that_it_is_about(folder: Path) -> None:
    case = cases.load(folder)
    problems = build_problems(case)
    assert [p for p in problems if not p.warning] == []


@per_case
def test_every_flag_of_a_golden_is_in_the_engines_own_table(folder: Path) -> None:
    for table, argv in engine_commands(folder):
        unknown = [word for word in flag_words(table, argv) if word not in table.spellings]
        assert unknown == [], f"{folder.name}: {table.source} has no {unknown}"


@per_case
def test_every_flag_that_we_set_is_refused_in_args(folder: Path) -> None:
    case = cases.load(folder)
    profile = case.resolved.profile
    given = {*profile.args, *profile.leader.args, *profile.worker.args}
    found = (table.find(word) for word in given if is_flag(word) for table in tables(folder))
    given_flags = {flag.name for flags_ in found for flag in flags_}
    for table, argv in engine_commands(folder):
        if table.source.startswith("`ray"):
            continue
        ours = {table.spellings[word].name for word in flag_words(table, argv)} - given_flags
        loose = ours - set(reserved(folder.parent.name)) - UNRESERVED
        assert loose == set(), f"{folder.name}: {loose} could be set twice"


def test_there_are_at_least_forty_cases() -> None:
    assert len(FOLDERS) >= 40


def test_every_engine_has_goldens() -> None:
    assert {folder.parent.name for folder in FOLDERS} == set(engines.names())


def build_problems(case: cases.Case) -> list[Any]:
    """All findings about the case's profile."""
    allow = case.desired.fleet.allow_loader_env
    return build.check_profile(case.resolved, allow_loader_env=allow)


def engine_commands(folder: Path) -> Iterator[tuple[FlagTable, list[str]]]:
    """Every command of a golden that an engine's table judges, from its first flag on."""
    for rank in json.loads((folder / "expected.json").read_text(encoding="utf-8")):
        for made in rank["commands"]:
            argv = unwrapped(made["argv"])
            if made["name"] == "ray" or argv[1:2] == ["start"]:
                yield flags.table("ray"), argv[2:]
            elif made["name"] == "serve" and folder.parent.name != "command":
                yield tables(folder)[0], after_program(folder.parent.name, argv)
            elif made["name"] == "rpc":
                given = cases.load(folder).resolved.profile.worker.args
                assert {w for w in argv[1:] if is_flag(w)} <= {*RPC_FLAGS, *given}


def unwrapped(argv: list[str]) -> list[str]:
    """The inner command of a container's."""
    if argv[:2] not in (["docker", "run"], ["podman", "run"]):
        return argv
    at = argv.index("--entrypoint")
    return [argv[at + 1], *argv[at + 3 :]]


def after_program(engine: str, argv: list[str]) -> list[str]:
    """Without the program and its positional words."""
    return {
        "vllm": lambda: argv[3:],
        "sglang": lambda: argv[argv.index("--model-path") :],
        "llamacpp": lambda: argv[1:],
        "sim": lambda: argv[3:],
    }[engine]()


def flag_words(table: FlagTable, argv: list[str]) -> list[str]:
    """The flags of a command line as the table spells them, without `=` and value."""
    return [flags.spelled(w.text) for w in walk(table, tuple(argv)) if is_flag(w.text)]


def tables(folder: Path) -> list[FlagTable]:
    """The table of a case's engine; none for engine command."""
    name = folder.parent.name
    if name == "command":
        return []
    return [sim.TABLE if name == "sim" else flags.table(name)]


def reserved(name: str) -> Any:
    """The reserved flags of an engine."""
    modules = {"vllm": vllm, "sglang": sglang, "llamacpp": llamacpp, "sim": sim}
    return modules[name].RESERVED
