"""`reconcile daemon`: follow a branch until told to stop."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from reconciler.cli.endpoints import endpoints_options, publisher
from reconciler.cli.options import at_most_a_day, repo_options, secrets_option
from reconciler.cli.session import Session, utc_now
from reconciler.cli.stopping import Interrupted, Stop, handled
from reconciler.errors import Exit, SettingsError

if TYPE_CHECKING:
    from reconciler.loop.sink import EventSink
    from reconciler.report.events import Event
    from reconciler.report.metrics import Metrics
    from reconciler.report.passreport import PassReport


@click.command()
@repo_options
@click.option(
    "--interval",
    callback=at_most_a_day,
    metavar="DURATION",
    help="Between passes; default: `interval_s` of fleet.yaml. A new commit is taken at once.",
)
@click.option("--listen", metavar="ADDRESS:PORT", help="Serve /metrics, /status, /healthz here.")
@click.option("--events", metavar="FILE", help="Append events as JSON lines; - is stdout.")
@click.option(
    "--log",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Log form.",
)
@endpoints_options
@secrets_option
@click.pass_context
def daemon(
    ctx: click.Context,
    repo: str | None,
    ref: str | None,
    interval: float | None,
    listen: str | None,
    events: str | None,
    log: str,
    endpoints: Path | None,
    endpoints_hook: str | None,
    endpoints_hook_timeout: float,
    secrets: Path | None,
) -> int:
    """Make the fleet follow a branch, pass after pass. SIGTERM or SIGINT ends it cleanly.

    A second one ends it at once, and its leases by time. SIGHUP asks for a pass now. What runs on
    the nodes goes on without it.
    """
    import time

    from reconciler.loop.daemon import Daemon, Schedule
    from reconciler.loop.passes import Request
    from reconciler.loop.sink import EventSink
    from reconciler.loop.trigger import Trigger
    from reconciler.report.metrics import Metrics
    from reconciler.report.report_json import report_json

    logger = make_logger(log)
    trigger = Trigger()
    metrics = Metrics(time.monotonic)
    with ExitStack() as stack:
        session = stack.enter_context(Session.of(ctx, repo, ref))
        sink = None
        if events is not None:
            stream = _stream(events)
            if stream is not sys.stdout:
                stack.callback(stream.close)
            sink = EventSink(stream)
            stack.callback(sink.close)
        telling = Telling(metrics, sink, logger)
        if listen is not None:
            stack.callback(_serve(listen, metrics, telling, report_json).close)
        stop = Stop(trigger.stop, tell=False)
        stack.enter_context(handled(stop.handle, signal.SIGTERM, signal.SIGINT))
        stack.enter_context(handled(lambda number, frame: trigger.poke(), signal.SIGHUP))
        publishes = publisher(session.settings, endpoints, endpoints_hook, endpoints_hook_timeout)
        edges = session.edges(publisher=publishes, secrets_dir=secrets)
        schedule = Schedule(interval_s=interval or 0.0)
        request = Request(ref=session.ref, abrupt=stop.abrupt)
        rng = random.Random()
        loop = Daemon(edges, request, schedule, trigger, telling, lambda: rng.uniform(-1, 1))
        logger.info(
            "daemon starts", owner=edges.owner, repo=session.location, ref=session.ref or "HEAD"
        )
        # A stop is how a daemon is meant to end, also in the middle of a fetch or a look.
        with suppress(Interrupted):
            loop.run()
        logger.info("daemon ends", owner=edges.owner)
    return int(Exit.OK)


def _stream(events: str) -> TextIO:
    if events == "-":
        return sys.stdout
    try:
        return open(events, "a", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--events {events}", error.strerror or "cannot be written") from error


def make_logger(form: str) -> Any:
    """structlog to stderr, one event a line: constant message, values as fields."""
    import structlog

    last: Any = structlog.processors.JSONRenderer()
    if form == "text":
        last = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            last,
        ],
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, Unfailing(sys.stderr))),
    )
    return structlog.get_logger()


class Unfailing:
    """A stream whose disk may be full, or its reader gone: a daemon goes on without its log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """As the stream's, if it can."""
        with suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        """As the stream's, if it can."""
        with suppress(OSError, ValueError):
            self._stream.flush()


class Telling:
    """Tells of each pass: metrics, events, log, status page."""

    def __init__(self, metrics: Metrics, sink: EventSink | None, logger: Any) -> None:
        self._metrics = metrics
        self._sink = sink
        self._logger = logger
        self.last: PassReport | None = None

    def begin(self) -> None:
        """A pass begins."""
        self._metrics.begin()

    def end(self, report: PassReport, events: tuple[Event, ...]) -> None:
        """A pass has ended."""
        from reconciler.report.clean import printable

        self.last = report
        self._metrics.record(report)
        if self._sink is not None:
            self._sink.put(events, at=utc_now())
        for event, causes in said_once(events):
            fields = {"subject": event.subject, "before": event.before, "after": event.after}
            if causes:
                fields["because"] = "; ".join(causes)
            shown = {name: printable(text) for name, text in fields.items() if text}
            tell = self._logger.warning if _is_loud(event) else self._logger.info
            tell(event.kind, **shown)

    def failed(self, traceback_text: str) -> None:
        """A pass ended by a bug."""
        self._logger.error("a pass failed by a bug; please report it", traceback=traceback_text)


_LOUD = frozenset({"revision.error", "revision.history", "lease", "hold", "endpoints"})


def _is_loud(event: Event) -> bool:
    """What somebody may have to look into; that it is over is good news."""
    from reconciler.report.events import ENDED

    return event.kind in _LOUD and event.after not in (*ENDED, "published")


_LEAST_TEXT = 16
"""A shorter cause that stands in another one is there by chance."""


def said_once(events: Sequence[Event]) -> list[tuple[Event, tuple[str, ...]]]:
    """Each event with those of its causes that no other line of the same pass tells: a hold is
    the cause of sync, health and steps at once, and its own line is where it is looked for."""
    said: list[str] = []
    causes: dict[int, tuple[str, ...]] = {}
    for i in sorted(range(len(events)), key=lambda i: events[i].kind != "hold"):
        mine = dict.fromkeys(events[i].causes)
        if events[i].kind in ("replica", "launch"):
            # Many for one reason are read one by one.
            causes[i] = tuple(mine)
            continue
        causes[i] = tuple(cause for cause in mine if not any(_has(cause, s) for s in said))
        said += causes[i]
    return [(event, causes[i]) for i, event in enumerate(events)]


def _has(cause: str, said: str) -> bool:
    return cause in said or (len(said) >= _LEAST_TEXT and said in cause)


def _serve(listen: str, metrics: Metrics, telling: Telling, report_json: Any) -> Any:
    from prometheus_client import CollectorRegistry, generate_latest

    from reconciler.loop.page import PageServer, json_page

    registry = CollectorRegistry()
    registry.register(metrics)

    def scraped() -> tuple[int, str, bytes]:
        return 200, "text/plain; version=0.0.4; charset=utf-8", generate_latest(registry)

    def reported() -> Any:
        return report_json(telling.last) if telling.last else None

    return PageServer(
        listen,
        {
            "/metrics": scraped,
            "/status": json_page(reported),
            "/healthz": lambda: (200, "text/plain", b"ok\n"),
        },
    )
