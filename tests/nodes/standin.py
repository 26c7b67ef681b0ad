"""A stand-in for the agent that misbehaves on request: it speaks the framing and nothing else.

Same seam as reconciler.agent.bootstrap. The real agent is exercised by tests/contract; this one is
for what a real one never does: answers that are cut, oversized, out of order, drowned in noise, or
without an end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from reconciler.nodes.channel import AgentPackage

PROGRAM = r"""
import json, os, sys, time
def out(text):
    sys.stdout.write(text); sys.stdout.flush()
def frame(data):
    text = json.dumps(data)
    return "\x1eRECONCILE %s %d %s\n" % (marker, len(text), text)
def identity(name):
    with open(os.path.join(os.environ["RECONCILE_IDENTITY_DIR"], name)) as file:
        return file.read().strip()
root = os.environ["RECONCILE_ROOT"]
os.makedirs(root, exist_ok=True)
path = os.path.join(root, digest + ".py")
if not os.path.exists(path):
    out(frame({"bootstrap": "need"}))
    with open(path, "w") as file:
        file.write(sys.stdin.readline())
out(frame({"bootstrap": "ready"}))
count = 0
for line in sys.stdin:
    request = json.loads(line)
    number, op = request["id"], request["op"]
    count += 1
    def answer(result):
        out(frame({"id": number, "ok": True, "result": result}))
    if op == "observe" and os.path.exists(os.path.join(root, "flood")):
        op = "flood"
    if op == "observe":
        said = {"format": "1.0", "root": root, "agent": path, "uptime_s": time.monotonic()}
        said["machine_id"], said["boot_id"] = identity("machine-id"), identity("boot_id")
        extra = os.path.join(root, "extra")
        if os.path.exists(extra):
            with open(extra) as file:
                said.update(json.load(file))
        answer(said)
    elif op == "lease":
        lease = {"fleet": request["fleet"], "owner": request["owner"], "epoch": 1}
        answer({**lease, "remaining_s": request["ttl_s"]})
    elif op == "start":
        answer({"state": "started"})
    elif op == "echo":
        answer({"got": request.get("data"), "count": count, "pid": os.getpid()})
    elif op == "refuse":
        error = {"code": request["code"], "message": "no", "findings": ["a", "b"]}
        out(frame({"id": number, "ok": False, "error": error}))
    elif op == "cut":
        out(frame({"id": number, "ok": True, "result": {}})[:-5])
        os._exit(1)
    elif op == "die":
        os._exit(1)
    elif op == "die-once":
        flag = os.path.join(root, "died")
        if not os.path.exists(flag):
            open(flag, "w").close()
            os._exit(1)
        answer({"pid": os.getpid()})
    elif op == "mute":
        time.sleep(600)
    elif op == "wrong-id":
        out(frame({"id": number + 1, "ok": True, "result": {}}))
    elif op == "lie":
        out(frame({"id": number, "ok": True, "result": {}}).replace(marker + " ", marker + " 9"))
    elif op == "huge":
        out("\x1eRECONCILE %s %d " % (marker, 9 << 20) + "x" * (9 << 20) + "\n")
        time.sleep(600)
    elif op == "flood":
        while True:
            out("x" * 65535 + "\n")
    elif op == "flood-errors":
        while True:
            sys.stderr.write("x" * 65535 + "\n")
    elif op == "answers":
        while True:
            out(frame({}) * 1000)
    elif op == "nested":
        deep = "[" * 900 + "]" * 900
        error = '{"code": %s, "message": %s}' % (deep, deep)
        text = '{"id": %d, "ok": false, "error": %s}' % (number, error)
        out("\x1eRECONCILE %s %d %s\n" % (marker, len(text), text))
    elif op == "noise":
        for _ in range(2000):
            out("noise " * 100 + "\n")
        sys.stderr.write("E" * (5 << 20)); sys.stderr.flush()
        out("no newline before it")
        answer({"survived": True})
"""


class StandIn:
    """Bootstrap of the stand-in."""

    def __init__(self, program: str = PROGRAM) -> None:
        self.program = program
        self.uploads = 0

    def command(self, sudo_user: str) -> str:
        return (
            f"exec sudo -n -H -u {sudo_user} python3 -ISqi" if sudo_user else "exec python3 -ISqi"
        )

    def line(
        self, marker: str, agent_hash: str, root: str, previous_roots: Sequence[str] = ()
    ) -> str:
        text = f"marker, digest = {marker!r}, {agent_hash!r}\n{self.program}"
        return f'exec(bytes.fromhex("{text.encode().hex()}").decode())'

    def upload(self, agent: bytes) -> str:
        self.uploads += 1
        return agent.decode()


def package(program: str = PROGRAM) -> AgentPackage:
    """The stand-in as a pool takes it; 300 kB, as large as the real one."""
    content = b"x" * 300_000
    return AgentPackage(StandIn(program), content, hashlib.sha256(content).hexdigest())
