"""The tables that the code uses are the facts that were read from the engines themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines import capability, flags
from tests.engines.facts import tabulate


@pytest.mark.parametrize("name", sorted(tabulate.texts()))
def test_a_table_holds_what_its_facts_hold(name: str) -> None:
    module = (tabulate.TABLES / name).read_text(encoding="utf-8")
    assert rows_of(module) == rows_of(tabulate.texts()[name]), (
        f"engines/tables/{name} differs from its facts: run tests/engines/facts/tabulate.py"
    )


@pytest.mark.parametrize("name", tabulate.ENGINES)
def test_every_flag_of_the_facts_is_found_by_each_of_its_names(name: str) -> None:
    facts = json.loads((Path(tabulate.__file__).parent / f"{name}.json").read_text())
    table = flags.table(name)
    for flag in facts["flags"]:
        assert {table.find(spelling)[0].name for spelling in flag["names"]} == {
            table.spellings[flag["names"][0]].name
        }


def test_capabilities_compare_as_numbers() -> None:
    assert capability.refusal("fp8", (10, 0)) == ""
    assert capability.refusal("fp8", (7, 0)) != ""
    assert capability.refusal("fp_quant", (9, 0)) != ""
    assert capability.refusal("fp_quant", (10, 0)) == ""


@pytest.mark.parametrize("text", ["", "9", "nine.zero", "9.x", "٩.٠"])
def test_a_capability_that_cannot_be_read_lets_the_launch_through(text: str) -> None:
    assert capability.refusal("fp8", capability.parse(text)) == ""


def test_a_quantization_that_the_table_does_not_know_is_let_through() -> None:
    assert capability.refusal("brand_new", (7, 0)) == ""


def rows_of(text: str) -> list[str]:
    """The lines that carry facts, whatever the formatter does to the rest."""
    kept = [line.strip() for line in text.splitlines()]
    return [line for line in kept if line.startswith(("-", '"'))]
