"""Real sshd nodes on this machine's loopback: for the demo, for tests, for anyone trying it out.

Each node is an OpenSSH server of its own on its own address 127.x.y.z, with own keys, own HOME,
own records and own identity (machine id and boot id), all under one folder. Needs no privilege;
root works too. The addresses of a fleet are claimed while it lives, so fleets of several test
runs on one machine do not meet. Nothing here is a mock: what passes here has gone through sshd.

It must leave nothing behind: `close` ends the servers and every process that carries the mark of
one of its machine ids. The folder itself belongs to the caller.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from reconciler.agent import cgroup
from reconciler.errors import SettingsError
from reconciler.nodes import processes

START_S = 10.0
"""A loopback sshd answers within 50 ms; this is for a loaded machine."""

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
PORTS = range(10000, 20000)
"""Outside the fleet's port range and the kernel's ephemeral one."""


@dataclass(frozen=True)
class LoopbackNode:
    """What it takes to reach one node, and where its files are."""

    name: str
    address: str
    port: int
    user: str
    host_key: str
    """`ssh-ed25519 AAAA…`, as a Node document has it."""
    identity_file: Path
    folder: Path

    @property
    def root(self) -> Path:
        """Folder of the records (RECONCILE_ROOT)."""
        return self.folder / "root"

    @property
    def home(self) -> Path:
        """HOME of what runs there."""
        return self.folder / "home"

    @property
    def identity(self) -> Path:
        """RECONCILE_IDENTITY_DIR: `machine-id` and `boot_id`."""
        return self.folder / "identity"

    @property
    def machine_id(self) -> str:
        """As the agent reads it."""
        return (self.identity / "machine-id").read_text().strip()

    @property
    def boot_id(self) -> str:
        """As the agent reads it."""
        return (self.identity / "boot_id").read_text().strip()

    def ssh_document(self) -> dict[str, object]:
        """The `ssh:` block of its Node document."""
        return {
            "user": self.user,
            "port": self.port,
            "host_key": self.host_key,
            "identity_file": str(self.identity_file),
        }


class LoopbackFleet:
    """`count` sshd nodes (or one for each of `names`), started; use it in a `with`.

    `options` are further lines of sshd_config for all nodes (`{"MaxSessions": "2"}`); `shell` runs
    every command by that login shell instead of the account's; `path` is the nodes' PATH; `env`
    further variables. Raises SettingsError where there is no sshd.
    """

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        *,
        names: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        shell: str = "",
        path: str = DEFAULT_PATH,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self.sshd = find_sshd()
        self.options = {**version_options(self.sshd), **(options or {})}
        self.shell, self.path, self.env = shell, path, dict(env or {})
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._machine_ids: set[str] = set()
        self._claim, block = claim_block()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        names = names or [f"node-{i + 1}" for i in range(count)]
        addresses = [f"127.{block}.{(i + 2) // 250}.{(i + 2) % 250}" for i in range(len(names))]
        self.identity_file = self.folder / "client_key"
        client_key = write_key(self.identity_file)
        (self.folder / "authorized_keys").write_text(client_key + "\n")
        (self.folder / "authorized_keys").chmod(0o600)
        port = free_port(addresses[0])
        self.nodes: dict[str, LoopbackNode] = {}
        try:
            for name, address in zip(names, addresses, strict=True):
                self.nodes[name] = self._create(name, address, port)
                self._spawn(name)
            for name in names:
                self._await(name)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LoopbackFleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def __getitem__(self, name: str) -> LoopbackNode:
        return self.nodes[name]

    # --- one node ----------------------------------------------------------------------------

    def pid(self, name: str) -> int:
        """The listening sshd's."""
        return self._servers[name].pid

    def pids(self, name: str) -> list[int]:
        """sshd, its sessions and what runs in them, parents first."""
        server = self._servers.get(name)
        return [server.pid, *processes.descendants(server.pid)] if server else []

    def stop(self, name: str) -> None:
        """Connections are refused and the living ones cut; engines live on."""
        server = self._servers.pop(name, None)
        if server is None:
            return
        tree = [server.pid, *processes.descendants(server.pid)]
        processes.send(tree, signal.SIGKILL)
        server.wait()
        processes.wait_gone(lambda: [pid for pid in tree if processes.alive(pid)], 5.0)

    def start(self, name: str) -> None:
        """A stopped node's sshd again: same address, port and keys."""
        if name not in self._servers:
            self._spawn(name)
            self._await(name)

    def restart(self, name: str) -> None:
        """`stop`, then `start`."""
        self.stop(name)
        self.start(name)

    def cut(self, name: str) -> None:
        """The living connections end; new ones are accepted."""
        sessions = processes.descendants(self.pid(name))
        processes.send(sessions, signal.SIGKILL)
        processes.wait_gone(lambda: [pid for pid in sessions if processes.alive(pid)], 5.0)

    def freeze(self, name: str) -> None:
        """SIGSTOP: TCP still connects, and nobody ever answers."""
        processes.send(self.pids(name), signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """SIGCONT."""
        processes.send(self.pids(name), signal.SIGCONT)

    def reboot(self, name: str) -> None:
        """All that ran there is gone and the boot id is another one."""
        self.stop(name)
        processes.sweep(lambda: self._find([self.nodes[name].machine_id], self.nodes[name]))
        self._write_identity(self.nodes[name], boot_only=True)
        self.start(name)

    def kill(self, name: str) -> None:
        """A power cut: sshd and all that ran there are gone, and nothing comes back."""
        self.stop(name)
        processes.sweep(lambda: self._find([self.nodes[name].machine_id], self.nodes[name]))

    def reinstall(self, name: str) -> LoopbackNode:
        """Another machine at the same address: new host key and machine id, no records."""
        self.kill(name)
        old = self.nodes[name]
        shutil.rmtree(old.folder)
        self.nodes[name] = self._create(name, old.address, old.port)
        self.start(name)
        return self.nodes[name]

    def processes(self, name: str) -> list[int]:
        """What carries the mark of this node: supervisors and engines."""
        suffix = f"@{self.nodes[name].machine_id}".encode()
        return processes.by_environment(
            lambda v: v.startswith(b"RECONCILE_MARK=") and v.endswith(suffix)
        )

    def close(self) -> None:
        """Ends all that was started here. Safe to call again."""
        listeners = [server.pid for server in self._servers.values()]
        trees = [pid for root in listeners for pid in processes.descendants(root)]
        processes.send([*listeners, *trees], signal.SIGKILL)
        for server in self._servers.values():
            server.wait()
        self._servers.clear()
        processes.sweep(lambda: self._find(sorted(self._machine_ids), None))
        for node in self.nodes.values():
            remove_groups(node.root)
        self._claim.close()

    # --- how it is done ------------------------------------------------------------------------

    def _find(self, machine_ids: Sequence[str], node: LoopbackNode | None) -> list[int]:
        ends = tuple(f"@{machine_id}".encode() for machine_id in machine_ids)
        folder = str(node.folder if node else self.folder).encode() + b"/"
        identity = b"RECONCILE_IDENTITY_DIR=" + folder

        def belongs(variable: bytes) -> bool:
            marked = variable.startswith(b"RECONCILE_MARK=") and variable.endswith(ends)
            return marked or variable.startswith(identity)

        return processes.by_environment(belongs) if ends else []

    def _create(self, name: str, address: str, port: int) -> LoopbackNode:
        folder = self.folder / name
        for part in ("home", "identity"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        host_key = write_key(folder / "host_key")
        user = getpass.getuser()
        node = LoopbackNode(name, address, port, user, host_key, self.identity_file, folder)
        self._write_identity(node)
        self._machine_ids.add(node.machine_id)
        (folder / "sshd_config").write_text("\n".join(self._config(node)) + "\n")
        return node

    def _write_identity(self, node: LoopbackNode, *, boot_only: bool = False) -> None:
        (node.identity / "boot_id").write_text(f"{uuid.uuid4()}\n")
        if not boot_only:
            (node.identity / "machine-id").write_text(uuid.uuid4().hex + "\n")

    def _config(self, node: LoopbackNode) -> list[str]:
        env = {
            "RECONCILE_IDENTITY_DIR": str(node.identity),
            "RECONCILE_ROOT": str(node.root),
            "HOME": str(node.home),
            "PATH": self.path,
            **self.env,
        }
        options = {
            "ListenAddress": f"{node.address}:{node.port}",
            "HostKey": str(node.folder / "host_key"),
            "AuthorizedKeysFile": str(self.folder / "authorized_keys"),
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "prohibit-password",
            "MaxStartups": "100:30:200",
            "UseDNS": "no",
            "PrintMotd": "no",
            "SetEnv": " ".join(f'"{key}={value}"' for key, value in env.items()),
            **({"ForceCommand": shell_command(self.shell)} if self.shell else {}),
            **self.options,
        }
        return [f"{key} {value}" for key, value in options.items()]

    def _spawn(self, name: str) -> None:
        folder = self.nodes[name].folder
        argv = [self.sshd, "-D", "-f", str(folder / "sshd_config"), "-E", str(folder / "sshd.log")]
        if setpriv := shutil.which("setpriv"):
            # Without it a test run that was killed leaves its servers behind.
            argv = [setpriv, "--pdeathsig", "KILL", *argv]
        if os.geteuid() == 0:
            # sshd refuses to run as root without its separation folder.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        devnull = subprocess.DEVNULL
        self._servers[name] = subprocess.Popen(argv, stdin=devnull, stdout=devnull, stderr=devnull)

    def _await(self, name: str) -> None:
        node, server = self.nodes[name], self._servers[name]
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and server.poll() is None:
            with (
                suppress(OSError),
                socket.create_connection((node.address, node.port), 1.0) as peer,
            ):
                peer.settimeout(1.0)
                if peer.recv(4) == b"SSH-":
                    return
            time.sleep(0.01)
        log = (node.folder / "sshd.log").read_text() if (node.folder / "sshd.log").exists() else ""
        raise SettingsError(
            f"loopback node {name}",
            f"sshd does not answer on {node.address}:{node.port}",
            f"its log ends: {log[-400:].strip() or '(empty)'}",
        )


def remove_groups(root: Path) -> None:
    """Take away the cgroups that a node's launches name in their records, where they are empty.

    A supervisor that was killed cannot do it, and nobody else knows that they are to go.
    """
    for path in root.glob("launches/*/status.json"):
        with suppress(OSError, ValueError):
            group = json.loads(path.read_text()).get("cgroup")
            if isinstance(group, str) and cgroup.belongs(group, path.parent.name):
                cgroup.remove(group)


def find_sshd() -> str:
    """The OpenSSH server's absolute path (sshd re-executes itself and insists on one)."""
    found = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
    if not found:
        raise SettingsError("loopback nodes", "sshd is not installed", "apt install openssh-server")
    return found


def version_options(sshd: str) -> dict[str, str]:
    """Options that only some versions know.

    OpenSSH 9.8 and newer shut out an address whose connections were cut a few times, as tests do.
    """
    said = subprocess.run([sshd, "-V"], capture_output=True, text=True, timeout=10, check=False)
    version = re.search(r"OpenSSH_(\d+)\.(\d+)", said.stdout + said.stderr)
    newer = version is not None and (int(version[1]), int(version[2])) >= (9, 8)
    return {"PerSourcePenalties": "no"} if newer else {}


def shell_command(shell: str) -> str:
    """A ForceCommand that has `shell` run the command just as sshd would for a login shell."""
    return f'exec {shell} -c "$SSH_ORIGINAL_COMMAND"'


def write_key(path: Path) -> str:
    """A new ed25519 key in OpenSSH's format; returns its public line."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(private)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return public.decode()


def claim_block() -> tuple[socket.socket, int]:
    """A second octet of 127/8 that no other fleet on this machine uses, and what holds it.

    The claim is an abstract socket, so the kernel lifts it even when this process is killed.
    """
    for block in range(255):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0reconcile-loopback-127.{block}")
        except OSError:
            claim.close()
            continue
        return claim, block
    raise SettingsError("loopback nodes", "all blocks of 127/8 are claimed", "end another fleet")


def free_port(address: str) -> int:
    """A port that can be bound on `address` now."""
    for port in PORTS[os.getpid() % 5000 :]:
        with socket.socket() as probe:
            with suppress(OSError):
                probe.bind((address, port))
                return port
    raise SettingsError("loopback nodes", f"no port of {PORTS} is free on {address}")
