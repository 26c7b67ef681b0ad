"""A reserved flag is found in every spelling that the engine's own parser would take for it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines import checks, flags, llamacpp, sglang, sim, vllm
from engines.base import EngineProfile
from engines.flags import FlagTable
from reconciler.agent import sim as agent_sim

TABLES = {"vllm": vllm.RESERVED, "sglang": sglang.RESERVED, "llamacpp": llamacpp.RESERVED}
ABBREVIATING = ("vllm", "sglang")


def spellings(name: str) -> Iterator[tuple[FlagTable, str, str]]:
    """(table, reserved flag, spelling) for every spelling of every reserved flag of an engine."""
    table = flags.table(name)
    for reserved in TABLES[name]:
        for spelling in table.spellings[reserved].names:
            yield table, reserved, spelling


def refused(name: str, *args: str) -> list[str]:
    """Messages of the errors about `args`."""
    table, reserved = flags.table(name), TABLES[name]
    profile = EngineProfile("p", name, args=args)
    found = checks.check_args(table, reserved, profile)
    return [problem.message for problem in found if not problem.warning]


@pytest.mark.parametrize("name", TABLES)
def test_every_reserved_flag_is_a_flag_of_the_engine(name: str) -> None:
    assert [flag for flag in TABLES[name] if flag not in flags.table(name).spellings] == []


@pytest.mark.parametrize("name", TABLES)
def test_short_long_negated_and_joined_spellings_are_refused(name: str) -> None:
    for _, reserved, spelling in spellings(name):
        underscored = spelling[:2] + spelling[2:].replace("-", "_")
        for word in (spelling, f"{spelling}=8", underscored):
            assert any(reserved in m for m in refused(name, word, "8")), f"{word} is {reserved}"


@pytest.mark.parametrize("name", ABBREVIATING)
def test_every_prefix_that_argparse_resolves_to_a_reserved_flag_is_refused(name: str) -> None:
    parser = as_argparse(name)
    seen = 0
    for _, reserved, spelling in spellings(name):
        for length in range(3, len(spelling)):
            prefix = spelling[:length]
            if resolves_to(parser, prefix) != reserved:
                continue
            seen += 1
            assert refused(name, prefix, "8"), f"argparse takes {prefix} for {reserved}"
    assert seen > 40


@given(st.sampled_from(sorted(n for f in flags.table("vllm").flags for n in f.names)), st.data())
def test_the_flag_found_is_the_one_that_argparse_finds(spelling: str, data: st.DataObject) -> None:
    table = flags.table("vllm")
    length = data.draw(st.integers(min_value=2, max_value=len(spelling)))
    resolved = resolves_to(as_argparse("vllm"), spelling[:length])
    if resolved is not None:
        assert [flag.name for flag in table.find(spelling[:length])] == [resolved]


@pytest.mark.parametrize("word", ["-n2", "-r1", "-tp", "-tp=2", "-t", "-dp", "-dpl", "-n"])
def test_short_flags_of_vllm_are_refused_glued_joined_and_abbreviated(word: str) -> None:
    assert refused("vllm", word, "2")


@pytest.mark.parametrize(
    "word",
    [
        "--tensor-par",
        "--tensor_parallel_size=2",
        "--served-model",
        "--hea",
        "--no-data-parallel-hybrid-lb",
    ],
)
def test_vllm_spellings_seen_in_real_recipes_are_refused(word: str) -> None:
    assert refused("vllm", word, "2")


def test_llama_cpp_takes_no_prefix() -> None:
    assert refused("llamacpp", "--por", "8080") == []
    assert refused("llamacpp", "--port", "8080") != []


def test_a_value_is_never_taken_for_a_flag() -> None:
    assert refused("llamacpp", "-ot", "--port") == []
    assert refused("llamacpp", "--control-vector-layer-range", "1", "2", "-c", "10") == []


def test_argparse_takes_a_known_flag_never_as_a_value() -> None:
    assert refused("vllm", "--chat-template", "--port") != []


def test_numbers_and_text_with_spaces_are_values() -> None:
    assert [w.stray for w in flags.walk(flags.table("vllm"), ("--seed", "-1"))] == [False]
    assert not flags.is_flag("-1")
    assert not flags.is_flag("- a list item")


def test_a_flag_that_the_table_does_not_know_is_a_warning_with_the_nearest() -> None:
    found = list(
        checks.check_args(
            flags.table("vllm"), {}, EngineProfile("p", "vllm", args=("--max-model-lenn", "8"))
        )
    )
    assert [(p.warning, p.hint) for p in found] == [(True, "did you mean --max-model-len?")]


def test_a_removed_flag_is_refused() -> None:
    assert any("removed" in message for message in refused("llamacpp", "--draft-max", "8"))


def test_dotted_names_are_the_flag_before_the_dot() -> None:
    [word] = flags.walk(flags.table("vllm"), ("--kernel-config.moe_backend=auto",))
    assert [flag.name for flag in word.flags] == ["--kernel-config"]
    assert refused("vllm", "--kernel-config.x=y") == []


def test_the_flags_of_the_sim_are_those_of_its_program() -> None:
    parser = agent_sim._parser()
    taken = {name for action in parser._actions for name in action.option_strings}
    assert set(sim.TABLE.spellings) == taken - {"-h", "--help"}
    assert set(sim.RESERVED) <= taken


class Refused(Exception):
    """argparse would end the program."""


class Oracle(argparse.ArgumentParser):
    """The standard library's parser, which says no by an exception."""

    def error(self, message: str) -> NoReturn:
        """Instead of usage and exit 2."""
        raise Refused(message)


@cache
def as_argparse(name: str) -> argparse.ArgumentParser:
    """A parser of the standard library with the table's flags: the oracle."""
    parser = Oracle(add_help=False)
    for flag in flags.table(name).flags:
        parser.add_argument(*flag.names, dest=flag.name, nargs="?", default=None, const="")
    return parser


def resolves_to(parser: argparse.ArgumentParser, word: str) -> str | None:
    """The flag that argparse takes `word` for; None where it refuses it."""
    try:
        known, rest = parser.parse_known_args([word])
    except Refused:
        return None
    found = [name for name, value in vars(known).items() if value is not None]
    return found[0] if found and not rest else None
