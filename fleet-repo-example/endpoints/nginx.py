#!/usr/bin/env python3
"""Makes nginx send requests to what the reconciler publishes: a hook for `--endpoints-hook`.

    reconcile daemon --endpoints /var/lib/reconcile/endpoints \\
        --endpoints-hook "/etc/reconcile/nginx.py /etc/nginx/conf.d/reconcile-upstreams.conf"

It writes one `upstream` per served name (`reconcile_llama_70b`), checks the whole configuration,
and reloads. A configuration that nginx refuses is taken back and this ends with 1: the reconciler
tells so and runs it again at the next pass, and nginx goes on with what it had. Words after the
file go to nginx (`-c /etc/nginx/other.conf`). Standard library only; change it as you like.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path


USAGE = """\
usage: nginx.py FILE [WORDS FOR NGINX…]

Writes FILE, an nginx configuration, and reloads nginx. A hook of `reconcile daemon`, which sets
RECONCILE_ENDPOINTS_DIR to the folder that holds endpoints.json."""


def main(*words: str) -> int:
    folder = os.environ.get("RECONCILE_ENDPOINTS_DIR", "")
    if words[:1] in (("-h",), ("--help",)):
        print(USAGE)
        return 0
    if not words or words[0].startswith("-") or not folder:
        why = "" if folder else "\nRECONCILE_ENDPOINTS_DIR is not set."
        print(USAGE + why, file=sys.stderr)
        return 2
    return update(Path(folder), Path(words[0]), *words[1:])


def update(folder: Path, path: Path, *nginx: str) -> int:
    published = json.loads((folder / "endpoints.json").read_text())
    before = path.read_text() if path.exists() else ""
    replace(path, upstreams(published, before))
    if subprocess.run(["nginx", "-t", "-q", *nginx]).returncode != 0:
        replace(path, before)
        return 1
    return subprocess.run(["nginx", "-s", "reload", *nginx]).returncode


def upstreams(published: dict, before: str) -> str:
    """What is kept ("unreachable", "unknown") is in it too: nginx itself finds out who answers."""
    lines = ["# Written by the reconciler's hook; edits are lost."]
    for name, entries in published["models"].items():
        servers = [server(entry) for entry in entries]
        # Nodes that the reconciler has not seen since it lost its memory: what nginx has stays.
        for line in block(before, upstream(name)):
            host = line.split()[1].rpartition(":")[0].strip("[]") if line else ""
            if host in published["unseen"].values() and line not in servers:
                servers.append(line)
        # An upstream without any server is an error; one that is down answers 502.
        servers = servers or ["server 127.0.0.1:1 down;"]
        lines += [f"upstream {upstream(name)} {{", *(f"    {s}" for s in servers)]
        lines += ["    keepalive 32;", "}"]
    return "\n".join(lines) + "\n"


def upstream(name: str) -> str:
    """`meta-llama/Llama-3` → `reconcile_meta_llama_Llama_3`."""
    return "reconcile_" + re.sub(r"[^A-Za-z0-9]", "_", name)


def server(entry: dict) -> str:
    where = entry["url"].removeprefix("http://")
    return f"server {where} " + (f"weight={entry['weight']};" if entry["weight"] else "down;")


def block(text: str, name: str) -> list:
    """The servers of an upstream in what was written last."""
    found = re.search(rf"upstream {re.escape(name)} \{{\n(.*?)\}}", text, re.DOTALL)
    lines = found.group(1).splitlines() if found else []
    return [line.strip() for line in lines if line.strip().startswith("server ")]


def replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text)
    os.replace(temporary, path)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
