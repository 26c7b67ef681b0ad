"""The first two lines that a node gets: how the agent runs there without being installed.

The command is a constant, so that it means the same to every login shell; the one line after it
carries everything else. It runs before anything of ours is on the node, perhaps on a Python that
is too old or incomplete, so it uses the least it can and says in words what is missing.

Pure: nothing here reads the control machine. Runs nowhere but in the process that `command` starts.
"""

from __future__ import annotations

import base64
import zlib
from typing import Sequence

MINIMUM_PYTHON = (3, 8)


def command(sudo_user: str) -> str:
    """The SSH command: no quotes, no data, no variables, so that fish and tcsh read it alike.

    `sudo_user`: become this user without a terminal (empty: stay who the login is). The name comes
    from a validated fleet document; anything but a plain user name is a ValueError.
    """
    run = "exec python3 -ISqi"
    if not sudo_user:
        return run
    if not sudo_user.replace("-", "a").replace("_", "a").replace(".", "a").isalnum():
        raise ValueError("sudo user %r: only letters, digits, '-', '_' and '.'" % sudo_user)
    return "exec sudo -n -H -u %s python3 -ISqi" % sudo_user


def line(marker: str, agent_hash: str, root: str, previous_roots: Sequence[str] = ()) -> str:
    """The bootstrap line (without its newline).

    It is answered by one framed `{"bootstrap": …}`: `need` (send `upload(data)` as the next line;
    another answer follows), `ready` (the agent serves now) or `unsuitable` with a `message`.
    `agent_hash` is the sha256 of `package.build()`; `root` the fleet's or node's setting or "",
    `previous_roots` the node's.
    """
    given = "marker, digest, setting, previous = %a, %a, %a, %a\n" % (
        marker,
        agent_hash,
        root,
        tuple(previous_roots),
    )
    program = given + _WORDS + "try:\n    exec(%a)\n" % _PROGRAM + _GUARD
    return 'exec(bytes.fromhex("%s").decode())' % program.encode("utf-8").hex()


def upload(agent: bytes) -> str:
    """The agent's file as the one line that answers `need` (without its newline)."""
    return base64.b64encode(zlib.compress(agent, 6)).decode("ascii")


_WORDS = r"""
import os, sys
def say(text):
    sys.stdout.write("\n\x1eRECONCILE %s %d %s\n" % (marker, len(text), text))
    sys.stdout.flush()
def refuse(why):
    plain = "".join(c if " " <= c <= "~" and c not in '"\\' else "?" for c in why)
    say('{"bootstrap": "unsuitable", "message": "%s"}' % plain)
    os._exit(0)
"""

_GUARD = """
except Exception as error:
    refuse("python3 could not start the agent: %s: %s" % (type(error).__name__, error))
"""
# Without it a Python that was made interactive would wait at its prompt, and the reconciler for it.

_PROGRAM = r"""
if sys.version_info < (3, 8):
    refuse("python3 is %d.%d; the agent needs 3.8 or newer" % sys.version_info[:2])
try:
    import base64, ctypes, fcntl, hashlib, http.client, json, select, socket
    import subprocess, zlib, zipimport
except ImportError as error:
    refuse("python3 lacks a part of its standard library (%s); "
        "install the full package (Debian: apt-get install python3)" % error)
def find_root():
    home = os.path.expanduser("~")
    fixed = os.environ.get("RECONCILE_ROOT") or setting
    if fixed:
        return fixed
    if os.getuid() == 0:
        return "/var/lib/reconcile"
    if not os.path.isabs(home):
        refuse("user %d has no home folder; set root in the fleet or node document" % os.getuid())
    state = os.environ.get("XDG_STATE_HOME", "")
    state = state if os.path.isabs(state) else os.path.join(home, ".local", "state")
    return os.path.join(state, "reconcile")
def digest_of(path):
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""
def store(path, data):
    part = "%s.%d.part" % (path, os.getpid())
    try:
        with open(part, "wb") as file:
            os.chmod(part, 0o600)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError:
        if os.path.exists(part):
            os.unlink(part)
        raise
def choose(folder, path):
    start = "%s.%s-%x." % (digest, sys.implementation.cache_tag, sys.hexversion)
    for name in os.listdir(folder):
        own = os.path.join(folder, name)
        if name.startswith(start) and name.endswith(".pyz"):
            if digest_of(own) == name[len(start):-4]:
                return own
    return path
root = os.path.normpath(find_root())
if not os.path.isabs(root):
    refuse("root %s is not an absolute path" % root)
folder = os.path.join(root, "agent")
path = os.path.join(folder, digest + ".pyz")
run = ""
try:
    for made in (root, folder):
        if not os.path.isdir(made):
            os.makedirs(made, 0o700)
except OSError as error:
    refuse("root %s cannot be made: %s" % (root, error))
if digest_of(path) != digest:
    say('{"bootstrap": "need"}')
    try:
        sent = sys.stdin.readline(16777216).strip()
        data = zlib.decompress(base64.b64decode(sent, validate=True))
    except (ValueError, zlib.error) as error:
        refuse("the agent's file arrived damaged: %s" % error)
    if hashlib.sha256(data).hexdigest() != digest:
        refuse("the agent's file arrived with another content than announced")
    try:
        store(path, data)
    except OSError:
        # A full or read-only disk: what runs can still be looked at, from memory.
        kept = os.memfd_create("agent")
        os.write(kept, data)
        run = "/proc/%d/fd/%d" % (os.getpid(), kept)
run = run or choose(folder, path)
sys.path.insert(0, run)
from reconciler.agent.__main__ import bootstrapped
bootstrapped(marker, root, path, run, previous)
"""
