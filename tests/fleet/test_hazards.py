"""What YAML and git did to other people's repos, one hazard each, by the name under which it is
known: what must be refused is, in words that say why, and what is harmless is not.

The facts (what PyYAML, jsonschema and libgit2 make of each text) were read from these libraries.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pygit2.enums import FileMode

from reconciler.fleet import schemas
from reconciler.fleet.findings import as_text
from reconciler.fleet.limits import Limits
from reconciler.fleet.load import Loaded
from reconciler.fleet.source import Source
from tests.fleet.repos import BASE, desired, loaded
from tests.invalid.repo_file import BASE as VALID
from tests.invalid.repo_file import Blob, commit

PROFILE = "kind: Profile\nname: x\nmodel: llama\nengine: vllm\ngpus_per_node: 8\n"
PLACEMENT = "kind: Placement\nname: x\nprofile: llama-h100\npool: h100\n"
POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


def bomb() -> str:
    """Nine levels of nine aliases: 306 bytes, 387 million values."""
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    for above, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{','.join([f'*{above}'] * 9)}]")
    return "\n".join(lines) + "\n"


REFUSED: list[tuple[str, str | bytes, str]] = [
    ("yaml-duplicate-keys", PLACEMENT + "replicas: 2\nreplicas: 0\n", "'replicas' is given twice"),
    ("yaml-duplicate-keys", PROFILE + "env:\n  A: '0'\n  X: y\n  A: '1'\n", "'A' is given twice"),
    (
        "yaml-duplicate-keys",
        "x-a: &a {A: b}\nx-b: &b {C: d}\n" + PROFILE + "env:\n  <<: *a\n  <<: *b\n",
        "'<<' is given twice",
    ),
    ("yaml-numbers-as-text", PROFILE + "engine_version: 1.10\n", "is a number with a fraction"),
    ("yaml-numbers-as-text", PROFILE + "engine_version: 0362525\n", "engine_version"),
    ("yaml-numbers-as-text", PLACEMENT + "replicas: 010\n", "replicas"),
    ("yaml-numbers-as-text", PLACEMENT + "replicas: 1e3\n", "replicas"),
    ("yaml-numbers-as-text", PROFILE + "args: [--max-model-len, 32_768]\n", "args[1]"),
    ("yaml-numbers-as-text", PLACEMENT + "replicas: 12345678901234567890\n", "replicas"),
    ("yaml-float-passes-integer-schema", PROFILE + "parallel: {tp: 8.0}\n", "parallel.tp"),
    ("yaml-float-passes-integer-schema", PROFILE + "start_timeout_s: 1.0e+3\n", "start_timeout_s"),
    ("yaml-bare-equals-and-tags", PROFILE + "env: {A: =}\n", "env.A"),
    ("yaml-bare-equals-and-tags", PROFILE + "env: {A: <<}\n", "env.A"),
    (
        "yaml-bare-equals-and-tags",
        "compute_capability: >=9.0\n",
        "quote a value that starts with >",
    ),
    ("yaml-bare-equals-and-tags", "a: !!python/object/apply:os.system [id]\n", "is not allowed"),
    ("yaml-bare-equals-and-tags", "pools: !!set {a, b}\n", "is not allowed"),
    ("yaml-bare-equals-and-tags", "x: !!binary aGk=\n", "is not allowed"),
    ("yaml-bare-equals-and-tags", PLACEMENT + "replicas: .inf\n", "replicas"),
    ("yaml-bom-nbsp-lineseps", b"a: 1\n\xef\xbb\xbfb: 2\n", "were two files joined?"),
    ("yaml-bom-nbsp-lineseps", "kind: Placement # \u2028replicas: 0\n", "U+2028"),
    ("yaml-bom-nbsp-lineseps", "kind: Placement # \u0085replicas: 0\n", "U+0085"),
    ("yaml-bom-nbsp-lineseps", PLACEMENT + "rep\u200blicas: 0\n", "rep\\u200blicas"),
    ("yaml-bom-nbsp-lineseps", PROFILE + "needs:\n\u00a0\u00a0shm_gib: 1\n", "\\xa0\\xa0shm_gib"),
    ("yaml-bom-nbsp-lineseps", b"name: caf\xe9\n", "is not UTF-8"),
    ("yaml-bom-nbsp-lineseps", "a: b\n".encode("utf-16"), "is not UTF-8"),
    ("yaml-bom-nbsp-lineseps", "a:\n\tb: 1\n", "indent with spaces"),
    ("yaml-anchors-bomb-cycle-depth", bomb(), "aliases expanded"),
    ("yaml-anchors-bomb-cycle-depth", "a: &a [*a]\n", "it would hold itself"),
    ("yaml-anchors-bomb-cycle-depth", f"a: {'[' * 3000}{']' * 3000}\n", "nests so far"),
    ("git-lfs-pointer", POINTER, "Git LFS pointer"),
]


@pytest.mark.parametrize(
    ("text", "said"), [(text, said) for _, text, said in REFUSED], ids=[h for h, _, _ in REFUSED]
)
def test_is_refused_in_words_and_at_once(text: str | bytes, said: str) -> None:
    loaded({"fleet.yaml": "["})  # what is imported late is imported now
    began = time.process_time()
    found = loaded({**BASE, "catalog/x.yaml": text, "catalog/y.yaml": "kind: Modell\n"})
    assert time.process_time() - began < 1.0
    assert found.desired is None
    assert said in as_text(found.findings)
    assert "catalog/y.yaml:1" in as_text(found.findings), "one file does not hide the others"


def test_yaml_duplicate_keys_a_merge_with_an_override_is_none() -> None:
    text = "x-b: &b {A: '1', B: '2'}\n" + PROFILE + "parallel: {tp: 8}\nenv:\n  <<: *b\n  A: '9'\n"
    assert desired({**BASE, "catalog/x.yaml": text}).profiles["x"].env == {"A": "9", "B": "2"}


def test_yaml_bom_at_the_start_is_harmless() -> None:
    text = b"\xef\xbb\xbf" + PLACEMENT.encode()
    assert "x" in desired({**BASE, "placements/x.yaml": text}).placements


def test_yaml_numbers_in_args_arrive_as_written() -> None:
    text = (
        PROFILE + "parallel: {tp: 8}\nargs: [--max-model-len, 32768, --seed, '010', --x, '0.90']\n"
    )
    args = desired({**BASE, "catalog/x.yaml": text}).profiles["x"].args
    assert args == ("--max-model-len", "32768", "--seed", "010", "--x", "0.90")


# --- Trees --------------------------------------------------------------------------------------


def tree(folder: Path, files: dict[str, Blob]) -> Loaded:
    """What validation says of a commit of these files over a valid fleet."""
    valid = {p.relative_to(VALID).as_posix(): Blob(p.read_bytes()) for p in VALID.rglob("*.yaml")}
    revision = commit(folder / "repo.git", {**valid, **files})
    source = Source.open(str(folder / "repo.git"), cache_dir=folder / "cache", timeout_s=10)
    return source.check(source.resolve(revision))


def test_git_symlinks_are_refused_by_name_and_never_followed(tmp_path: Path) -> None:
    targets = ("/etc/passwd", "../../outside.yaml", "../shared/base.yaml", "l3.yaml", "../shared")
    links = {f"catalog/l{n}.yaml": t for n, t in enumerate(targets)}
    files = {path: Blob(target.encode(), FileMode.LINK) for path, target in links.items()}
    found = tree(tmp_path, {**files, "shared/base.yaml": Blob(b"kind: Model\nname: linked\n")})
    text = as_text(found.findings)
    assert found.desired is None
    assert all(f"{path}: it is a symbolic link" in text for path in links)
    assert "root:" not in text


def test_git_symlinks_elsewhere_in_the_repo_do_not_stop_it(tmp_path: Path) -> None:
    found = tree(tmp_path, {"docs/broken": Blob(b"/nowhere", FileMode.LINK)})
    assert found.desired is not None, as_text(found.findings)


def test_git_lfs_pointers_for_the_whole_repo_leave_no_fleet(tmp_path: Path) -> None:
    paths = [p.relative_to(VALID).as_posix() for p in VALID.rglob("*.yaml")]
    found = tree(tmp_path, {path: Blob(POINTER.encode()) for path in paths})
    assert found.desired is None
    assert as_text(found.findings).count("Git LFS pointer") == len(paths)


def test_git_case_and_unicode_twins_are_told_with_both_paths(tmp_path: Path) -> None:
    def model(name: str) -> Blob:
        return Blob(f"kind: Model\nname: {name}\npath: /m\n".encode())

    files = {
        "catalog/LiteLLM/p.yaml": model("a"),
        "catalog/litellm/p.yaml": model("b"),
        "catalog/caf\u00e9.yaml": model("c"),
        "catalog/cafe\u0301.yaml": model("d"),
        "catalog/y.yml": model("e"),
        "catalog/z.yaml": model("e"),
    }
    text = as_text(tree(tmp_path, files).findings)
    assert "catalog/litellm: it differs from 'catalog/LiteLLM' only by case" in text
    assert "catalog/caf\u00e9.yaml: it differs from 'catalog/cafe\\u0301.yaml'" in text
    assert "catalog/z.yaml:2:7: model e: name: the name is defined twice: here and at" in text
    assert "catalog/y.yml:1" in text, ".yml is read like .yaml"


def test_git_signatures_are_not_verified_so_no_setting_says_that_they_are() -> None:
    """An expired key must not change a fleet; what is not offered cannot fail so."""
    for kind in schemas.KINDS:
        names = set(schemas.schema(kind)["properties"])
        assert not {n for n in names if any(w in n for w in ("sign", "verif", "gpg", "trust"))}


def test_a_repo_of_more_findings_than_a_person_reads_is_told_so_and_refused() -> None:
    many = "---\n".join(f"kind: Placement\nname: p{n}\nprofile: none\n" for n in range(50))
    broken = "---\n".join(f"kind: Placement\nname: b{n}\nreplica: 1\n" for n in range(50))
    for text in (many, broken):
        found = loaded({**BASE, "placements/x.yaml": text}, Limits(all_findings=20))
        assert found.desired is None
        assert 20 <= len(found.findings) <= 24, "the last document may have a few"
        assert any("has 20 findings or more" in f.message for f in found.findings)
        whole = loaded({**BASE, "placements/x.yaml": text})
        assert len(whole.findings) >= 50
        assert not any("or more" in f.message for f in whole.findings)


def test_more_warnings_than_are_looked_through_hide_no_error() -> None:
    texts = "---\n".join(f"kind: Model\nname: m{n}\nserved_names: [same]\n" for n in range(30))
    files = {**BASE, "catalog/m.yaml": texts}
    assert loaded(files).desired is not None, "there are only warnings"
    assert loaded(files, Limits(all_findings=10)).desired is None


def test_a_document_of_nothing_but_mistakes_is_told_a_few_hundred() -> None:
    keys = "".join(f"unknown{n}: x\n" for n in range(5000))
    found = loaded({**BASE, "placements/x.yaml": PLACEMENT + keys})
    assert len(found.findings) == Limits().findings
