"""A forecast as text for people, JSON for machines, markdown for a pull request.

The JSON's field names are a contract. Text and markdown show the first and the last of a long
rollout; the JSON has all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from reconciler.core.changes import Reason
from reconciler.core.codec import to_json
from reconciler.report.clean import cleaned, printable
from reconciler.report.plan_markdown import escaped
from reconciler.report.words import plural, seats_words, short_revision
from reconciler.simulate.forecast import Forecast, Outcome
from reconciler.simulate.history import Capacity, Event, Held, What

FORMAT_VERSION = "1.0"
FIRST, LAST = 30, 10
"""Events shown where there are more than both together."""
NAMED = 3
"""Replicas named of those that are held alike."""
_REPLICA = "replica "
_ACTIONS = (What.START, What.STOP, What.RELABEL, What.ADOPT)
_SYMBOLS = {What.START: "+", What.STOP: "-", What.RELABEL: "~", What.FAILED: "!", What.REFUSED: "!"}


def forecast_text(made: Forecast, basis: str = "") -> str:
    """The whole forecast, ending in a newline. `basis`: what it begins with, if not the nodes."""
    return "".join(f"{printable(line)}\n" for line in _lines(made, basis))


def forecast_json(made: Forecast, *, observed_at: str, basis: str = "") -> dict[str, Any]:
    """The published form. Durations in seconds since the observation."""
    data = {
        "format_version": FORMAT_VERSION,
        "revision": str(made.revision),
        "observed_at": observed_at,
        "basis": basis,
        "outcome": made.outcome.value,
        "took_s": made.took_s,
        "steps": [to_json(e) for e in made.events],
        "capacity": [to_json(c) for c in made.capacity],
        "held": [to_json(h) for h in made.held],
        "notes": list(made.notes),
    }
    return {key: cleaned(value) for key, value in data.items()}


def forecast_markdown(made: Forecast, basis: str = "") -> str:
    """For a comment on a pull request."""
    lines = [f"### Forecast: {escaped(_headline(made))}", ""]
    lines += [f"Revision `{printable(short_revision(made.revision)).replace('`', chr(39))}`", ""]
    if basis:
        lines += [f"_{escaped(basis)}_", ""]
    if made.capacity:
        lines += [
            "| placement | wanted | now | lowest | at | in the end |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_capacity_row(c) for c in made.capacity]
        lines.append("")
    for title, found in (("Held", _summed(made.held)), ("Not known", made.notes)):
        if found:
            said = [_held(h) if isinstance(h, Held) else h for h in found]
            lines += [f"**{title}**", "", *(f"- {escaped(s)}" for s in said), ""]
    if made.events:
        lines += ["<details><summary>Steps</summary>", "", "| at | what | replica | where | why |"]
        lines += ["|---|---|---|---|---|"]
        shown, left = _shortened(made.events)
        lines += [
            f"| {clock(e.at_s)} | {e.what.value} | {escaped(e.replica)}"
            f" | {escaped(seats_words(e.seats))} | {escaped(e.reason)} |"
            for e in shown
        ]
        lines += ["", *([f"{left} more steps are left out."] if left else []), "</details>"]
    return "\n".join(lines).rstrip("\n") + "\n"


def clock(seconds: float) -> str:
    """`0:06:30`: hours, minutes, seconds since the observation."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def duration(seconds: float) -> str:
    """`6 min 30 s`, `2 h 5 min`: two units at most."""
    whole = int(seconds)
    units = ((whole // 3600, "h"), (whole // 60 % 60, "min"), (whole % 60, "s"))
    said = [f"{n} {unit}" for n, unit in units if n]
    return " ".join(said[:2]) or "0 s"


# --- Lines ------------------------------------------------------------------------------------


def _lines(made: Forecast, basis: str) -> Iterator[str]:
    yield f"{short_revision(made.revision)}: {_headline(made)}"
    if basis:
        yield f"({basis})"
    if made.events:
        yield ""
        shown, left = _shortened(made.events)
        for index, event in enumerate(shown):
            if left and index == FIRST:
                yield f"  {'…':>7}  {left} more steps (--output json has all of them)"
            yield _event(event)
    yield from _section("Capacity on the way", [_capacity(c) for c in made.capacity])
    yield from _section("Held", [_held(h) for h in _summed(made.held)])
    yield from _section("Not known", list(made.notes))


def _headline(made: Forecast) -> str:
    done = [e.what for e in made.events]
    counts = [(done.count(what), what.value) for what in _ACTIONS]
    said = ", ".join(plural(n, word) for n, word in counts if n) or "nothing to do"
    when = f"after {duration(made.took_s)}" if made.events else "already"
    standing = len(made.standing)
    if made.outcome is Outcome.CONVERGED:
        return f"converged {when}: {said}"
    if made.outcome is Outcome.HELD:
        return f"not converged: {standing} held; at rest {when}: {said}"
    return f"not converged within {duration(made.took_s)}: {standing} held; {said}"


def _shortened(events: Sequence[Event]) -> tuple[Sequence[Event], int]:
    left = len(events) - FIRST - LAST
    if left <= 1:
        return events, 0
    return (*events[:FIRST], *events[-LAST:]), left


def _event(event: Event) -> str:
    line = f"  {clock(event.at_s):>7}  {_SYMBOLS.get(event.what, ''):1} {event.what.value:<8}"
    line += f" {event.replica}"
    if event.seats:
        line += f" on {seats_words(event.seats)}"
    return f"{line}: {event.reason}" if event.reason else line


def _capacity(one: Capacity) -> str:
    said = f"{one.placement} ({one.model}): {one.before} of {one.wanted} ready now"
    at = f" at {clock(one.lowest_at_s)}" if one.lowest < one.before else ""
    return f"{said}, lowest {one.lowest}{at}, {one.after} in the end"


def _held(held: Held) -> str:
    until = "to the end" if held.until_s is None else f"until {clock(held.until_s)}"
    when = f"from {clock(held.since_s)} {until}" if held.since_s else until
    # "until" has said it, and by the same clock as all else here.
    why = held.message if held.until_s is None else _TIME_LEFT.sub("", held.message)
    return f"{held.subject}: {held.reason.value} {when}: {why}"


_TIME_LEFT = re.compile(r" for another \d+ min\b")


def _summed(held: Iterable[Held]) -> list[Held]:
    """Replicas of one placement that are held alike in one line: a guard holds all of them with
    one sentence, and of forty copies of it nobody reads the forty-first."""
    alike: dict[tuple[object, ...], list[Held]] = {}
    for one in held:
        own = () if one.subject.startswith(_REPLICA) else (one.subject,)
        key = one.placement, one.reason, one.message, one.since_s, one.until_s, *own
        alike.setdefault(key, []).append(one)
    return [
        replace(group[0], subject=_subject(group), message=_message(group))
        for group in alike.values()
    ]


def _subject(group: Sequence[Held]) -> str:
    if len(group) == 1:
        return group[0].subject
    names = [h.subject.removeprefix(_REPLICA) for h in group]
    said = ", ".join(names[:NAMED])
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{plural(len(names), 'replica')} of placement {group[0].placement} ({said}{rest})"


def _message(group: Sequence[Held]) -> str:
    guarded = group[0].reason is Reason.BLAST_RADIUS and group[0].subject.startswith(_REPLICA)
    return "held by the guard" if guarded else group[0].message


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (f"  {line}" for line in lines)


def _capacity_row(one: Capacity) -> str:
    at = clock(one.lowest_at_s) if one.lowest < one.before else ""
    cells = [escaped(one.placement), one.wanted, one.before, one.lowest, at, one.after]
    return f"| {' | '.join(map(str, cells))} |"
