"""Images, mounts and options of a container: what is refused, and what is put around a command."""

from __future__ import annotations

from typing import Any

import pytest

from engines.container import whole
from tests.engines import cases
from tests.engines.test_checks import errors, problems


@pytest.mark.parametrize(
    "image",
    [
        "docker pull vllm/vllm-openai:nightly",
        "",
        "-v",
        "--privileged",
        "a b",
        "A/B:1",
        "x:y:z",
        "a@sha256:0",
    ],
)
def test_what_is_no_image_reference_is_refused(image: str) -> None:
    found = errors("vllm", runtime={"kind": "container", "image": image})
    assert [error.split(":")[0] for error in found] == ["runtime.image"]


@pytest.mark.parametrize(
    "image",
    [
        "vllm/vllm-openai-rocm:nightly",
        "busybox",
        "registry.example:5000/team/vllm:v1.2_3-4",
        "localhost/sim:1",
        "ghcr.io/a/b@sha256:" + "0" * 64,
    ],
)
def test_image_references_are_accepted(image: str) -> None:
    assert errors("vllm", runtime={"kind": "container", "image": image}) == []


@pytest.mark.parametrize("mount", ["/a", "a:/b", "/a:b", "/a:/b:rx", "/a,x:/b"])
def test_what_is_no_mount_is_refused(mount: str) -> None:
    runtime = {"kind": "container", "image": "a:1", "mounts": [mount]}
    assert [e.split(":")[0] for e in errors("vllm", runtime=runtime)] == ["runtime.mounts[0]"]


def with_options(*options: str) -> list[str]:
    """What is said about a container with these options of `docker run`."""
    runtime = {"kind": "container", "image": "a:1", "options": list(options)}
    return errors("vllm", runtime=runtime)


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--name=mine", "remove it"),
        ("--rm", "remove it"),
        ("--detach", "remove it"),
        ("--gpus=all", "remove it"),
        ("--network=bridge", "remove it"),
        ("--publish=8000:8000", "remove it"),
        ("--shm-size=16g", "needs.shm_gib"),
        ("--ulimit=nofile=65535", "needs.nofile"),
        ("--volume=/a:/b", "runtime.mounts"),
        ("-v", "runtime.mounts"),
        ("--env=A=B", "use env"),
        ("--env-file=/etc/env", "secrets"),
        ("--entrypoint=bash", "runtime.path"),
        ("--privileged", "--device="),
        ("--stop-timeout=5", "stop_grace_s"),
    ],
)
def test_an_option_that_another_field_sets_is_refused_with_that_field(
    option: str, hint: str
) -> None:
    (found,) = with_options(option)
    name = {"-v": "--volume"}.get(option, option.partition("=")[0])
    assert found.startswith(f"runtime.options[0]: {name} cannot be given here:")
    assert hint in found


@pytest.mark.parametrize("option", ["--device /dev/kfd", "--device", "/dev/kfd", "-u"])
def test_an_option_is_one_word_with_its_value(option: str) -> None:
    (found,) = with_options(option)
    assert found.endswith("with its value in the same word: --device=/dev/kfd")


def test_a_gpu_is_no_option() -> None:
    assert "gpus_per_node" in with_options("--device=nvidia.com/gpu=all")[0]


def test_what_accelerators_need_is_accepted() -> None:
    """As their makers' own `docker run` lines: ROCm, Gaudi, Ascend, and IMEX for GB200."""
    assert not with_options(
        "--device=/dev/kfd",
        "--device=/dev/dri",
        "--group-add=video",
        "--cap-add=SYS_PTRACE",
        "--security-opt=seccomp=unconfined",
        "--runtime=habana",
        "--device=/dev/davinci_manager",
        "--device=/dev/nvidia-caps-imex-channels/channel0",
        "--init",
    )


def test_options_need_a_container() -> None:
    found = errors("vllm", runtime={"kind": "venv", "path": "/v", "options": ["--init"]})
    assert found == [
        "runtime.options: kind venv has no container; remove them, or set kind: container"
    ]


@pytest.mark.parametrize(
    ("path", "mounted"),
    [
        ("/models/m", "/models/m"),
        ("/models/m.gguf", "/models/m.gguf"),
        ("/models/q/m-00001-of-00012.gguf", "/models/q"),
        ("/models/m-00002-of-00012.gguf", "/models/m-00002-of-00012.gguf"),
        ("/c/hub/models--a--b/snapshots/0f", "/c/hub/models--a--b"),
        ("/c/hub/models--a--b/snapshots/0f/m.gguf", "/c/hub/models--a--b"),
        ("/snapshots/m", "/snapshots/m"),
    ],
)
def test_all_of_a_model_is_mounted_where_its_path_is_not_all(path: str, mounted: str) -> None:
    assert whole(path) == mounted


def argv(**data: Any) -> list[str]:
    """The command of the only rank of a container."""
    runtime = {"kind": "container", "image": "a:1", **data.pop("runtime", {})}
    [spec] = cases.make({"profile": {"runtime": runtime}, **data}, engine="vllm").specs()
    found: list[str] = spec.spec["commands"][0]["argv"]
    return found


def test_no_target_is_mounted_twice() -> None:
    model = {"path": "/models/m", "files": ["config.json", "/etc/t.jinja"]}
    runtime = {"mounts": ["/nfs/m:/models/m:ro"]}
    targets = [word.split(",")[2] for word in argv(model=model, runtime=runtime) if "bind" in word]
    assert sorted(targets) == ["target=/etc/t.jinja", "target=/models/m"]


@pytest.mark.parametrize(
    ("args", "hidden"),
    [
        (["--chat-template", "/data/templates/x.jinja"], ["/data/templates/x.jinja"]),
        (["--lora-modules", "a=/data/lora/a"], ["/data/lora/a"]),
        (["--speculative-config", '{"model": "/data/draft"}'], ["/data/draft"]),
        (["--chat-template", "/vllm-workspace/examples/x.jinja"], []),
        (["--tokenizer", "/data/m"], []),
        (["--chat-template", "/data/m/x.jinja"], []),
        (["--lora-modules", "a=/data/mounted/a"], []),
        (["--chat-template", "/data/file.jinja"], []),
    ],
)
def test_a_path_beside_the_weights_that_no_mount_shows_is_warned_about(
    args: list[str], hidden: list[str]
) -> None:
    """What lies elsewhere may be the image's own."""
    runtime = {"kind": "container", "image": "a:1", "mounts": ["/srv/x:/data/mounted:ro"]}
    model = {"path": "/data/m", "files": ["/data/file.jinja"]}
    found = problems("vllm", model=model, runtime=runtime, args=args)
    assert [p.message.split(" is not in sight")[0] for p in found if p.warning] == hidden
    assert problems("vllm", model=model, args=args) == []
