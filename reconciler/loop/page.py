"""The daemon's page: /metrics, /status and /healthz, read-only, on loopback only.

There is nothing to log in to, so it is not offered to a network: a proxy with authentication goes
in front where others are to see it.
"""

from __future__ import annotations

import ipaddress
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from reconciler.errors import SettingsError

Page = Callable[[], tuple[int, str, bytes]]
"""Status, content type and body."""

READ_TIMEOUT_S = 10.0
"""A client that says nothing is dropped."""


MAX_PORT = 65535


def parse_listen(text: str) -> tuple[str, int]:
    """(address, port) of `127.0.0.1:9180` or `[::1]:9180`. SettingsError for anything else."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    host = "127.0.0.1" if host == "localhost" else host
    try:
        address = ipaddress.ip_address(host)
        number = int(port)
    except ValueError:
        raise SettingsError(
            "--listen", f"{text!r} is not ADDRESS:PORT", "for one: 127.0.0.1:9180"
        ) from None
    if not address.is_loopback:
        raise SettingsError(
            "--listen",
            f"{host} is not a loopback address, and the page asks nobody for a password",
            "listen on 127.0.0.1 and put a proxy in front",
        )
    if not 0 <= number <= MAX_PORT:
        raise SettingsError(
            "--listen", f"{number} is no port", f"ports go up to {MAX_PORT}; 0 takes a free one"
        )
    return str(address), number


def json_page(data: Callable[[], Any]) -> Page:
    """A page of one JSON document; 503 while there is none."""

    def page() -> tuple[int, str, bytes]:
        found = data()
        body = json.dumps(found, ensure_ascii=False).encode()
        return (200 if found is not None else 503), "application/json", body

    return page


class PageServer:
    """Serves `pages` from threads of its own until closed."""

    def __init__(self, listen: str, pages: dict[str, Page]) -> None:
        address, port = parse_listen(listen)

        class Handler(BaseHTTPRequestHandler):
            timeout = READ_TIMEOUT_S
            protocol_version = "HTTP/1.0"

            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0])
                known = " ".join(sorted(pages)).encode()
                status, kind, body = page() if page else (404, "text/plain", known + b"\n")
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """A scrape each few seconds is not worth a line."""

        try:
            self._server = _server(address)((address, port), Handler)
        except OSError as error:
            raise SettingsError(
                "--listen",
                f"{address}:{port} cannot be bound: {error.strerror}",
                "choose another port",
            ) from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            name="page",
            daemon=True,
            kwargs={"poll_interval": 0.5},
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(2.0)


def _server(address: str) -> type[ThreadingHTTPServer]:
    import socket

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    return Server
