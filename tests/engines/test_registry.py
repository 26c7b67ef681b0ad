"""Engines are found by name; another package's replaces a built-in one of that name."""

from __future__ import annotations

from importlib import metadata

import pytest

import engines
from engines.base import EngineProfile
from engines.registry import BUILT_IN, GROUP, Registry, UnknownEngine
from engines.sim import Sim


class OwnVllm(Sim):
    """An engine as another package would bring it."""

    name = "vllm"


class Half:
    """Not an engine: it can only check."""

    def check(self, profile: EngineProfile) -> list[object]:
        """Nothing."""
        return []


def from_another_package(name: str, what: str) -> Registry:
    """The built-in engines, and one by an entry point."""
    point = metadata.EntryPoint(name, f"{__name__}:{what}", GROUP)
    return Registry(BUILT_IN, lambda: [point])


def test_the_built_in_engines_are_there() -> None:
    assert engines.names() == ("command", "llamacpp", "sglang", "sim", "vllm")
    assert all(engines.get(name).name == name for name in engines.names())


def test_an_unknown_engine_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(UnknownEngine) as caught:
        engines.get("vlm")
    assert str(caught.value) == (
        "unknown engine 'vlm': known are command, llamacpp, sglang, sim, vllm; did you mean vllm?"
    )


def test_an_engine_of_another_package_replaces_the_built_in_one_of_its_name() -> None:
    registry = from_another_package("vllm", "OwnVllm")
    assert isinstance(registry.get("vllm"), OwnVllm)
    assert registry.names() == engines.names()


def test_an_engine_of_another_package_adds_a_name() -> None:
    assert "mine" in from_another_package("mine", "OwnVllm").names()


def test_what_is_no_engine_is_refused_by_what_it_lacks() -> None:
    with pytest.raises(TypeError, match=r"engine half of .* lacks .*build"):
        from_another_package("half", "Half").names()
