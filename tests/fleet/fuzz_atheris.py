"""Coverage-guided fuzzing of what a pull request can contain: `make fuzz`, not in `make test`.

    python -m tests.fleet.fuzz_atheris CORPUS [libFuzzer options, -max_total_time=300]

The first byte chooses where the rest is put: as a file of its own, as fleet.yaml, among the valid
documents, or spliced into one of them. What must hold: findings or a fleet, printable messages, and
whatever is read without a finding is what PyYAML's safe loader reads in it. A crash is written to
the working directory and run again by naming the file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris  # type: ignore[import-not-found,unused-ignore]

with atheris.instrument_imports(include=["reconciler.fleet", "reconciler.core", "engines"]):
    from reconciler.fleet.limits import Limits
    from reconciler.fleet.strictyaml import parse
    from tests.fleet.repos import BASE, loaded

import yaml

from reconciler.fleet.findings import Finding, as_github, as_json, as_text

ROOT = Path(__file__).resolve().parents[2]
WORDS = Path(__file__).with_name("fuzz.dict")


def seeds() -> list[bytes]:
    """Valid and broken documents that the repository has anyway."""
    files = [
        *ROOT.glob("fleet-repo-example/**/*.yaml"),
        *ROOT.glob("tests/fleet/recipes/**/*.yaml"),
        *ROOT.glob("tests/invalid/cases/*.txt"),
    ]
    return [bytes([number % 4]) + path.read_bytes() for number, path in enumerate(sorted(files))]


def check(findings: tuple[Finding, ...]) -> None:
    """What may be said of any input."""
    for text in (as_text(findings), as_github(findings), as_json(findings)):
        assert all(line.isprintable() for line in text.splitlines()), "a message is not printable"


def same_as_pyyaml(raw: bytes) -> None:
    """A document without a finding means to PyYAML what it means to us."""
    parsed = parse("x.yaml", raw, Limits())
    if parsed.findings or any(document.odd for document in parsed.documents):
        return
    theirs = [d for d in yaml.load_all(raw.decode("utf-8-sig"), yaml.CSafeLoader) if d is not None]
    ours = [document.data for document in parsed.documents]
    assert ours == theirs, f"{ours!r} is {theirs!r} to PyYAML"


def one(data: bytes) -> None:
    """One input."""
    mode, raw = (data[0] % 4 if data else 0), data[1:]
    if mode == 0:
        same_as_pyyaml(raw)
        found = loaded({**BASE, "catalog/x.yaml": raw})
    elif mode == 1:
        found = loaded({"fleet.yaml": raw})
    elif mode == 2:
        found = loaded({**BASE, "nodes/x.yaml": raw, "placements/x.yaml": raw})
    else:
        name = sorted(BASE)[len(raw) % len(BASE)]
        body = BASE[name].encode()
        cut = raw[0] * len(body) // 256 if raw else 0
        found = loaded({**BASE, name: body[:cut] + raw[1:] + body[cut:]})
    bad = [finding for finding in found.findings if not finding.warning]
    assert (found.desired is None) == bool(bad)
    check(found.findings)


def main(argv: list[str]) -> None:
    """Run until libFuzzer's limits end it."""
    corpus = Path(argv[1])
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number:03}").write_bytes(seed)
    fixed = [f"-dict={WORDS}", "-timeout=10", "-rss_limit_mb=700", "-max_len=8192"]
    atheris.Setup([argv[0], *fixed, *argv[1:]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
