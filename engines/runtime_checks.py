"""Checks of where a program comes from: the image, what runs it, its mounts and options.

They need no node. An option of `docker run` that the reconciler sets itself would be given twice,
and the last one wins in silence: a container under another name is never found again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from engines.base import EngineProfile, Problem
from engines.container import whole

IMAGE = re.compile(
    r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::[0-9]{1,5})?/)?"
    r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)

_IPC, _NET = "the container has the node's own (--ipc host)", "it has the node's network"
_ENDS = "exit code and last lines are read before it is removed"
OWNED: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("--name", "--label", "--label-file", "--cidfile"), ("it is the launch's", "remove it")
    ),
    **dict.fromkeys(
        ("--rm", "--detach", "--restart", "--tty", "--interactive"), (_ENDS, "remove it")
    ),
    **dict.fromkeys(
        ("--network", "--net", "--publish", "--publish-all", "--expose"), (_NET, "remove it")
    ),
    "--ipc": (_IPC, "remove it"),
    "--shm-size": (_IPC, "say needs.shm_gib: it is checked there"),
    **dict.fromkeys(
        ("--volume", "--mount", "--volumes-from"), ("a mount is a field", "use runtime.mounts")
    ),
    **dict.fromkeys(("--env", "--env-file"), ("a variable is a field", "use env, or secrets")),
    "--entrypoint": ("it is the engine's program", "use runtime.path"),
    "--ulimit": ("a limit is a field", "use needs.memlock and needs.nofile"),
    "--gpus": ("they are those that the launch was given", "remove it"),
    "--privileged": (
        "every GPU of the node would be in sight",
        "give what it needs: --device=…, --cap-add=…, --security-opt=…",
    ),
    **dict.fromkeys(
        ("--stop-signal", "--stop-timeout"), ("it is the engine's", "use stop_grace_s")
    ),
}
"""Options of docker and podman that are set from other fields, or would undo what they say."""

SHORT = {"-v": "--volume", "-e": "--env", "-p": "--publish", "-d": "--detach", "-l": "--label"}
"""What people paste most."""

BARE = ("--init", "--read-only", "--no-healthcheck", "--oom-kill-disable", "--no-hosts")
"""Options without a value; any other one needs its own in the same word."""


def check(profile: EngineProfile) -> Iterator[Problem]:
    """The image is one reference, the tool one we know, mounts are absolute."""
    runtime = profile.runtime
    if runtime.options and runtime.kind != "container":
        hint = "remove them, or set kind: container"
        yield Problem("runtime.options", f"kind {runtime.kind} has no container", hint)
    if runtime.kind not in ("binary", "venv", "container"):
        hint = "use binary, venv or container"
        yield Problem("runtime.kind", f"{runtime.kind!r} is no runtime", hint)
    if runtime.kind != "container":
        for field in ("image", "mounts"):
            if getattr(runtime, field):
                hint = "set kind: container, or remove it"
                message = f"kind {runtime.kind} has no container, so nothing runs in it"
                yield Problem(f"runtime.{field}", message, hint)
        return
    if not IMAGE.fullmatch(runtime.image):
        yield Problem(
            "runtime.image",
            f"{runtime.image!r} is no image reference",
            "write `registry/name:tag` alone: no spaces, no command, no leading dash",
        )
    if runtime.tool not in ("docker", "podman"):
        yield Problem("runtime.tool", f"{runtime.tool!r} is unknown", "use docker or podman")
    for index, mount in enumerate(runtime.mounts):
        parts = mount.split(":")
        good = len(parts) in (2, 3) and all(p.startswith("/") for p in parts[:2])
        if not good or "," in mount or parts[2:] not in ([], ["ro"], ["rw"]):
            hint = "write `/source:/target` or `/source:/target:ro`, both absolute"
            yield Problem(f"runtime.mounts[{index}]", f"{mount!r} is no mount", hint)
    for index, option in enumerate(runtime.options):
        yield from _check_option(f"runtime.options[{index}]", option)


def _check_option(path: str, option: str) -> Iterator[Problem]:
    name, joined, value = option.partition("=")
    name = SHORT.get(name, name)
    if name in OWNED:
        why, hint = OWNED[name]
        yield Problem(path, f"{name} cannot be given here: {why}", hint)
    elif not name.startswith("--") or " " in name or (not joined and name not in BARE):
        hint = (
            "write an option by its long name, with its value in the same word: --device=/dev/kfd"
        )
        yield Problem(path, f"{option!r} is not one whole option", hint)
    elif name == "--device" and value.startswith("nvidia.com/gpu"):
        yield Problem(
            path,
            f"{value}: its GPUs are those that the launch was given",
            "remove it; gpus_per_node says how many",
        )


def outside(
    profile: EngineProfile, model_paths: Iterable[str], files: Iterable[str]
) -> Iterator[Problem]:
    """Paths among the arguments that lie beside the weights and are not in sight in the container.

    Any other path may be the image's own, so nothing is said of it.
    """
    weights = [path for path in model_paths if path.startswith("/")]
    if profile.runtime.kind != "container" or not weights:
        return
    beside = {path.split("/", 2)[1] for path in weights}
    seen = {whole(path).rstrip("/") for path in weights}
    seen |= {file.rstrip("/") for file in files}
    seen |= {m.split(":")[1].rstrip("/") for m in profile.runtime.mounts if ":" in m}
    for where, args in (
        ("args", profile.args),
        ("leader.args", profile.leader.args),
        ("worker.args", profile.worker.args),
    ):
        for index, arg in enumerate(args):
            for path in PATH.findall(arg)[:MOST_PATHS] if len(arg) <= LONGEST else ():
                if path.split("/", 2)[1] in beside and not seen & set(_up(path)):
                    yield Problem(
                        f"{where}[{index}]",
                        f"{path} is not in sight inside the container",
                        "list it among the Model's files, or mount it",
                        warning=True,
                    )


PATH = re.compile(r"(?:^|(?<=[=\"',:]))/[^\s\"',:]+")
"""An absolute path that is a value, or a part of one (`name=/path`, JSON)."""

LONGEST, MOST_PATHS, DEEPEST = 4096, 16, 64
"""Bounds on what is looked at: an argument may be anything of any size."""


def _up(path: str) -> Iterator[str]:
    """The path and the folders above it."""
    for _ in range(DEEPEST):
        path = path.rstrip("/")
        if not path:
            return
        yield path
        path = path.rpartition("/")[0]
