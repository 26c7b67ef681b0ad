"""Recipes that people really run can be written down, and what they are known for arrives."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.core.describe import DescribedRank, describe
from reconciler.core.fingerprint import fingerprint
from reconciler.core.model import Desired
from reconciler.fleet.findings import as_text, errors
from tests.fleet.repos import desired, loaded

FOLDER = Path(__file__).parent / "recipes"
NAMES = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def files(name: str) -> dict[str, str]:
    folder = FOLDER / name
    return {p.relative_to(folder).as_posix(): p.read_text() for p in sorted(folder.rglob("*.yaml"))}


def recipe(name: str) -> Desired:
    return desired(files(name))


def ranks(name: str, placement: str) -> tuple[DescribedRank, ...]:
    return describe(recipe(name), placement).ranks


def serve(rank: DescribedRank) -> tuple[str, ...]:
    return rank.commands[-1].argv


def env(rank: DescribedRank) -> dict[str, str]:
    return rank.commands[-1].env


def after(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_there_are_at_least_twelve() -> None:
    assert len(NAMES) >= 12


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_validates_and_every_placement_has_its_commands(name: str) -> None:
    found = loaded(files(name))
    assert found.desired is not None, as_text(found.findings)
    for placement in found.desired.placements:
        shown = describe(found.desired, placement)
        profile = found.desired.profiles[found.desired.placements[placement].profile]
        assert len(shown.ranks) == profile.nodes
        assert not any(rank.node.startswith("node-") for rank in shown.ranks), "on its own nodes"


def test_a_json_argument_arrives_as_one_element_byte_for_byte() -> None:
    (rank,) = ranks("vllm-tp8-single-node", "qwen3")
    value = after(serve(rank), "--speculative-config")
    assert value == '{"method":"mtp","num_speculative_tokens":3}'
    (rank,) = ranks("vllm-dep16", "r1-prefill")[:1]
    value = after(serve(rank), "--eplb-config")
    assert json.loads(value)["log_balancedness"] == "False"
    assert json.loads(value)["window_size"] == "1000"


def test_nodes_whose_gpus_are_too_small_for_the_recipe_are_refused() -> None:
    name = "vllm-tp8-single-node"
    moved = files(name)
    placement = moved["placements/placements.yaml"]
    moved["placements/placements.yaml"] = placement.replace("pool: h200", "pool: h100")
    moved["catalog/catalog.yaml"] = moved["catalog/catalog.yaml"].replace(
        "gpu_class: h200-141gb\n", ""
    )
    (finding,) = errors(loaded(moved).findings)
    assert "has 80 GiB a GPU, it needs 120" in finding.message


def test_tp_2_and_dp_4_are_eight_gpus_and_one_port() -> None:
    shown = describe(recipe("vllm-tp2-dp4-single-node"), "m")
    assert len(shown.ranks[0].gpus) == 8
    assert shown.ranks[0].ready.count("http") == 1


def test_two_ranks_of_vllms_own_launcher_differ_only_in_rank_and_headless() -> None:
    first, second = ranks("vllm-mp-two-nodes", "kimi")
    assert [command.name for command in first.commands] == ["serve"], "no Ray anywhere"
    a, b = list(serve(first)), list(serve(second))
    b.remove("--headless")
    different = [(x, y) for x, y in zip(a, b, strict=True) if x != y]
    assert different == [("192.0.2.11", "192.0.2.12"), ("0", "1")], "own address, own rank"
    with_dcp_3 = files("vllm-mp-two-nodes")
    text = with_dcp_3["catalog/catalog.yaml"].replace("dcp: 8", "dcp: 3")
    assert errors(loaded({**with_dcp_3, "catalog/catalog.yaml": text}).findings)


def test_ranks_meet_on_the_cable_where_the_profile_says_so() -> None:
    first, second = ranks("vllm-dgx-spark", "spark")
    for rank, own in ((first, "198.51.100.11"), (second, "198.51.100.12")):
        argv = serve(rank)
        assert after(argv, "--master-addr") == "198.51.100.11"
        assert env(rank)["VLLM_HOST_IP"] == own
        assert env(rank)["NCCL_IB_HCA"] == "=rocep1s0f1:1,roceP2p1s0f1:1"
        assert env(rank)["TP_SOCKET_IFNAME"] == "enp1s0f1np1"
        assert rank.address.startswith("192.0.2."), "clients come over the management network"


def test_each_role_has_its_parallelism_and_each_node_its_own_address() -> None:
    prefill = ranks("vllm-prefill-decode-roles", "kimi-k3-prefill")
    decode = ranks("vllm-prefill-decode-roles", "kimi-k3-decode")
    for rank in (*prefill, *decode):
        assert env(rank)["VLLM_NIXL_SIDE_CHANNEL_HOST"] == rank.address
    assert after(serve(prefill[0]), "--tensor-parallel-size") == "8"
    assert after(serve(decode[0]), "--data-parallel-size") == "16"
    (router,) = ranks("vllm-prefill-decode-roles", "kimi-k3-router")
    assert router.gpus == ()
    (members,) = router.files
    assert set(json.loads(members.content)["members"]) == {"kimi-k3-prefill", "kimi-k3-decode"}
    assert serve(router)[-1] == f"{router.launch_dir}/files/{members.path}"


def test_a_rendered_file_is_part_of_the_fingerprint_and_names_the_nodes_adapters() -> None:
    whole = recipe("vllm-mooncake-store")
    resolved = whole.resolved(whole.placements["qwen3"])
    (file,) = resolved.profile.files
    edited = replace(file, content=file.content.replace("800GB", "700GB"))
    other = replace(resolved, profile=replace(resolved.profile, files=(edited,)))
    assert fingerprint(other) != fingerprint(resolved)
    rank = ranks("vllm-mooncake-store", "qwen3")[0]
    assert json.loads(rank.files[0].content)["device_name"] == "mlx5_0,mlx5_1"
    assert env(rank)["PYTHONHASHSEED"] == "0"
    assert env(rank)["MOONCAKE_CONFIG_PATH"].endswith("/files/mooncake.json")


def test_leader_and_worker_differ_in_their_environment() -> None:
    leader, worker = ranks("sglang-two-nodes-dp-attention", "deepseek")
    assert (env(leader)["MC_TE_METRIC"], env(worker)["MC_TE_METRIC"]) == ("false", "true")
    assert "NVSHMEM_IB_TRAFFIC_CLASS" not in env(leader)
    assert env(worker)["NVSHMEM_IB_TRAFFIC_CLASS"] == "16"
    adapters = "mlx5_bond_0,mlx5_bond_1,mlx5_bond_2,mlx5_bond_3"
    assert after(serve(leader), "--disaggregation-ib-device") == adapters
    assert env(leader)["UCX_NET_DEVICES"].startswith("mlx5_bond_0:1,mlx5_bond_1:1")
    assert env(leader)["NCCL_IB_HCA"].startswith("=mlx5_bond_0:1")
    mapping = env(leader)["NVSHMEM_HCA_PE_MAPPING"]
    assert mapping == ",".join(f"mlx5_bond_{n}:1:2" for n in range(4)), "two GPUs an adapter"
    assert "NVSHMEM_HCA_LIST" not in env(leader), "it would override the mapping"


def test_repeated_flags_keep_their_order_and_every_character() -> None:
    (rank,) = ranks("llamacpp-override-tensor", "deepseek-q2")
    argv = serve(rank)
    values = [argv[i + 1] for i, word in enumerate(argv) if word == "-ot"]
    assert values == [
        "blk.(0|1|2|3|4|5|6).ffn.=CUDA0",
        "blk.(7|8|9).ffn.=CUDA1",
        r"[2-9][0-9]\.ffn_.*_exps\.=CPU",
        "exps=CPU",
    ]


def test_yes_and_no_inside_json_stay_words_and_braces_are_no_references() -> None:
    (rank,) = ranks("gpustack-json-flags", "reranker")
    argument = next(word for word in serve(rank) if word.startswith("--hf_overrides="))
    assert json.loads(argument.partition("=")[2])["classifier_from_token"] == ["no", "yes"]
    assert "--chat-template=/models/Qwen3-Reranker-8B/chat_templates/rerank.jinja" in serve(rank)


def test_a_ray_worker_is_one_process_that_joins() -> None:
    _, worker = ranks("vllm-ray-pp2", "opt")
    assert len(worker.commands) == 1
    assert "--num-gpus=1" in serve(worker) or "--num-gpus 1" in " ".join(serve(worker))


def test_no_fabric_disables_infiniband_on_every_rank() -> None:
    for rank in ranks("vllm-tcp-only", "deepseek-lite"):
        assert env(rank)["NCCL_IB_DISABLE"] == "1"
        assert env(rank)["UCX_NET_DEVICES"] == "eth0"


def test_a_quoted_true_stays_the_text_true() -> None:
    (rank,) = ranks("vllm-lora-runtime", "llama-8b")
    assert env(rank)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"


def test_a_value_with_semicolons_is_one_element_and_the_nodes_own_program_is_run() -> None:
    (rank,) = ranks("llama-swap-one-box", "mistral")
    assert after(serve(rank), "--samplers") == "top_k;top_p;min_p;temperature;dry;typ_p;xtc"
    assert serve(rank)[0] == "/opt/llama.cpp/bin/llama-server"


def test_the_engines_own_file_is_found_in_the_launchs_folder() -> None:
    (rank,) = ranks("trtllm-command", "qwen3-context")
    config = after(serve(rank), "--config")
    assert config == f"{rank.launch_dir}/files/engine.yaml"
    assert "free_gpu_memory_fraction: 0.6" in rank.files[0].content


def test_a_start_that_takes_long_is_given_the_time() -> None:
    assert recipe("sglang-large-ep").profiles["deepseek-prefill"].start_timeout_s == 7200
    assert recipe("sglang-large-ep").models["deepseek-v3"].files[0].endswith("prefill.json")


# --- Accelerators, companions and stores ------------------------------------------------------


def test_clients_come_at_the_companion_and_health_is_asked_at_the_engine() -> None:
    (rank,) = ranks("vllm-router-over-ranks", "qwen")
    router, engine = rank.commands
    clients, own = after(router.argv, "--port"), after(engine.argv, "--port")
    assert clients != own
    assert after(router.argv, "--worker-urls") == f"http://192.0.2.11:{own}"
    assert f":{own}/health" in rank.ready


def test_every_tray_serves_behind_its_proxy_and_meets_over_its_own_interface() -> None:
    for number, rank in enumerate(ranks("vllm-gb200-wide-ep", "deepseek-r1-decode")):
        proxy, engine = rank.commands
        port = next(word for word in proxy.argv if word.startswith("--vllm-port="))
        assert after(engine.argv, "--port") == port.partition("=")[2]
        assert after(engine.argv, "--data-parallel-start-rank") == str(4 * number)
        assert engine.env["NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"] == "=eth0"
        assert "--device=/dev/nvidia-caps-imex-channels/channel0" in engine.argv
        value = after(engine.argv, "--kv_transfer_config")
        assert "\n" in value, "as it was written"
        assert json.loads(value)["kv_role"] == "kv_both"


def test_ports_inside_json_are_the_launchs_own() -> None:
    for rank in ranks("vllm-rocm-wide-ep", "deepseek-v3-decode"):
        value = json.loads(after(serve(rank), "--kv-transfer-config"))
        told = value["kv_connector_extra_config"]
        assert told["http_port"] == after(serve(rank), "--port")
        assert int(told["notify_port"]) == int(told["handshake_port"]) + 8


@pytest.mark.parametrize(
    ("name", "placement", "variable", "option"),
    [
        ("vllm-rocm-wide-ep", "deepseek-v3-decode", "HIP_VISIBLE_DEVICES", "--device=/dev/kfd"),
        ("sglang-rocm-multi-token", "r1", "HIP_VISIBLE_DEVICES", "--group-add=video"),
        ("vllm-gaudi", "llama-70b", "HABANA_VISIBLE_DEVICES", "--runtime=habana"),
        (
            "vllm-ascend-two-nodes",
            "deepseek-v4",
            "ASCEND_RT_VISIBLE_DEVICES",
            "--device=/dev/davinci_manager",
        ),
    ],
)
def test_an_accelerator_is_told_by_its_own_variable_alone(
    name: str, placement: str, variable: str, option: str
) -> None:
    for rank in ranks(name, placement):
        indices = ",".join(str(n) for n in range(len(rank.gpus)))
        assert env(rank)[variable] == indices
        assert "CUDA_VISIBLE_DEVICES" not in env(rank)
        assert option in serve(rank)
        assert variable in serve(rank), "given on into the container, by name"


def test_another_collective_library_gets_each_nodes_own_by_references() -> None:
    first, second = ranks("vllm-ascend-two-nodes", "deepseek-v4")
    assert [env(r)["HCCL_IF_IP"] for r in (first, second)] == ["192.0.2.11", "192.0.2.12"]
    assert [env(r)["HCCL_SOCKET_IFNAME"] for r in (first, second)] == ["enp67s0f5", "enp68s0f5"]


def test_a_leader_and_its_workers_run_programs_of_their_own() -> None:
    leader, *workers = ranks("trtllm-wide-ep-mpi", "decode")
    assert serve(leader)[0] == "mpirun"
    assert after(serve(leader), "-n") == "32"
    assert leader.commands[0].wait_for == f"192.0.2.12 {serve(workers[0])[-1]}"
    assert {serve(worker)[0] for worker in workers} == {"/usr/sbin/sshd"}


def test_a_stores_master_is_known_by_its_node() -> None:
    (rank,) = ranks("vllm-mooncake-distributed", "minimax-m3")
    told = json.loads(rank.files[0].content)
    assert told["master_server_address"] == "192.0.2.11:50051"
    assert len(told["device_name"].split(",")) == 4, "one adapter for each rank"


def test_data_parallel_ranks_are_one_for_each_tray() -> None:
    found = ranks("vllm-tp4-dp4-four-trays", "qwen")
    assert [after(serve(rank), "--data-parallel-size-local") for rank in found] == ["1"] * 4
    assert "--data-parallel-start-rank" not in serve(found[0]), "it balances for all"
    assert ["--headless" in serve(rank) for rank in found] == [False, True, True, True]


def test_a_container_sees_all_parts_of_a_model_and_its_other_files() -> None:
    (rank,) = ranks("llamacpp-parts-projector-draft", "gemma")
    mounts = [w.split(",")[1] for w in serve(rank) if w.startswith("type=bind")]
    assert mounts == [
        "source=/models/gemma-4-31b/Q8_0",
        "source=/models/gemma-4-31b/mmproj-F16.gguf",
        "source=/models/gemma-4-E2B/gemma-4-E2B-it-Q4_K_M.gguf",
    ]
    assert after(serve(rank), "--entrypoint") == "/app/llama-server"
    (rank,) = ranks("vllm-lora-and-draft", "llama-70b")
    mounts = [w.split(",")[1] for w in serve(rank) if w.startswith("type=bind")]
    assert mounts[0] == "source=/data/hub/models--meta-llama--Llama-3.3-70B-Instruct"
    assert "source=/data/lora/sql" in mounts


def test_cards_of_two_kinds_serve_one_model_over_rpc() -> None:
    leader, worker = ranks("llamacpp-mixed-gpus", "glm")
    assert after(serve(leader), "--tensor-split") == "12,12,24,24"
    assert after(serve(leader), "--rpc").startswith("192.0.2.12:")
    assert serve(worker)[0] == "ggml-rpc-server"


def test_cpus_need_no_gpus_and_ranks_are_sockets() -> None:
    (rank,) = ranks("vllm-cpu-xeon", "llama-cpu")
    assert rank.gpus == ()
    assert after(serve(rank), "--tensor-parallel-size") == "2"
    assert env(rank)["VLLM_CPU_OMP_THREADS_BIND"] == "0-31|32-63"


def test_nccls_own_transport_needs_no_leave() -> None:
    (rank,) = ranks("sglang-pd-dsv32", "dsv32-prefill")
    assert env(rank)["NCCL_NET_PLUGIN"] == "none"
    (router,) = ranks("sglang-pd-dsv32", "dsv32-router")
    assert after(router.commands[0].argv, "--router").startswith("http://192.0.2.11:")
