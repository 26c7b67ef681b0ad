"""Nothing that a pull request can contain makes validation crash, hang, grow or act."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pygit2
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pygit2.enums import FileMode

from reconciler.fleet.findings import as_github, as_json, as_text
from reconciler.fleet.load import Loaded
from reconciler.fleet.source import Source
from tests.fleet.repos import BASE, SIGNATURE, loaded, write
from tests.fleet.test_readers import VALID, VALUES, edited
from tests.fleet.test_strictyaml import HOSTILE

SLOW = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))

PIECES = """\
kind Fleet Node Model Profile Placement name version id extends abstract model engine vllm gpus
class count args env replicas pool profile nodes rollout fabrics adapters files content path secrets
x-a &a *a << : - ? !!set !!str --- ... { } [ ] , ' " # yes ~ 0x1 1e3 2026-12-01 | > @ ` -1 0 8 true
é \u200b \ufeff $(node.address) $$(
"""
WORDS = st.sampled_from(
    (*PIECES.split(), "\n", "\n  ", "\n    ", "\t", "\u2028", "%YAML 1.2", ": ", "- ", "? ")
)
YAMLISH = st.lists(st.one_of(WORDS, st.text(max_size=3)), max_size=40).map("".join)
BYTES = st.one_of(st.binary(max_size=200), YAMLISH.map(str.encode))
KINDS = st.sampled_from(sorted(VALID))


def check(found: Loaded) -> None:
    """What holds for every answer."""
    bad = [finding for finding in found.findings if not finding.warning]
    assert (found.desired is None) == bool(bad)
    for text in (as_text(found.findings), as_github(found.findings), as_json(found.findings)):
        assert all(line.isprintable() for line in text.splitlines())


@SLOW
@given(BYTES)
def test_any_bytes_give_findings_or_a_fleet(raw: bytes) -> None:
    check(loaded({**BASE, "catalog/x.yaml": raw}))
    check(loaded({"fleet.yaml": raw}))


@SLOW
@given(st.data())
def test_any_change_of_any_document_gives_findings_or_a_fleet(data: st.DataObject) -> None:
    documents = [data.draw(edited(data.draw(KINDS))) for _ in range(data.draw(st.integers(1, 4)))]
    text = yaml.safe_dump_all(documents, allow_unicode=True)
    check(loaded({**BASE, "catalog/x.yaml": text}))


@SLOW
@given(KINDS, VALUES, st.text(max_size=8))
def test_any_value_under_any_kind_gives_findings_or_a_fleet(
    kind: str, value: object, key: str
) -> None:
    body = yaml.safe_dump({"kind": kind, "name": "x", key: value}, allow_unicode=True)
    check(loaded({**BASE, "placements/x.yaml": body}))


@SLOW
@given(st.data())
def test_valid_documents_that_do_not_belong_together_give_findings(data: st.DataObject) -> None:
    """All cross checks see odd combinations: every one of the valid documents, with other names."""
    documents = []
    for kind, valid in VALID.items():
        for _ in range(data.draw(st.integers(0, 2))):
            names = st.sampled_from(["a", "b", "p", "chat", "llama-h100", "llama", "gpu-a"])
            documents.append({**valid, "name": data.draw(names), "kind": kind})
    check(loaded({**BASE, "catalog/x.yaml": yaml.safe_dump_all(documents)}))


NAMES = st.one_of(
    st.sampled_from(
        [
            "nodes",
            "catalog",
            "placements",
            "fleet.yaml",
            "x.yaml",
            "X.yaml",
            "x.yml",
            "x.YAML",
            "Nodes",
        ]
    ),
    st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=6),
)
LEAVES = st.tuples(
    st.sampled_from([FileMode.BLOB, FileMode.BLOB_EXECUTABLE, FileMode.LINK, FileMode.COMMIT]),
    st.one_of(BYTES, st.sampled_from([b"/etc/passwd", b"../../x", b"kind: Model\nname: x\n"])),
)
TREES = st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, max_size=4), max_leaves=8)


@SLOW
@given(st.dictionaries(NAMES, TREES, max_size=5))
def test_any_tree_gives_findings_or_a_fleet(tree: Mapping[str, object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        repo = pygit2.init_repository(folder, bare=True)
        root = _write(repo, tree)
        commit = repo.create_commit(None, SIGNATURE, SIGNATURE, "x", root, [])
        source = Source.open(folder, cache_dir=Path(folder) / "cache", timeout_s=5)
        found = source.check(source.resolve(str(commit)))
        check(found)
        assert "root:" not in as_text(found.findings), "a link was followed"


def _write(repo: pygit2.Repository, tree: Mapping[str, object]) -> pygit2.Oid:
    builder = repo.TreeBuilder()
    for name, item in tree.items():
        try:
            name.encode()
            if isinstance(item, Mapping):
                builder.insert(name, _write(repo, item), FileMode.TREE)
            else:
                mode, raw = item  # type: ignore[misc]
                oid = pygit2.Oid(hex="1" * 40) if mode is FileMode.COMMIT else repo.create_blob(raw)
                builder.insert(name, oid, mode)
        except (ValueError, pygit2.GitError):
            continue  # git itself refuses the name: no tree can hold it
    return builder.write()


LIMIT_MB = 500

CHILD = """
import resource, sys
from pathlib import Path
from reconciler.fleet.source import Source
from reconciler.fleet.findings import as_text
source = Source.open(sys.argv[1], cache_dir=Path(sys.argv[1]) / "c", timeout_s=5)
text = as_text(source.check_worktree().findings)
usage = resource.getrusage(resource.RUSAGE_SELF)
print(usage.ru_maxrss // 1024, usage.ru_utime + usage.ru_stime)
print(text[:4000])
"""


def _measured(folder: Path) -> tuple[int, float, str]:
    """Megabytes and seconds of processor time that a process of its own takes to validate."""
    command = [sys.executable, "-c", CHILD, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    first, text = done.stdout.split("\n", 1)
    megabytes, seconds = first.split()
    return int(megabytes), float(seconds), text


LONG = "a" * 200_000

WHOLE = {
    "every hostile text at once": {f"catalog/{i}.yaml": t for i, t in enumerate(HOSTILE.values())},
    "as many values as are allowed": {
        f"catalog/{i}.yaml": "x: [" + "a," * 19_000 + "]" for i in range(60)
    },
    "many aliases of one large map": {
        f"catalog/{i}.yaml": "x-a: &a {"
        + ",".join(f"k{n}: v" for n in range(400))
        + "}\nx-b: ["
        + "*a," * 40
        + "]\nkind: Model\nname: m"
        for i in range(60)
    },
    "a finding in every one of many lines": {
        "catalog/x.yaml": "".join(
            f"kind: Profile\nname: x{i}\nextends: y\n---\n" for i in range(5000)
        )
    },
    "many documents that do not fit": {
        "catalog/x.yaml": "".join(f"kind: Model\nname: x{i}\nb: 1\n---\n" for i in range(5000))
    },
    "one name defined again and again": {"catalog/x.yaml": "kind: Model\nname: x\n---\n" * 5000},
    "names that are all near each other": {
        "placements/x.yaml": "".join(
            f"kind: Placement\nname: p{i}\nprofile: llama-h10{i}\n---\n" for i in range(3000)
        ),
        "catalog/x.yaml": "".join(
            f"kind: Profile\nname: llama-h20{i}\nabstract: true\n---\n" for i in range(3000)
        ),
    },
    "every placement pinned to every node": {
        "nodes/x.yaml": "---\n".join(
            f"kind: Node\nname: n{i}\naddress: 10.1.{i // 250}.{i % 250}\npool: p\n"
            f"labels: {{l{i}: x}}\ngpus: {{class: x, count: 8}}\n"
            for i in range(900)
        ),
        "placements/x.yaml": "---\n".join(
            f"kind: Placement\nname: p{i}\nprofile: llama-h100\nselector: {{l{i}: x}}\n"
            f"nodes: [{','.join(f'n{n}' for n in range(0, 900, 60))}]\n"
            for i in range(1500)
        ),
    },
    "patterns that look for trouble": {
        "catalog/x.yaml": f'kind: Profile\nname: {LONG}!\nmodel: "{LONG}/{LONG}!"\n'
        f'engine_version: "{"1" * 100_000}!"\nargs: ["{LONG}"]\nenv: {{A: "{LONG}"}}\n'
        f'runtime: {{kind: container, image: "{LONG}!"}}\n'
    },
    "arguments that a flag table must search": {
        "catalog/x.yaml": "kind: Model\nname: x\npath: /m\n---\nkind: Profile\nname: x\nmodel: x\n"
        "engine: vllm\nargs:\n" + "".join(f"  - --max-model-le{i}\n" for i in range(1000))
    },
    "wrong arguments by the hundred thousand": {
        "catalog/x.yaml": "x-a: &a ["
        + ",".join(f"--max-model-le{i}" for i in range(500))
        + "]\nkind: Model\nname: x\npath: /m\n"
        + "".join(
            f"---\nkind: Profile\nname: x{i}\nmodel: x\nengine: vllm\nargs: ["
            + ",".join(f"--max-model-l{i}{n}" for n in range(500))
            + "]\n"
            for i in range(300)
        )
    },
    "JSON that nests without end": {
        "catalog/x.yaml": "kind: Model\nname: x\npath: /m\n---\nkind: Profile\nname: x\nmodel: x\n"
        "engine: vllm\nargs: [--speculative-config, '"
        + '{"a":' * 12_000
        + "', '"
        + "[{" * 30_000
        + "']\n"
    },
    "references without end": {
        "catalog/x.yaml": "kind: Model\nname: x\npath: /m\n---\nkind: Profile\nname: x\nmodel: x\n"
        "engine: vllm\nargs: ['" + "$(" * 30_000 + "']\n"
    },
    "inheritance of a large base": {
        "catalog/x.yaml": "kind: Profile\nname: b\nabstract: true\nenv:\n"
        + "".join(f"  V{i}: x\n" for i in range(450))
        + "".join(f"---\nkind: Profile\nname: c{i}\nextends: b\n" for i in range(5000))
    },
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_hostile_repo_takes_bounded_memory_and_time(name: str, tmp_path: Path) -> None:
    write(tmp_path, {**BASE, **WHOLE[name]})
    megabytes, seconds, text = _measured(tmp_path)
    assert megabytes < LIMIT_MB, text
    assert seconds < 60, text
