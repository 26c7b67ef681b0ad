"""A rolling replacement behind a real nginx, fed by the example's hook, loses no request."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import World, until

EXAMPLE = Path(__file__).parents[2] / "fleet-repo-example" / "endpoints"
HOOK = EXAMPLE / "nginx.py"

needs_nginx = pytest.mark.skipif(
    shutil.which("nginx") is None, reason="no nginx here: `apt install nginx-light` brings it"
)

upstreams = runpy.run_path(str(HOOK))["upstreams"]


def published(*entries: tuple[str, int], unseen: dict[str, str] | None = None) -> dict[str, Any]:
    servers = [{"url": f"http://{where}", "weight": weight} for where, weight in entries]
    return {"models": {"m": servers}, "unseen": unseen or {}}


# --- The hook's rendering ---------------------------------------------------------------------


def test_an_upstream_has_each_endpoint_with_its_weight() -> None:
    text = upstreams(published(("10.0.0.1:20000", 100), ("[fd00::2]:20010", 0)), "")
    assert "upstream reconcile_m {" in text
    assert "server 10.0.0.1:20000 weight=100;" in text
    assert "server [fd00::2]:20010 down;" in text


def test_what_nginx_has_of_an_unseen_node_stays() -> None:
    before = upstreams(published(("10.0.0.1:1", 100), ("10.0.0.2:1", 100)), "")
    text = upstreams(published(("10.0.0.1:1", 100), unseen={"gpu-b": "10.0.0.2"}), before)
    assert text == before
    assert "10.0.0.2" not in upstreams(published(("10.0.0.1:1", 100)), before)


def test_a_name_without_endpoints_keeps_its_upstream() -> None:
    assert "server 127.0.0.1:1 down;" in upstreams(published(), "")


# --- Its command line -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "folder", "code", "said"),
    [
        (("--help",), "/tmp", 0, "usage: nginx.py FILE"),
        ((), "/tmp", 2, "usage: nginx.py FILE"),
        (("-x",), "/tmp", 2, "usage: nginx.py FILE"),
        (("up.conf",), "", 2, "RECONCILE_ENDPOINTS_DIR is not set"),
    ],
)
def test_called_as_no_hook_it_writes_nothing_and_says_how(
    tmp_path: Path, words: tuple[str, ...], folder: str, code: int, said: str
) -> None:
    env = {"PATH": str(tmp_path / "none"), "RECONCILE_ENDPOINTS_DIR": folder}
    argv = [sys.executable, str(HOOK), *words]
    done = subprocess.run(
        argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


# --- A real nginx -----------------------------------------------------------------------------


class Nginx:
    """nginx in the foreground, with the example's site for the model `tiny`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.rendered = folder / "upstreams.conf"
        site = (EXAMPLE / "nginx-site.conf").read_text()
        site = site.replace("listen 8080", f"listen 127.0.0.1:{self.port}")
        site = site.replace("sim-small", "tiny").replace("sim_small", "tiny")
        (folder / "site.conf").write_text(site)
        self.rendered.write_text(upstreams({"models": {"tiny": []}, "unseen": {}}, ""))
        temps = "".join(
            f"{kind}_temp_path {folder}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        user = "user root;\n" if os.geteuid() == 0 else ""
        self.conf = folder / "nginx.conf"
        self.conf.write_text(
            f"{user}worker_processes 2;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log;\n"
            f"events {{}}\nhttp {{\naccess_log off;\n{temps}"
            f"include {self.rendered};\ninclude {folder}/site.conf;\n}}\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Nginx:
        argv = ["nginx", "-c", str(self.conf), "-g", "daemon off;"]
        self.process = subprocess.Popen(argv, start_new_session=True)
        until("nginx listens", self._listens)
        return self

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(10)

    @property
    def hook(self) -> str:
        return f"{sys.executable} {HOOK} {self.rendered} -c {self.conf}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/tiny/v1/chat/completions"


@dataclass
class Clients:
    """Streams one answer after another through the balancer; whole answers are counted."""

    url: str
    whole: int = 0
    failed: list[str] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        while not self.done.is_set():
            failure = self.one()
            with self.lock:
                self.whole += not failure
                if failure:
                    self.failed.append(failure)

    def one(self) -> str:
        """Why it was not answered to the end; empty: it was."""
        messages = [{"role": "user", "content": "one two three four five six seven eight"}]
        body = {"model": "tiny", "messages": messages, "stream": True, "max_tokens": 10}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
        except OSError as error:
            return f"{type(error).__name__}: {error}"
        return "" if text.endswith(b"data: [DONE]\n\n") else f"cut off after {len(text)} bytes"


@contextmanager
def asking(url: str, clients: int = 4) -> Iterator[Clients]:
    asked = Clients(url)
    threads = [threading.Thread(target=asked.run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield asked
    finally:
        asked.done.set()
        for thread in threads:
            thread.join(60)


@needs_nginx
def test_a_rolling_replacement_through_nginx_loses_no_request(world: World) -> None:
    # An answer takes 2 s and the grace is 1 s: without draining it is cut off.
    tokens = ("--token-time", "0.2")
    world.profile(args=tokens, drain_s=30, stop_grace_s=1)
    world.placement(replicas=3)
    world.commit()
    with Nginx(world.folder / "nginx") as nginx:
        options = ("--endpoints", str(world.folder / "published"), "--endpoints-hook", nginx.hook)
        with world.daemon(*options):
            until("three upstreams", lambda: nginx.rendered.read_text().count("weight=") == 3)
            until("nginx has reloaded", lambda: not Clients(nginx.url).one())
            old = set(world.ready())
            with asking(nginx.url) as clients:
                until("answers", lambda: clients.whole > 5)
                world.profile(args=(*tokens, "--context", "512"), drain_s=30, stop_grace_s=1)
                world.commit("a longer context")
                until(
                    "all three replaced",
                    lambda: not old & set(world.living()) and len(world.ready()) == 3,
                    timeout_s=120,
                )
                answered = clients.whole
                until("answers by the new ones", lambda: clients.whole > answered + 5)
        log = (nginx.folder / "error.log").read_text()
    assert clients.failed == [], f"{clients.failed[:3]} of {clients.whole}\n{log[-2000:]}"
    assert clients.whole > 20
    assert "refused" not in log, "nginx still sent requests to what was told to stop"


@needs_nginx
def test_a_configuration_that_nginx_refuses_is_taken_back_and_told(world: World) -> None:
    world.placement()
    world.commit()
    published_in = world.folder / "published"
    with Nginx(world.folder / "nginx") as nginx:
        options = ("--endpoints", str(published_in), "--endpoints-hook", nginx.hook)
        before = nginx.rendered.read_text()
        site = nginx.folder / "site.conf"
        good = site.read_text()
        site.write_text(good + "nonsense;\n")
        ran = world.reconcile("--wait", "--timeout", "60", *options, timeout_s=90)
        assert ran.code == 3, ran
        assert "nonsense" in ran.err
        assert nginx.rendered.read_text() == before
        assert len(world.ready()) == 1, "a hook that fails has stopped something"
        site.write_text(good)
        world.reconcile(*options, code=0)
        assert nginx.rendered.read_text().count("weight=") == 1
        until("nginx has reloaded", lambda: not Clients(nginx.url).one())
