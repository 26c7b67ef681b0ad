"""A forecast as text, JSON and markdown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.core.changes import Reason, Seat
from reconciler.core.model import Revision
from reconciler.report.forecast import duration, forecast_json, forecast_markdown, forecast_text
from reconciler.simulate.forecast import Forecast, Outcome
from reconciler.simulate.history import Capacity, Event, Held, What

SEATS = (Seat("gpu-a", ("G0", "G1")),)


def made(events: int = 2, **over: object) -> Forecast:
    fields = {
        "revision": Revision("8f2c1e0a4b55", "main"),
        "outcome": Outcome.HELD,
        "took_s": 3_725.0,
        "events": tuple(
            Event(n * 60.0, What.START if n % 2 == 0 else What.READY, f"chat-{n}", "chat", SEATS)
            for n in range(events)
        ),
        "capacity": (Capacity("chat", "llama", 4, 4, 3, 90.0, 4),),
        "held": (
            Held("replica chat-9", Reason.NO_CAPACITY, "0 of 2 nodes fit"),
            Held("replica chat-1", Reason.FROZEN, "release night", since_s=60.0, until_s=120.0),
        ),
        "notes": ("node gpu-b gave no answer (NodeUnreachable): what it holds stays as it is",),
    }
    return Forecast(**{**fields, **over})  # type: ignore[arg-type]


def test_the_text_has_the_verdict_the_steps_the_dip_the_holds_and_what_is_not_known() -> None:
    assert forecast_text(made()) == (
        "main@sha1:8f2c1e0a4b: not converged: 1 held; at rest after 1 h 2 min: 1 start\n"
        "\n"
        "  0:00:00  + start    chat-0 on gpu-a (2 GPUs)\n"
        "  0:01:00    ready    chat-1 on gpu-a (2 GPUs)\n"
        "\n"
        "Capacity on the way\n"
        "  chat (llama): 4 of 4 ready now, lowest 3 at 0:01:30, 4 in the end\n"
        "\n"
        "Held\n"
        "  replica chat-9: NoCapacity to the end: 0 of 2 nodes fit\n"
        "  replica chat-1: Frozen from 0:01:00 until 0:02:00: release night\n"
        "\n"
        "Not known\n"
        "  node gpu-b gave no answer (NodeUnreachable): what it holds stays as it is\n"
    )


def test_nothing_to_do_is_one_line() -> None:
    calm = Forecast(Revision("8f2c1e0a4b55", "main"), Outcome.CONVERGED, 0.0)
    assert forecast_text(calm) == "main@sha1:8f2c1e0a4b: converged already: nothing to do\n"


def test_of_a_long_rollout_the_middle_is_counted_in_text_and_whole_in_json() -> None:
    text = forecast_text(made(100))
    assert "chat-29 on" in text
    assert "60 more steps (--output json has all of them)" in text
    assert "chat-89 on" not in text
    assert "chat-90 on" in text
    assert len(forecast_json(made(100), observed_at="")["steps"]) == 100


def test_replicas_that_are_held_alike_stand_in_one_line_and_a_guards_sentence_once() -> None:
    sentence = "model m in pool p: 5 of 5 replicas would be removed"
    chat = [Held(f"replica chat-{n}", Reason.BLAST_RADIUS, sentence, "chat") for n in range(5)]
    more = [
        Held("replica more-0", Reason.MANUAL_UPDATE, "ask", "more"),
        Held("replica more-1", Reason.MANUAL_UPDATE, "ask", "more"),
        Held("replica more-2", Reason.MANUAL_UPDATE, "ask", "more", since_s=60.0),
    ]
    guard = Held("guard removed: model m in pool p", Reason.BLAST_RADIUS, sentence)
    held = (guard, *chat, *more)
    text = forecast_text(made(held=held))
    assert text[text.index("Held") : text.index("Not known")].splitlines() == [
        "Held",
        f"  guard removed: model m in pool p: BlastRadius to the end: {sentence}",
        "  5 replicas of placement chat (chat-0, chat-1, chat-2 and 2 more): BlastRadius to the"
        " end: held by the guard",
        "  2 replicas of placement more (more-0, more-1): ManualUpdate to the end: ask",
        "  replica more-2: ManualUpdate from 0:01:00 to the end: ask",
        "",
    ]
    assert forecast_markdown(made(held=held)).count("5 of 5 replicas") == 1
    assert len(forecast_json(made(held=held), observed_at="")["held"]) == len(held)


def test_names_from_nodes_cannot_break_the_markdown() -> None:
    nasty = Event(0.0, What.START, "a|b", "chat", SEATS, "<b>\n# x")
    out = forecast_markdown(replace(made(), events=(nasty,)))
    (row,) = [line for line in out.splitlines() if "a\\|b" in line]
    assert "<b>" not in row
    assert "\n# x" not in out


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (59.9, "59 s"), (390, "6 min 30 s"), (7_500, "2 h 5 min"), (90_061, "25 h 1 min")],
)
def test_a_duration_has_two_units_at_most(seconds: float, said: str) -> None:
    assert duration(seconds) == said
