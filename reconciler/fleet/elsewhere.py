"""Words that people bring from other tools, and what is written here instead.

A recipe for compose, Kubernetes or an engine's own file is typed in as it is. "Unknown field" alone
sends its reader through the whole reference; one line with the right place does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from engines import flags, llamacpp, sglang, vllm
from reconciler.fleet.strictyaml import Path

_PARALLEL = "write it under parallel: 'parallel: {%s: …}'"
_OPTION = "write it under runtime as an option of docker's: 'options: [--%s=…]'"
_CHOSEN = "GPUs of a replica are chosen by the reconciler: gpus_per_node says how many"
_WHOLE = "MIG instances are not placed yet: list whole GPUs"
_SHARED = "sharing a GPU between replicas is not possible yet: give each its own"
_IMAGE = "write it under runtime: 'runtime: {kind: container, image: …}'"
_OF_PLACEMENT = "it is a field of the Placement"
_OF_PROFILE = "it is a field of the Profile that the placement names"
_BEFORE = "nothing is run before a start: prepare the node, or write a sidecar or rendered files"
_NO_NETWORK = "remove it: a container has the node's own network and IPC"
_WEIGHTS = "weights lie on the nodes before a start: write their folder as the Model's path"

_PROFILE: Mapping[str, Iterable[str]] = {
    _PARALLEL % "tp": ("tp", "tensor_parallel", "tensor_parallel_size", "num_shard"),
    _PARALLEL % "pp": ("pp", "pipeline_parallel", "pipeline_parallel_size"),
    _PARALLEL % "dp": ("dp", "data_parallel", "data_parallel_size"),
    "write it under parallel: 'parallel: {ep: true}'": ("ep", "enable_expert_parallel"),
    _IMAGE: ("image", "docker_image", "container", "container_image"),
    "write it under runtime: 'mounts: [/source:/target:ro]'": (
        "volumes",
        "volume_mounts",
        "mounts",
    ),
    _OPTION % "device": ("devices", "device"),
    _OPTION % "cap-add": ("cap_add", "capabilities"),
    _OPTION % "group-add": ("group_add",),
    _OPTION % "security-opt": ("security_opt", "security_context"),
    "give what it needs under runtime: 'options: [--device=…, --cap-add=…]'": ("privileged",),
    _NO_NETWORK: ("network", "network_mode", "ipc", "host_network", "host_ipc"),
    "write it under needs: 'needs: {shm_gib: …}'": ("shm", "shm_size", "shared_memory"),
    "write it under needs: 'needs: {memlock: unlimited, nofile: …}'": ("ulimits", "ulimit"),
    "write it under runtime as 'path', or use engine 'command'": ("entrypoint", "binary"),
    "write 'env: {NAME: value}'": ("environment", "envs", "env_vars", "env_from"),
    "write 'secrets: {VARIABLE: /file/on/the/node}'": ("hf_token", "token", "api_key"),
    "write it under health: 'health: {path: …}'": (
        *("health_path", "healthcheck", "health_check"),
        *("readiness_probe", "liveness_probe", "startup_probe", "check_endpoint"),
    ),
    "write a list under args, one word an item": (
        *("extra_args", "vllm_args", "engine_args", "sglang_args", "flags", "vllm_config"),
    ),
    "each role is a profile and a placement of its own; labels tie them together": (
        *("roles", "role", "prefill", "decode"),
    ),
    "a router is a profile of engine 'command' and a placement with 'members'; one in front of "
    "each engine is a sidecar, and the engine 'listens' elsewhere": (
        "router",
        "proxy",
        "companion",
    ),
    "gpus_per_node says how many": ("gpus", "num_gpus"),
    _CHOSEN: ("gpu", "gpu_indices", "gpu_ids", "cuda_visible_devices"),
    "gpu_class and gpus_per_node say it": ("resources", "accelerator", "accelerators"),
    "gpus_per_node: 0 runs on the CPU": ("cpu_only", "device_type"),
    "ports are given by the reconciler from the fleet's range: '$(port.http)' refers to it": (
        *("port", "host_port", "container_port"),
    ),
    "each rank is bound to its node's own address: '$(node.address)' refers to it": (
        *("host", "hostname", "listen_address"),
    ),
    "engine 'command' takes a list under 'command'; other engines take 'args'": ("cmd", "run"),
    "write 'served_names: [...]' in the Model": (
        *("served_name", "served_names", "served_model_name", "model_name", "aliases"),
    ),
    _WEIGHTS: ("model_path", "model_url", "model_id", "hf_repo", "storage_uri"),
    "write 'executor: mp' or 'executor: ray'": ("distributed_executor_backend", "backend"),
    _OF_PLACEMENT: ("replicas", "replica_count", "node_selector", "fabric", "selector", "pool"),
    _BEFORE: ("init_containers", "pre_start", "setup", "pre_stop", "download"),
    "a replica runs until its placement is suspended or removed": ("ttl", "unload_timeout"),
    _WHOLE: ("mig", "mig_profile"),
    _SHARED: ("gpu_share", "gpu_fraction"),
}

_PLACEMENT: Mapping[str, Iterable[str]] = {
    "write 'replicas'": ("count", "replica_count", "instances", "min_replicas", "max_replicas"),
    "write 'selector: {label: value}'": ("node_selector", "labels_selector", "affinity"),
    "write 'nodes: [...]'": ("node", "hosts", "host", "node_name"),
    "the profile that it names says which": ("model",),
    _OF_PROFILE: ("args", "env", "parallel", "image", "engine", "gpus_per_node", "runtime", "gpus"),
}

_NODE: Mapping[str, Iterable[str]] = {
    "write 'address'": ("ip", "host", "hostname", "address_v6"),
    "write it under ssh: 'ssh: {user: …}'": ("user", "ssh_user"),
    "write it under ssh: 'ssh: {port: …}'": ("port", "ssh_port"),
    "write 'gpus: {class: …, count: …}'": ("gpu", "gpu_class", "gpu_count", "accelerators"),
    "write 'state: cordoned' or 'state: draining', with a reason": (
        "cordon",
        "drain",
        "maintenance",
    ),
    "write it under fabrics: 'fabrics: {NAME: {kind: ib, adapters: [...]}}'": (
        *("fabric", "hcas", "ib", "rdma", "adapters"),
    ),
    "write it under management: 'management: {interface: …}'": ("interface", "iface", "nic"),
    _WHOLE: ("mig", "mig_profile"),
    "passwords are not used: log in with a key, or write a user who may": ("password",),
}

_MODEL: Mapping[str, Iterable[str]] = {
    _WEIGHTS: ("repo", "hf_repo", "url", "uri", "source", "storage_uri", "model_path", "revision"),
    "write 'served_names: [...]'": ("served_name", "served_model_name", "aliases", "alias"),
    "it is a field of a Profile that names this model": ("engine", "args", "env", "parallel"),
}

_FLEET: Mapping[str, Iterable[str]] = {
    "passwords are not used: log in with a key, or write a user who may": ("password",),
}

_WORDS: Mapping[str, Mapping[str, str]] = {
    kind: {word: hint for hint, words in table.items() for word in words}
    for kind, table in (
        ("Profile", _PROFILE),
        ("Placement", _PLACEMENT),
        ("Node", _NODE),
        ("Model", _MODEL),
        ("Fleet", _FLEET),
    )
}


_INSIDE: Mapping[str, Mapping[str, Iterable[str]]] = {
    "parallel": {
        "write 'tp'": ("tensor_parallel", "tensor_parallel_size", "tp_size"),
        "write 'pp'": ("pipeline_parallel", "pipeline_parallel_size", "pp_size"),
        "write 'dp'": ("data_parallel", "data_parallel_size", "dp_size"),
        "write 'ep: true'": ("expert_parallel", "enable_expert_parallel", "ep_size"),
        "write 'dcp'": ("decode_context_parallel_size",),
        "write 'pcp'": ("prefill_context_parallel_size",),
    },
    "runtime": {
        "write 'mounts: [/source:/target:ro]'": ("volumes", "volume_mounts"),
        "write it among options: 'options: [--device=…, --cap-add=…, --group-add=…]'": (
            *("devices", "cap_add", "group_add", "security_opt", "privileged", "docker_args"),
        ),
        "write 'path', the program inside the image": ("entrypoint", "command"),
        _NO_NETWORK: ("network", "network_mode", "ipc"),
    },
    "needs": {
        "write 'shm_gib'": ("shm", "shm_size"),
        "write 'ram_gib'": ("memory", "ram", "cpu_memory"),
        "gpus_per_node says how many": ("gpu", "gpus"),
    },
}
"""Words inside an object of a Profile."""


def instead(kind: str, path: Path, word: str, data: Any) -> str:
    """What to write for the unknown `word` under `path` of a document of `kind`; empty: not known.

    A flag of the profile's engine is told as one: its name is no field and never will be.
    """
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word[:LONGEST]).lower().replace("-", "_")
    if path:
        inside = _INSIDE.get(str(path[0]), {}) if kind == "Profile" and len(path) == 1 else {}
        return next((hint for hint, words in inside.items() if plain in words), "")
    said = _WORDS.get(kind, {}).get(plain, "")
    if said or kind != "Profile" or not isinstance(data, Mapping):
        return said
    engine, flag = data.get("engine"), f"--{plain.replace('_', '-')}"
    if not isinstance(engine, str) or engine not in _OWNED:
        return ""
    found = flags.table(engine).spellings.get(flag)
    if found is None:
        return ""
    if found.name in _OWNED[engine]:
        return f"the reconciler sets it: {_OWNED[engine][found.name]}"
    return f"it is a flag of the engine: write it under args, as '{flag}'"


LONGEST = 64
"""Longer words are nobody's."""

_OWNED: Mapping[str, Mapping[str, str]] = {
    "vllm": vllm.RESERVED,
    "sglang": sglang.RESERVED,
    "llamacpp": llamacpp.RESERVED,
}
"""Engines whose flags are known, with those that no one else sets."""
