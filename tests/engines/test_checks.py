"""What a pull request is told about a profile, before any node is asked."""

from __future__ import annotations

from typing import Any

import pytest

from engines.base import Problem
from reconciler.core import build
from tests.engines import cases


def problems(engine: str, model: dict[str, Any] | None = None, **profile: Any) -> list[Problem]:
    """All findings about a profile."""
    case = cases.make({"profile": profile, "model": model or {}}, engine=engine)
    return build.check_profile(case.resolved, allow_loader_env=False)


def errors(engine: str, **profile: Any) -> list[str]:
    """`path: message; hint` of every error."""
    found = problems(engine, **profile)
    return [f"{p.path}: {p.message}; {p.hint}" for p in found if not p.warning]


def warnings(engine: str, **profile: Any) -> list[str]:
    """`path: message` of every warning."""
    return [f"{p.path}: {p.message}" for p in problems(engine, **profile) if p.warning]


# --- Parallelism ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "parallel", "gpus", "nodes"),
    [
        ("vllm", {"tp": 2, "pp": 2, "dp": 2}, 8, 1),
        ("vllm", {"tp": 8, "pp": 2, "dcp": 8}, 8, 2),
        ("sglang", {"tp": 8, "dp": 4, "dp_attention": True}, 8, 1),
        ("sglang", {"tp": 2, "pp": 2, "dp": 2}, 8, 1),
        ("llamacpp", {}, 3, 1),
        ("command", {}, 5, 2),
        ("sim", {}, 4, 1),
        ("vllm", {"tp": 4, "pcp": 2}, 8, 1),
        ("vllm", {"tp": 2}, 0, 1),
        ("vllm", {"tp": 2, "dp": 2}, 0, 1),
        ("sglang", {"tp": 2}, 0, 1),
    ],
)
def test_gpus_that_multiply_out_as_the_engine_means_it_are_accepted(
    engine: str, parallel: dict[str, Any], gpus: int, nodes: int
) -> None:
    more = {"command": ["x"]} if engine == "command" else {}
    assert errors(engine, parallel=parallel, gpus_per_node=gpus, nodes=nodes, **more) == []


def test_gpus_that_do_not_multiply_out_say_which_product_was_expected() -> None:
    assert errors("vllm", parallel={"tp": 4, "pp": 2}, gpus_per_node=4) == [
        "parallel: tp 4 × pp 2 × dp 1 needs 8 GPUs, but 4 per node × 1 nodes gives 4; "
        "change gpus_per_node, nodes or the parallelism"
    ]


def test_dp_attention_takes_no_gpus_of_its_own() -> None:
    parallel = {"tp": 4, "dp": 4, "dp_attention": True}
    assert errors("sglang", parallel=parallel, gpus_per_node=4) == []
    assert "(dp 4 divides tp) needs 4" in errors("sglang", parallel=parallel, gpus_per_node=8)[0]


@pytest.mark.parametrize(
    ("engine", "profile", "expected"),
    [
        ("vllm", {"parallel": {"tp": 8, "dcp": 3}}, "dcp 3 does not divide tp 8"),
        ("vllm", {"parallel": {"dp_attention": True}}, "vLLM has no dp_attention"),
        ("vllm", {"parallel": {"dp": 0}}, "dp is 0"),
        ("vllm", {"executor": "torch"}, "vLLM has no executor 'torch'"),
        (
            "vllm",
            {"parallel": {"dp_balancing": "hybrid"}},
            "dp_local and dp_balancing are about dp",
        ),
        ("vllm", {"parallel": {"dp": 4, "dp_balancing": "x"}}, "'x' is unknown"),
        ("vllm", {"parallel": {"dp": 4, "dp_balancing": "hybrid"}}, "about several nodes"),
        (
            "vllm",
            {"parallel": {"tp": 4, "dp": 4, "dp_balancing": "external"}, "nodes": 2},
            "one data-parallel rank per node, here 2",
        ),
        ("vllm", {"parallel": {"dp": 3}, "nodes": 2}, "ranks per node × 2 nodes is not dp 3"),
        (
            "vllm",
            {"parallel": {"tp": 16, "dp": 2}, "nodes": 4, "gpus_per_node": 8},
            "needs 16 GPUs on one node, the profile takes 8",
        ),
        (
            "vllm",
            {"executor": "ray", "runtime": {"kind": "container", "image": "a:1"}},
            "cannot share one container",
        ),
        (
            "sglang",
            {"parallel": {"tp": 4, "dp": 3, "dp_attention": True}},
            "dp 3 does not divide tp",
        ),
        ("sglang", {"parallel": {"dp": 2}, "nodes": 2}, "dp over several nodes needs dp_attention"),
        ("sglang", {"executor": "ray"}, "SGLang has no executor"),
        ("sglang", {"parallel": {"pcp": 2}}, "SGLang has no pcp"),
        (
            "sglang",
            {"parallel": {"tp": 8, "ep": True}, "args": ["--moe-dp-size", "3"]},
            "--moe-dp-size 3 does not divide tp 8",
        ),
        (
            "sglang",
            {"parallel": {"tp": 4, "pp": 2}, "args": ["--moe-data-parallel-size=2"]},
            "no pp together with --moe-dp-size",
        ),
        (
            "sglang",
            {
                "parallel": {"tp": 8, "ep": True},
                "args": ["--moe-dp-size", "2", "--moe-a2a-backend", "deepep"],
            },
            "deepep spreads the experts over all of tp 8",
        ),
        ("vllm", {"parallel": {"pcp": 2, "dp": 2}}, "no pcp together with dp"),
        ("vllm", {"args": ["-pcp", "2"]}, "--prefill-context-parallel-size, which is set by"),
        ("llamacpp", {"parallel": {"tp": 2}}, "llama.cpp has no tp"),
        ("llamacpp", {"worker": {"args": ["-H", "::"]}, "nodes": 2}, "-H is set by the reconciler"),
        ("vllm", {"command": ["vllm", "serve"]}, "vllm builds its own command line"),
        ("sglang", {"serves": "all"}, "sglang knows which ranks serve"),
        ("vllm", {"runtime": {"image": "a/b:1"}}, "kind binary has no container"),
        ("vllm", {"runtime": {"kind": "venv", "mounts": ["/a:/b"]}}, "kind venv has no container"),
        ("command", {}, "engine command needs a command"),
        ("command", {"command": ["serve me"]}, "'serve me' is not one program"),
        ("command", {"command": ["x"], "serves": "some"}, "'some' is unknown"),
        (
            "command",
            {"command": ["x"], "serves": "none", "health": {"path": "/"}},
            "no rank serves HTTP, so nothing is asked",
        ),
        ("command", {"nodes": 2, "leader": {"command": ["x"]}}, "needs a command"),
        ("command", {"command": ["x"], "worker": {"command": ["a b"]}}, "'a b' is not one program"),
        ("command", {"command": ["x"], "ports": ["e"], "listens": "e"}, "write $(port.NAME)"),
        ("command", {"command": ["x"], "worker": {"waits_for": "e"}}, "there is no port e"),
        (
            "command",
            {"command": ["x"], "leader": {"waits_for": "http"}, "worker": {"waits_for": "http"}},
            "would wait for each other",
        ),
        ("vllm", {"worker": {"command": ["x"]}}, "vllm starts its ranks itself"),
        ("sglang", {"leader": {"waits_for": "http"}}, "sglang starts its ranks itself"),
        ("vllm", {"listens": "engine"}, "'engine' is no port of the profile's own"),
        ("vllm", {"listens": "http"}, "'http' is no port of the profile's own"),
    ],
)
def test_modes_that_do_not_go_together_are_refused(
    engine: str, profile: dict[str, Any], expected: str
) -> None:
    assert any(expected in error for error in errors(engine, **profile))


@pytest.mark.parametrize(("tp", "fits"), [(8, True), (6, False), (64, True), (128, False)])
def test_tp_must_divide_the_attention_heads_where_the_model_says_them(tp: int, fits: bool) -> None:
    model = {"facts": {"attention_heads": 64}}
    found = problems("vllm", model=model, parallel={"tp": tp}, gpus_per_node=tp)
    assert [p.path for p in found if not p.warning] == ([] if fits else ["parallel.tp"])


def test_attention_heads_that_are_not_said_are_not_checked() -> None:
    assert errors("vllm", parallel={"tp": 7}, gpus_per_node=7) == []


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_what_is_for_workers_is_warned_about_on_one_node(engine: str) -> None:
    """A warning: a profile of one node may inherit it from one of several."""
    for worker in ({"args": ["-c"]}, {"env": {"A": "b"}}):
        assert "worker: there are no workers on one node" in warnings(engine, worker=worker)
    sidecar = {"name": "a", "argv": ["x"], "ranks": "workers"}
    assert warnings(engine, sidecars=[sidecar]) == [
        "sidecars[0].ranks: there are no workers on one node"
    ]


@pytest.mark.parametrize("spelling", ["--api-server-count", "-asc", "--api_server_count=4"])
def test_front_end_processes_are_for_the_rank_that_serves(spelling: str) -> None:
    two = {"parallel": {"dp": 16}, "gpus_per_node": 8, "nodes": 2}
    args = [spelling] if "=" in spelling else [spelling, "4"]
    name = spelling.partition("=")[0]
    assert errors("vllm", **two, args=args) == [
        f"args[0]: {name} is for the rank that serves: the others run headless and end with it; "
        "put it in leader.args"
    ]
    assert errors("vllm", **two, leader={"args": args}) == []
    hybrid = {**two, "parallel": {"dp": 16, "dp_balancing": "hybrid"}}
    assert errors("vllm", **hybrid, args=args) == []
    assert errors("vllm", parallel={"dp": 8}, gpus_per_node=8, args=args) == []


def test_adapters_at_run_time_and_several_front_ends_are_warned_about() -> None:
    four = {"parallel": {"dp": 4}, "gpus_per_node": 4}
    env = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    assert "vLLM ends with it where dp is above 1" in warnings("vllm", **four, env=env)[0]
    assert warnings("vllm", **four, env=env, args=["--api-server-count", "1"]) == []
    assert warnings("vllm", env=env) == []


# --- Arguments --------------------------------------------------------------------------------


def test_a_reserved_flag_says_who_sets_it() -> None:
    assert errors("vllm", args=["--tensor-par", "2"]) == [
        "args[0]: --tensor-par means --tensor-parallel-size, which is set by the reconciler "
        "(parallel.tp); remove it from args"
    ]


def test_flags_of_the_roles_are_checked_too() -> None:
    found = errors("vllm", leader={"args": ["--port", "1"]}, worker={"args": ["--headless"]})
    assert [error.split(":")[0] for error in found] == ["leader.args[0]", "worker.args[0]"]


@pytest.mark.parametrize(
    ("engine", "args"),
    [
        ("vllm", ["--api-key", "x"]),
        ("sglang", ["--api-key", "x"]),
        ("llamacpp", ["--api-key", "x"]),
        ("vllm", ["--hf-token", "x"]),
    ],
)
def test_a_secret_on_the_command_line_is_refused(engine: str, args: list[str]) -> None:
    assert "every user of the node can read it" in errors(engine, args=args)[0]


@pytest.mark.parametrize(
    ("engine", "flag"),
    [("vllm", "--ssl-keyfile"), ("sglang", "--ssl-certfile"), ("llamacpp", "--ssl-key-file")],
)
def test_tls_is_ended_in_front_of_the_engine_whose_health_is_asked_over_http(
    engine: str, flag: str
) -> None:
    assert "end TLS in a sidecar in front of it" in errors(engine, args=[flag, "/k.pem"])[0]


@pytest.mark.parametrize(
    "value", ["{method: mtp, num_speculative_tokens: 1}", '{"a": }', "{'a': 1}", '{"a": 1']
)
def test_json_that_does_not_parse_is_refused(value: str) -> None:
    assert (
        "the value of --speculative-config is not JSON"
        in errors("vllm", args=["--speculative-config", value])[0]
    )


@pytest.mark.parametrize(
    "args",
    [
        ["--hf-overrides", '{"a": ["no", "yes"]}'],
        ['--hf_overrides={"a": 1}'],
        ["--eplb-config", '{"window_size":"1000","log_balancedness":"False"}'],
        ["--compilation-config", "3"],
        ["--chat-template", "{% for m in messages %}{{ m }}{% endfor %}"],
        ["--kernel-config.moe_backend=auto"],
        ["--generation-config", "vllm"],
    ],
)
def test_json_and_what_only_looks_like_it_is_accepted(args: list[str]) -> None:
    assert problems("vllm", args=args) == []


@pytest.mark.parametrize("value", ["'{\"a\":1}'", '"{}"', "'x'"])
def test_a_value_with_shell_quotes_is_warned_about_by_its_flag(value: str) -> None:
    assert warnings("vllm", args=["--hf-overrides", value]) == [
        f"args[1]: the value of --hf-overrides has shell quotes in it: {value}"
    ]


def test_moe_groups_go_with_as_many_parts_of_the_context() -> None:
    parallel = {"tp": 8, "ep": True}
    (said,) = warnings("sglang", parallel=parallel, args=["--moe-dp-size", "2"])
    assert said.startswith("args: SGLang 0.5.23 ends with --moe-dp-size 2 where --attn-cp-size is")
    both = ["--moe-dp-size", "2", "--attn-cp-size", "2"]
    assert warnings("sglang", parallel=parallel, args=both) == []
    assert errors("sglang", parallel=parallel, gpus_per_node=8, args=both) == []


def test_a_flag_and_value_in_one_item_are_refused() -> None:
    assert errors("vllm", args=["--max-model-len 8192"]) == [
        "args[0]: '--max-model-len 8192' is one word with a space in it; split it in two"
    ]


def test_a_prefix_of_two_flags_is_warned_about_for_the_engine_refuses_it() -> None:
    (said,) = warnings("sglang", args=["--cuda-graph-max-bs", "16"])
    assert said.startswith(
        "args[0]: --cuda-graph-max-bs may mean --cuda-graph-max-bs-decode or "
        "--cuda-graph-max-bs-prefill: "
    )
    assert warnings("sglang", args=["--cuda-graph-max-bs-d", "16"]) == []


def test_a_value_that_belongs_to_no_flag_is_warned_about() -> None:
    assert warnings("vllm", args=["--enforce-eager", "8192"]) == [
        "args[1]: '8192' belongs to no flag"
    ]


def test_the_end_of_options_is_refused() -> None:
    assert errors("vllm", args=["--", "--port", "1"])[0].startswith(
        "args[0]: `--` ends the options"
    )


@pytest.mark.parametrize("value", ["$HOME/x.jinja", "${MODEL_DIR}/x", "a:$PORT"])
def test_a_variable_that_no_shell_expands_is_warned_about(value: str) -> None:
    (said,) = warnings("vllm", args=["--chat-template", value])
    assert said.endswith("is not expanded: no shell reads it")
    (said,) = warnings("vllm", env={"A": value})
    assert said.endswith("is not expanded: no shell reads it")


@pytest.mark.parametrize(
    "value", ["exps$=CPU", "$$(x) costs $5", "{{ $x }}", "$(node.address)", "a$", "$$HOME"]
)
def test_a_dollar_that_is_no_variable_is_let_through(value: str) -> None:
    assert warnings("llamacpp", args=["-ot", value], env={"A": value}) == []


def test_a_repeated_flag_is_not_a_finding() -> None:
    assert problems("llamacpp", args=["-ot", "a=CPU", "-ot", "b=CPU"]) == []


# --- Environment ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("vllm", "CUDA_VISIBLE_DEVICES"),
        ("sim", "CUDA_DEVICE_ORDER"),
        ("vllm", "VLLM_HOST_IP"),
        ("vllm", "RAY_ADDRESS"),
        ("llamacpp", "LLAMA_ARG_PORT"),
        ("llamacpp", "LLAMA_ARG_RPC"),
        ("command", "RECONCILE_MARK"),
        ("command", "HIP_VISIBLE_DEVICES"),
        ("vllm", "ASCEND_RT_VISIBLE_DEVICES"),
        ("sglang", "SGLANG_HOST_IP"),
        ("sglang", "HOST_IP"),
    ],
)
def test_a_variable_that_we_set_is_refused(engine: str, name: str) -> None:
    more = {"command": ["x"]} if engine == "command" else {}
    assert f"{name} is set by the reconciler" in errors(engine, env={name: "1"}, **more)[0]


def test_every_reserved_flag_of_llama_cpp_has_its_variable_refused() -> None:
    assert errors("llamacpp", env={"LLAMA_ARG_THREADS": "4"}) == []
    assert errors("llamacpp", env={"LLAMA_ARG_HOST": "::"}) != []


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "BASH_ENV"])
def test_loader_variables_need_the_fleets_leave(name: str) -> None:
    case = cases.make({"profile": {"env": {name: "/x"}}}, engine="vllm")
    refused = build.check_profile(case.resolved, allow_loader_env=False)
    assert [(p.path, p.warning) for p in refused] == [(f"env.{name}", False)]
    assert build.check_profile(case.resolved, allow_loader_env=True) == []


def test_a_plugin_that_is_none_loads_nothing() -> None:
    assert errors("vllm", env={"NCCL_NET_PLUGIN": "none", "NCCL_TUNER_PLUGIN": "none"}) == []
    assert errors("vllm", env={"NCCL_NET_PLUGIN": "aws-ofi"}) != []
    assert errors("vllm", env={"LD_PRELOAD": "none"}) != []


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"HF_TOKEN": "hf_x\n"}, "has a control character"),
        ({"HF_TOKEN": ""}, "HF_TOKEN is empty"),
        ({"MY_KEY": " "}, "MY_KEY is empty"),
        ({"A B": "x"}, "is no name of a variable"),
        ({"1A": "x"}, "is no name of a variable"),
    ],
)
def test_values_that_would_break_the_environment_are_refused(
    env: dict[str, str], expected: str
) -> None:
    assert expected in errors("vllm", env=env)[0]


def test_a_proxy_that_catches_calls_between_ranks_is_warned_about() -> None:
    proxy = {"HTTPS_PROXY": "http://192.0.2.9:3128"}
    assert "go to the proxy, too" in warnings("vllm", env=proxy)[0]
    assert warnings("vllm", env={**proxy, "no_proxy": "$(members.addresses)"}) == []


def test_an_excluding_adapter_list_is_warned_about() -> None:
    assert "also another fabric's" in warnings("vllm", env={"NCCL_IB_HCA": "^=mlx5_0"})[0]


# --- Ports, the rest --------------------------------------------------------------------------


def test_an_unknown_engine_lists_the_known_ones() -> None:
    assert errors("trtllm") == [
        "engine: unknown engine 'trtllm': known are command, llamacpp, sglang, sim, vllm; "
        "did you mean vllm?; an engine may also come from another package"
    ]


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ({"ports": ["http"]}, "port http is there twice"),
        ({"ports": ["a", "a"]}, "port a is there twice"),
        ({"ports": ["Bad"]}, "'Bad' is no name of a port"),
        ({"health": {"port": "nope"}}, "there is no port nope"),
        ({"health": {"path": "health"}}, "'health' is no path"),
        ({"args": ["$(port.nope)"]}, "$(port.nope) is not known"),
        ({"sidecars": [{"name": "serve", "argv": ["x"]}]}, "'serve' is taken"),
        ({"sidecars": [{"name": "a", "argv": []}]}, "a sidecar needs a command"),
        ({"sidecars": [{"name": "a", "argv": ["x"], "ranks": "odd"}]}, "'odd' is unknown"),
        ({"runtime": {"kind": "vm"}}, "'vm' is no runtime"),
    ],
)
def test_shapes_that_cannot_be_built_are_refused(profile: dict[str, Any], expected: str) -> None:
    assert any(expected in error for error in errors("vllm", **profile))


def test_an_engine_that_loads_weights_needs_a_path() -> None:
    found = problems("vllm", model={"path": ""})
    assert [p.message for p in found] == ["model m has no path, vllm loads it"]
    assert problems("sim", model={"path": ""}) == []


def test_a_grace_shorter_than_the_engine_takes_to_end_is_warned_about() -> None:
    assert "2 s is too short for vllm" in warnings("vllm", stop_grace_s=2)[0]


@pytest.mark.parametrize(
    ("capability", "fits"), [("9.0", True), ("10.0", True), ("7.0", False), ("", True)]
)
def test_quantization_is_checked_against_the_gpu_class(capability: str, fits: bool) -> None:
    case = cases.make({"profile": {"args": ["-qfp8"]}}, engine="vllm")
    assert (build.check_capability(case.resolved, capability) == []) is fits
