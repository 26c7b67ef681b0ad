"""vLLM's and SGLang's own argument parsers accept every golden, and refuse what we say they do."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engines import flags, sglang, vllm
from reconciler.core.describe import describe
from tests.engines.test_golden import FOLDERS, after_program, engine_commands, unwrapped
from tests.fleet.test_recipes import NAMES, recipe

pytestmark = pytest.mark.engine

VLLM = """
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
outer = FlexibleArgumentParser()
ServeSubcommand().subparser_init(outer.add_subparsers())
parse = lambda argv: outer.parse_args(["serve", "/models/m", *argv])
"""

SGLANG = """
import argparse
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
parse = parser.parse_args
"""

ANSWER = """
import contextlib, io, json, sys
found = []
for argv in json.load(sys.stdin):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parsed = vars(parse(argv))
        plain = (str, int, float, list, dict)
        found.append({k: v for k, v in parsed.items() if isinstance(v, plain)})
    except (SystemExit, ValueError, IndexError) as error:
        found.append(f"{said.getvalue()[-300:]} {error}")
print("\\n" + json.dumps(found, default=str))
"""


@pytest.fixture(scope="module")
def installed_parsers(installed: Path) -> dict[str, Any]:
    """For each engine, how its parser is asked."""

    def ask(setup: str, extra_path: str) -> Any:
        def parse(argvs: list[list[str]]) -> list[Any]:
            done = subprocess.run(
                [str(installed / "vllm/bin/python"), "-c", setup + ANSWER],
                input=json.dumps(argvs),
                capture_output=True,
                text=True,
                env={"PATH": os.environ["PATH"], "HOME": "/tmp", "PYTHONPATH": extra_path},
                check=False,
            )
            assert done.returncode == 0, done.stderr[-3000:]
            answers: list[Any] = json.loads(done.stdout.splitlines()[-1])
            return answers

        return parse

    return {"vllm": ask(VLLM, ""), "sglang": ask(SGLANG, str(installed / "sglang"))}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_golden_is_accepted_by_the_real_parser(
    installed_parsers: dict[str, Any], engine: str
) -> None:
    named = [
        (folder.name, argv)
        for folder in FOLDERS
        if folder.parent.name == engine
        for table, argv in engine_commands(folder)
        if not table.source.startswith("`ray")
    ]
    answers = installed_parsers[engine]([argv for _, argv in named])
    refused = {name: a for (name, _), a in zip(named, answers, strict=True) if isinstance(a, str)}
    assert refused == {}
    assert len(named) >= 10


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_recipe_is_accepted_by_the_real_parser(
    installed_parsers: dict[str, Any], engine: str
) -> None:
    named = [
        (f"{name}: {placement}", after_program(engine, unwrapped(list(rank.commands[-1].argv))))
        for name in NAMES
        for whole in (recipe(name),)
        for placement, placed in whole.placements.items()
        if whole.profiles[placed.profile].engine == engine
        for rank in describe(whole, placement).ranks
        if "start" not in rank.commands[-1].argv[:2]
    ]
    answers = installed_parsers[engine]([argv for _, argv in named])
    refused = {name: a for (name, _), a in zip(named, answers, strict=True) if isinstance(a, str)}
    assert refused == {}
    assert len(named) >= 5


def test_values_reach_vllm_as_they_are_written(installed_parsers: dict[str, Any]) -> None:
    written = {"method": "mtp", "num_speculative_tokens": 3}
    [parsed] = installed_parsers["vllm"]([["--speculative-config", json.dumps(written)]])
    assert parsed["speculative_config"] == written


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_prefix_that_the_real_parser_takes_for_a_reserved_flag_is_refused_by_us(
    installed_parsers: dict[str, Any], engine: str
) -> None:
    table = flags.table(engine)
    reserved = {"vllm": vllm.RESERVED, "sglang": sglang.RESERVED}[engine]
    words = sorted(
        {
            name[:length]
            for flag in reserved
            for name in table.spellings[flag].names
            for length in range(3, len(name) + 1)
        }
    )
    # Two words: a flag that takes a value, or one that takes none. SGLang asks for a model always.
    first = ["--model-path", "m"] if engine == "sglang" else []
    tried = [[*first, word, "1"] for word in words] + [[*first, word] for word in words]
    answers = installed_parsers[engine](tried)
    pairs = zip(tried, answers, strict=True)
    taken = {argv[len(first)] for argv, a in pairs if not isinstance(a, str)}
    missed = {w for w in taken if not {f.name for f in table.find(w)} & set(reserved)}
    unreserved = {w for w in missed if len(table.find(w)) == 1}
    assert missed - unreserved == set()
    assert len(taken) > 50


@pytest.mark.parametrize("words", [["--nope", "1"], ["8192x", "y"]])
def test_the_real_parsers_refuse_what_is_no_flag(
    installed_parsers: dict[str, Any], words: list[str]
) -> None:
    assert all(isinstance(parse([words])[0], str) for parse in installed_parsers.values())
