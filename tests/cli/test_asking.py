"""Who is asked, and what happens where nobody can be."""

from __future__ import annotations

import io
import sys

import pytest

from reconciler.cli.output import agreed, can_ask, must_agree
from reconciler.errors import SettingsError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def put(monkeypatch: pytest.MonkeyPatch, **streams: io.StringIO) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, streams.get(name, io.StringIO()))


def test_a_person_behind_a_pipe_is_asked_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), Terminal()
    put(monkeypatch, stdin=Terminal("n\n"), stdout=out, stderr=err)
    assert can_ask()
    assert not agreed("Apply this plan?")
    assert out.getvalue() == ""


def test_without_a_terminal_nobody_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, stdout=Terminal(), stderr=Terminal())
    assert not can_ask()
    with pytest.raises(SettingsError) as caught:
        must_agree("Approve exactly these?", yes=False)
    assert str(caught.value) == ("nobody to ask here (no terminal): add --yes; nothing was changed")
    assert must_agree("Approve exactly these?", yes=True)
