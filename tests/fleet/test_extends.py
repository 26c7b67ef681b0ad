"""`extends`: maps merge, lists replace, and the place of a mistake is where it is written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reconciler.core.model import Profile
from reconciler.fleet.extends import merged
from reconciler.fleet.limits import Limits
from tests.fleet.repos import BASE, desired, loaded

MODEL = "kind: Model\nname: llama\npath: /models/llama\n"


def catalog(*documents: str) -> dict[str, str]:
    kept = {path: text for path, text in BASE.items() if path != "placements/all.yaml"}
    return {**kept, "catalog/all.yaml": "---\n".join([MODEL, *documents])}


def profile(*documents: str) -> Profile:
    return desired(catalog(*documents)).profiles["x"]


GRAND = """\
kind: Profile
name: grand
abstract: true
engine: vllm
model: llama
env: {A: grand, B: grand}
needs: {shm_gib: 1, ram_gib: 1}
args: [--max-model-len, 1]
labels: {tier: gold}
"""
BASE_OF_X = """\
kind: Profile
name: base
abstract: true
extends: grand
env: {B: base, C: base}
needs: {ram_gib: 2}
"""
X = """\
kind: Profile
name: x
extends: base
env: {C: x}
args: [--max-model-len, 3]
"""


def test_maps_merge_at_every_depth_and_lists_are_replaced() -> None:
    found = profile(GRAND, BASE_OF_X, X)
    assert found.env == {"A": "grand", "B": "base", "C": "x"}
    assert (found.needs.shm_gib, found.needs.ram_gib) == (1, 2)
    assert found.args == ("--max-model-len", "3")
    assert found.labels == {"tier": "gold"}
    assert found.name == "x"


def test_the_order_of_documents_and_files_decides_nothing() -> None:
    assert profile(X, BASE_OF_X, GRAND) == profile(GRAND, BASE_OF_X, X)


def test_abstract_is_not_inherited_and_abstract_profiles_are_not_in_the_fleet() -> None:
    whole = desired(catalog(GRAND, BASE_OF_X, X))
    assert set(whole.profiles) == {"x"}


def test_a_profile_that_is_whole_can_be_extended_too() -> None:
    whole = desired(catalog(GRAND.replace("abstract: true\n", ""), BASE_OF_X, X))
    assert set(whole.profiles) == {"grand", "x"}


def test_a_mistake_is_shown_where_it_is_written_not_where_it_is_inherited() -> None:
    wrong = GRAND.replace("{A: grand, B: grand}", "{A: grand, LD_PRELOAD: /x}")
    findings = loaded(catalog(wrong, BASE_OF_X, X)).findings
    assert [(f.line, f.path) for f in findings] == [(10, "env.LD_PRELOAD")]


def test_a_chain_that_cannot_be_resolved_is_told_once_at_its_cause() -> None:
    findings = loaded(catalog(BASE_OF_X, X)).findings
    assert [f.subject for f in findings] == ["profile base"]


def test_what_many_profiles_inherit_from_a_large_one_is_bounded() -> None:
    large = "kind: Profile\nname: large\nabstract: true\nengine: vllm\nmodel: llama\nenv:\n"
    large += "".join(f"  V{i}: x\n" for i in range(400))
    many = [f"kind: Profile\nname: x{i}\nextends: large\n" for i in range(50)]
    found = loaded(catalog(large, *many), Limits(total_values=10_000))
    assert any("profiles inherit more than 10000 values" in f.message for f in found.findings)


VALUES = st.recursive(
    st.integers() | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
MAPS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@given(MAPS, MAPS, MAPS)
def test_merging_is_associative_and_changes_nothing_that_it_merges(
    a: dict[str, object], b: dict[str, object], c: dict[str, object]
) -> None:
    before = repr((a, b, c))
    left, right = merged(merged(a, b), c), merged(a, merged(b, c))
    if not _clash(a, b, c):
        assert left == right
    assert merged(a, {}) == a
    assert repr((a, b, c)) == before


def _clash(*maps: dict[str, object]) -> bool:
    """A map here and no map there under one key: then the order of merging may decide."""
    keys = {key for one in maps for key in one}
    for key in keys:
        values = [one[key] for one in maps if key in one]
        nested = [v for v in values if isinstance(v, dict)]
        if nested and (len(nested) < len(values) or _clash(*nested)):
            return True
    return False
