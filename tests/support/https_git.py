"""A git server over HTTPS on loopback: git's own program, a certificate of its own, a password."""

from __future__ import annotations

import base64
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

USER, PASSWORD = "deploy", "s3cret-token"


class Handler(BaseHTTPRequestHandler):
    """`git http-backend` behind HTTP basic authentication."""

    folder: Path
    password = ""

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        wanted = "Basic " + base64.b64encode(f"{USER}:{self.password}".encode()).decode()
        if self.password and self.headers.get("Authorization") != wanted:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="fleet"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
        }
        done = subprocess.run(
            ["git", "http-backend"], env=env, input=body, capture_output=True, timeout=30
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = [line.decode().split(": ", 1) for line in head.split(b"\r\n") if b": " in line]
        status = next((v for k, v in fields if k == "Status"), "200 OK")
        self.send_response(int(status.split()[0]))
        for name, value in fields:
            if name != "Status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@dataclass(frozen=True)
class Server:
    """A git server with a certificate of its own."""

    url: str
    certificate: Path
    handler: type[Handler]


@contextmanager
def serving(
    served: Path, folder: Path, names: str = "DNS:localhost,IP:127.0.0.1"
) -> Iterator[Server]:
    """The repositories in `served`; `url` names the one called `fleet`. Key files in `folder`; the
    certificate is for `names`."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subject = ["-subj", "/CN=test", "-addext", f"subjectAltName={names}"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run(
        [*made, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
        timeout=30,
    )
    handler = type("OwnHandler", (Handler,), {"folder": served})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        http.socket = context.wrap_socket(http.socket, server_side=True)
        http.handle_error = lambda *_: None  # type: ignore[method-assign]  # refused handshakes
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            url = f"https://localhost:{http.server_address[1]}/fleet"
            yield Server(url, certificate, handler)
        finally:
            http.shutdown()
            thread.join(10)
