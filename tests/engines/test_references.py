"""References are replaced, literals kept, all else is untouched, and the unknown is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines import references
from engines.base import (
    Adapter,
    EngineProfile,
    Fabric,
    Gpu,
    Host,
    LaunchRequest,
    RenderedFile,
    RoleOverride,
    Sidecar,
)


def request(**changes: object) -> LaunchRequest:
    """Two hosts, one of them IPv6, with a port of their own."""
    hosts = (
        Host("gpu-a", "10.0.0.1", (Gpu("GPU-1"),), interface="eno1", model_path="/models/m"),
        Host("gpu-b", "2001:db8::2", (Gpu("GPU-2"), Gpu("GPU-3")), launch_dir="/r/launches/x"),
    )
    profile = EngineProfile("p", "command", nodes=2, served_names=("llama",))
    return LaunchRequest("x-0-abc", "x-0", profile, hosts, {"http": 20000, "side": 20001})


def test_a_node_is_referred_to_by_name_bare_or_as_part_of_a_url() -> None:
    known = {"gpu-c": "192.0.2.3", "store.1": "2001:db8::5"}
    refs = references.references(replace(request(), addresses=known), 1)
    assert refs.expand("$(address.gpu-c):1 $(host.gpu-c):1") == "192.0.2.3:1 192.0.2.3:1"
    assert refs.expand("$(address.store.1) $(host.store.1):1") == "2001:db8::5 [2001:db8::5]:1"
    with pytest.raises(ValueError, match=r"\$\(address.gpu-x\) is not known"):
        refs.expand("$(address.gpu-x)")


def test_which_nodes_there_are_is_left_to_the_inventory() -> None:
    profile = EngineProfile(
        "p", "vllm", env={"A": "$(address.any)", "B": "$(host.)", "C": "$(host.x"}
    )
    assert [p.path for p in references.check(profile, ["http"])] == ["env.B", "env.C"]
    assert list(references.nodes_named(["$(address.a) $$(host.b) $(host.c)"])) == ["a", "c"]


@pytest.mark.parametrize(
    ("text", "rank", "expected"),
    [
        ("$(node.address)", 1, "2001:db8::2"),
        ("http://$(node.host):$(port.http)", 1, "http://[2001:db8::2]:20000"),
        ("$(leader.address) $(rank)/$(nodes)", 1, "10.0.0.1 1/2"),
        ("$(members.http)", 0, "10.0.0.1:20000,[2001:db8::2]:20000"),
        ("$(members.addresses)", 0, "10.0.0.1,2001:db8::2"),
        ("$(gpus.count) of $(gpus.total): $(gpus.ids)", 1, "2 of 3: GPU-2,GPU-3"),
        ("$(model.path) as $(model.name)", 0, "/models/m as llama"),
        (
            "$(launch.dir)/files/a of $(launch.id) $(replica)",
            1,
            "/r/launches/x/files/a of x-0-abc x-0",
        ),
        ("$(bootstrap.interface)", 0, "eno1"),
        ("$$(node.address) costs $5 ${HOME} {x}", 0, "$(node.address) costs $5 ${HOME} {x}"),
        ("$$$(rank)", 0, "$$(rank)"),
    ],
)
def test_a_reference_has_this_ranks_value(text: str, rank: int, expected: str) -> None:
    assert references.references(request(), rank).expand(text) == expected


def test_gpus_that_adapters_cannot_share_evenly_have_no_mapping() -> None:
    fabric = Fabric("x", "ib", (Adapter("mlx5_0"), Adapter("mlx5_1", 2)))
    for gpus, expected in ((4, "mlx5_0:1:2,mlx5_1:2:2"), (3, "")):
        host = Host("gpu-a", "10.0.0.1", (Gpu("GPU-1"),) * gpus, fabric=fabric)
        refs = references.references(replace(request(), hosts=(host, host)), 0)
        assert refs.values["fabric.adapter_pes"] == expected


@given(st.text().filter(lambda text: "$(" not in text))
def test_text_without_a_reference_is_untouched(text: str) -> None:
    assert references.references(request(), 0).expand(text) == text


def test_an_unknown_reference_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(
        ValueError, match=r"\$\(port.htp\) is not known; did you mean \$\(port.http"
    ):
        references.references(request(), 0).expand("$(port.htp)")


def test_a_reference_without_a_value_is_an_error_and_never_an_empty_text() -> None:
    with pytest.raises(ValueError, match=r"\$\(bootstrap.interface\) has no value on node gpu-b"):
        references.references(request(), 1).expand("$(bootstrap.interface)")


def test_an_open_reference_is_an_error() -> None:
    with pytest.raises(ValueError, match="not known"):
        references.references(request(), 0).expand("$(node.address")


def test_every_place_of_a_profile_is_looked_at() -> None:
    profile = EngineProfile(
        "p",
        "command",
        args=("$(a)",),
        command=("$(b)",),
        env={"X": "$(c)"},
        sidecars=(Sidecar("s", ("$(d)",), {"Y": "$(e)"}),),
        files=(RenderedFile("f", "$(f)"),),
    )
    found = references.check(profile, ("http",))
    assert [(p.path, p.message) for p in found] == [
        ("args[0]", "$(a) is not known"),
        ("command[0]", "$(b) is not known"),
        ("env.X", "$(c) is not known"),
        ("sidecars[0].argv[0]", "$(d) is not known"),
        ("sidecars[0].env.Y", "$(e) is not known"),
        ("files[0].content", "$(f) is not known"),
    ]


def test_every_documented_reference_has_a_value_on_a_whole_node() -> None:
    whole = Host(
        "gpu-a",
        "10.0.0.1",
        (Gpu("GPU-1"),),
        interface="eno1",
        model_path="/m",
        launch_dir="/l",
        fabric=Fabric("f", "roce", (Adapter("mlx5_0"),), 3, "eno2", "10.1.0.1"),
    )
    profile = EngineProfile("p", "command", served_names=("m",))
    refs = references.references(LaunchRequest("x", "x-0", profile, (whole,), {"http": 1}), 0)
    assert set(references.NAMES) <= set(refs.values)
    assert [name for name in references.NAMES if not refs.values[name]] == []


SECRETS = EngineProfile(
    "p",
    "command",
    nodes=2,
    args=("--tls", "$(launch.dir)/secrets/tls.key", "$$(launch.dir)/secrets/literal"),
    leader=RoleOverride(args=("--admin=$(launch.dir)/secrets/admin",)),
    worker=RoleOverride(env={"JOIN": "$(launch.dir)/secrets/join"}),
    secrets={"HF_TOKEN": "reconciler:hf_token", "OTHER": "/etc/other"},
    sidecars=(Sidecar("side", argv=("x", "$(launch.dir)/secrets")),),
    files=(
        RenderedFile("conf", 'key: "$(launch.dir)/secrets/conf_1", in $(launch.dir)/secrets/.'),
    ),
)


def test_a_rank_gets_the_secrets_that_its_own_texts_name() -> None:
    assert references.secret_names(SECRETS, 0) == ("admin", "conf_1", "hf_token", "tls.key")
    assert references.secret_names(SECRETS, 1) == ("conf_1", "hf_token", "join", "tls.key")
    assert list(references.check_secrets(SECRETS)) == []


@pytest.mark.parametrize("tail", ["../x", "a/b", "Key", "key_", "..", ".key", "k" * 64])
def test_a_path_under_the_secrets_that_is_none_is_found(tail: str) -> None:
    profile = EngineProfile("p", "command", env={"A": f"$(launch.dir)/secrets/{tail}"})
    [problem] = references.check_secrets(profile)
    assert problem.path == "env.A"
    assert f"$(launch.dir)/secrets/{tail} " in problem.message


def test_a_text_of_a_million_references_is_told_in_a_few_findings() -> None:
    args = tuple("".join(f"$(x{n})$(launch.dir)/secrets/A{n}" for n in range(1000)) for _ in "abc")
    profile = EngineProfile("p", "command", args=args)
    assert len(references.check(profile, ("http",))) == references.MAX_PROBLEMS
    assert len(list(references.check_secrets(profile))) == references.MAX_PROBLEMS
    same = EngineProfile("p", "command", args=("$(x)" * 8000, "$(x)"))
    assert [p.path for p in references.check(same, ("http",))] == ["args[0]", "args[1]"]
