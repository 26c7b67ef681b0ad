"""Counts in sentences go by what they count."""

from __future__ import annotations

from reconciler.core.words import one_or, plural, share
from tests.core.ask_plan import hold, planned
from tests.core.build_world import World


def test_one_thing_or_several() -> None:
    assert [plural(n, "GPU") for n in (0, 1, 2)] == ["0 GPUs", "1 GPU", "2 GPUs"]
    assert [share(n, n, "node") for n in (1, 2)] == ["1 of 1 node", "2 of 2 nodes"]
    assert [one_or(n, "is", "are") for n in (0, 1, 2)] == ["are", "is", "are"]


def test_a_refusal_of_one_node_with_one_gpu_free_reads_as_a_sentence() -> None:
    world = World().node("n1", gpus=2).profile("llama", gpus_per_node=2).placement("chat", "llama")
    world = world.profile("other", gpus_per_node=1).placement("rest", "other")
    world = world.launch("rest-0", on="n1")
    assert hold(planned(world), "replica chat-0").message == (
        "0 of 1 node fits: 1 has 1 free GPU of 2; it needs 2 GPUs"
    )
