"""The sim engine: a real little OpenAI-compatible server without a model, for demos and tests.

It behaves as engines do where a reconciler can tell: it takes time to load, it can fail, crash or
turn unhealthy, over several nodes it waits for its workers and ends when one is lost, and TERM lets
requests finish. It binds the address it is given and no other, and never shares a port.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import List, Tuple

from . import sim_http
from .sim_http import Engine

JOIN_TRY_S = 0.2
DRAIN_S = 300.0
"""Longest wait for running requests after TERM; whoever stops it has a grace of their own."""


def main(argv: List[str]) -> int:
    """Run the engine until it is ended or told to fail; the exit code is as an engine's."""
    options = _parser().parse_args(argv)
    # A thread inherits its handlers: installed first, so that an early TERM is a clean end as well.
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    if options.crash_after is not None:
        _later(options.crash_after, lambda: _die("sim: crash, as asked for", 1))
    if options.rank > 0:
        return _worker(options, ended)
    return _leader(options, ended)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sim", allow_abbrev=False, description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to bind, and no other")
    add("--port", type=int, default=8000)
    add("--served-model-name", nargs="+", default=["sim"], metavar="NAME")
    add("--load-time", type=float, default=0.0, metavar="S", help="503 on /health for so long")
    add("--fail", action="store_true", help="end instead of becoming ready")
    add("--fail-code", type=int, default=1, metavar="N")
    add("--fail-message", default="sim: failed to load, as asked for")
    add("--never-ready", action="store_true")
    add("--crash-after", type=float, metavar="S", help="end with code 1 so long after the start")
    add("--unhealthy-after", type=float, metavar="S", help="500 on /health so long after ready")
    add("--context", type=int, default=4096, metavar="N", help="longest prompt, in words")
    add("--token-time", type=float, default=0.0, metavar="S", help="time to make one token")
    add("--rank", type=int, default=0, metavar="R")
    add("--nodes", type=int, default=1, metavar="N")
    add("--leader", default="", metavar="ADDR:PORT", help="workers: the leader's sync address")
    add("--sync-port", type=int, default=0, metavar="N", help="leader: where workers join")
    return parser


def _later(seconds: float, act: "threading.Thread | object") -> None:
    timer = threading.Timer(seconds, act)  # type: ignore[arg-type]
    timer.daemon = True
    timer.start()


def _die(message: str, code: int) -> None:
    """End at once, whatever other threads do."""
    print(message, file=sys.stderr, flush=True)
    os._exit(code)


def _leader(options: argparse.Namespace, ended: threading.Event) -> int:
    engine = Engine(tuple(options.served_model_name), options.context, options.token_time)
    try:
        server = sim_http.Server(options.host, options.port, engine)
        sync = _sync_listener(options) if options.nodes > 1 else None
    except OSError as error:
        where = "%s:%d" % (options.host, options.port)
        print("sim: couldn't bind %s: %s" % (where, error), file=sys.stderr)
        return 1
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    print("sim: loading %s on %s:%d" % (engine.names[0], options.host, options.port), flush=True)
    workers: List[socket.socket] = []
    if not ended.wait(options.load_time):
        if options.fail:
            _die(options.fail_message, options.fail_code)
        if sync is None or _join_workers(sync, options.nodes - 1, workers, ended):
            _become_ready(engine, options)
            _watch_workers(workers, ended)
    # Requests that run are finished; new ones are refused from now on.
    server.drain()
    until = time.monotonic() + DRAIN_S
    while engine.running and time.monotonic() < until:
        time.sleep(0.02)
    print("sim: ended", flush=True)
    return 0


def _become_ready(engine: Engine, options: argparse.Namespace) -> None:
    if options.never_ready:
        return
    engine.health = 200
    print("sim: ready", flush=True)
    if options.unhealthy_after is not None:
        _later(options.unhealthy_after, lambda: setattr(engine, "health", 500))


# --- More than one node -----------------------------------------------------------------------


def _sync_listener(options: argparse.Namespace) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((options.host, options.sync_port))
    listener.listen(64)
    return listener


def _join_workers(
    listener: socket.socket, count: int, workers: List[socket.socket], ended: threading.Event
) -> bool:
    """Whether all workers have joined before the end was asked for."""
    print("sim: waits for %d workers" % count, flush=True)
    listener.settimeout(JOIN_TRY_S)
    while len(workers) < count:
        if ended.is_set():
            return False
        try:
            workers.append(listener.accept()[0])
        except socket.timeout:
            pass
        _die_if_lost(workers, 0.0)
    return True


def _watch_workers(workers: List[socket.socket], ended: threading.Event) -> None:
    """Until the end is asked for; a lost worker is the end of the whole engine."""
    while not ended.wait(0.0 if workers else 1.0):
        _die_if_lost(workers, JOIN_TRY_S)


def _die_if_lost(workers: List[socket.socket], timeout_s: float) -> None:
    if workers and select.select(workers, [], [], timeout_s)[0]:
        _die("sim: a worker is lost", 1)


def _worker(options: argparse.Namespace, ended: threading.Event) -> int:
    target = _address(options.leader, options.sync_port)
    time.sleep(options.load_time)
    if options.fail:
        _die(options.fail_message, options.fail_code)
    print("sim: rank %d joins %s:%d" % (options.rank, *target), flush=True)
    leader = None
    while leader is None:
        if ended.is_set():
            return 0
        try:
            leader = socket.create_connection(target, 1.0)
        except OSError:
            time.sleep(JOIN_TRY_S)
    print("sim: joined", flush=True)
    while not ended.is_set():
        if select.select([leader], [], [], JOIN_TRY_S)[0] and not ended.is_set():
            _die("sim: the leader is gone", 1)
    leader.close()
    return 0


def _address(text: str, port: int) -> Tuple[str, int]:
    """`ADDR:PORT`, `[v6]:PORT`, or a bare address with `--sync-port`."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, int(rest[1:] or port)
    if text.count(":") == 1:
        host, _, number = text.partition(":")
        return host, int(number)
    return text, port
