"""Files in, a `Desired` out, or every finding at once: the fleet repo's one straight line.

    bytes ─▶ documents (strictyaml) ─▶ values (schemas) ─▶ extends ─▶ cross checks ─▶ Desired

Pure: files, limits and the revision come in as arguments, so a revision, a working tree and a test
are read by the same code. Nothing that a file holds raises; only findings tell of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import engines
from reconciler.core.changes import Reason
from reconciler.core.model import Desired, Revision
from reconciler.fleet import schemas
from reconciler.fleet.cache import DocumentCache
from reconciler.fleet.checks import check
from reconciler.fleet.explain import explain
from reconciler.fleet.extends import Cycle, TooLong, chain, merged, size
from reconciler.fleet.findings import Finding, dotted, nearest, ordered, quoted
from reconciler.fleet.limits import Limits
from reconciler.fleet.memory import Known, Memory
from reconciler.fleet.repo import Entry, Repo, SourceFile, safe_name
from reconciler.fleet.strictyaml import Document, Parsed, parse

T = TypeVar("T")


@dataclass(frozen=True)
class Loaded:
    """What a set of files says."""

    desired: Desired | None
    """None where a finding that is not a warning stands against it."""
    findings: tuple[Finding, ...]


def load(
    files: Sequence[SourceFile],
    revision: Revision,
    *,
    limits: Limits | None = None,
    found: Iterable[Finding] = (),
    memory: Memory | None = None,
    cache: DocumentCache | None = None,
) -> Loaded:
    """The fleet that `files` describe. `found`: what was already wrong with the tree.

    `memory` and `cache` are filled and change no result; to write the cache is the caller's.
    """
    limits = limits or Limits()
    findings = list(found)
    repo = _repo(files, limits, memory, cache)
    repo.blind = any(not f.warning for f in findings)
    _read_all(repo, files, findings)
    _resolve_profiles(repo, findings)
    _one_fleet(repo, findings)
    _check(repo, findings)
    desired = None
    if not any(not f.warning for f in findings):
        desired = _desired(repo, revision)
    return Loaded(desired, ordered(findings))


def _check(repo: Repo, findings: list[Finding]) -> None:
    """What documents say about each other, as far as so many findings go."""
    most = repo.limits.all_findings
    findings += islice(check(repo), max(0, most - len(findings)))
    if len(findings) >= most:
        message = f"the repo has {most} findings or more, and no others were looked for"
        hint = "mend these first"
        findings.append(_file_finding(findings[-1].file, message, hint, Reason.PARSE_FAILED))


def _repo(
    files: Sequence[SourceFile],
    limits: Limits,
    memory: Memory | None,
    cache: DocumentCache | None,
) -> Repo:
    named = {file.path: file for file in files}
    return Repo(named, limits, memory or Memory(), cache or DocumentCache())


def inventory(
    files: Sequence[SourceFile],
    revision: Revision,
    *,
    limits: Limits | None = None,
    found: Iterable[Finding] = (),
    memory: Memory | None = None,
    cache: DocumentCache | None = None,
) -> Loaded:
    """Only which nodes there are: the Fleet and Node documents, whatever is wrong with the rest.

    Enough to look at the nodes under a revision that does not validate; never to act on.
    """
    limits = limits or Limits()
    findings = list(found)
    repo = _repo(files, limits, memory, cache)
    _read_all(repo, files, findings)
    repo.entries = {kind: dict(repo.of(kind)) for kind in ("Fleet", "Node")}
    _one_fleet(repo, findings)
    _check(repo, findings)
    findings = [f for f in findings if _concerns_nodes(f)]
    good = not any(not f.warning for f in findings) and len(repo.of("Fleet")) == 1
    return Loaded(_desired(repo, revision) if good else None, ordered(findings))


def _concerns_nodes(finding: Finding) -> bool:
    folders, name = finding.file.split("/")[:-1], finding.file.split("/")[-1]
    about = finding.subject.split(" ")[0]
    return name == "fleet.yaml" or "nodes" in folders or about in ("fleet", "node")


def _desired(repo: Repo, revision: Revision) -> Desired:
    (fleet,) = repo.values("Fleet").values()
    return Desired(
        revision=revision,
        fleet=fleet,
        nodes=_sorted(repo.values("Node")),
        models=_sorted(repo.values("Model")),
        profiles=_sorted(repo.values("Profile")),
        placements=_sorted(repo.values("Placement")),
    )


def _sorted(values: dict[str, T]) -> dict[str, T]:
    """By name: the order of files must decide nothing."""
    return dict(sorted(values.items()))


# --- documents --------------------------------------------------------------------------------


def _read_all(repo: Repo, files: Sequence[SourceFile], findings: list[Finding]) -> None:
    values = 0
    known: dict[str, Known] = {}
    for file in sorted(files, key=lambda f: f.path):
        before = repo.memory.files.get(file.path)
        if before is None or not file.id or before.id != file.id:
            before = _read_file(repo, file, findings)
        else:
            repo.cache.still_used(file.id)
            for kind, document, value in before.documents:
                _define(repo, Entry(kind, value.name, document, value), findings)
        if before.id:
            known[file.path] = before
        values += before.values
        if values > repo.limits.total_values:
            repo.blind = True
            most = repo.limits.total_values
            message = f"the repo has more than {most} values up to this file"
            findings.append(
                _file_finding(file.path, message, "split the fleet", Reason.PARSE_FAILED)
            )
            return
    repo.memory.keep(known)


def _read_file(repo: Repo, file: SourceFile, findings: list[Finding]) -> Known:
    """Read one file; what is given back has an id only if the file may be remembered."""
    parsed = _parsed(repo, file)
    clean = not parsed.findings and parsed.complete
    findings += parsed.findings
    repo.blind |= not parsed.complete
    if clean and not parsed.documents:
        clean = False
        findings.append(_empty(file.path))
    documents = []
    for document in parsed.documents:
        if len(findings) >= repo.limits.all_findings:
            clean, repo.blind = False, True
            break
        entry = _read(repo, document, findings)
        if entry is None:
            clean = False
        else:
            documents.append((entry.kind, document, entry.value))
            _define(repo, entry, findings)
    return Known(file.id if clean else "", parsed.values, tuple(documents))


def _parsed(repo: Repo, file: SourceFile) -> Parsed:
    known = repo.cache.get(file.id, file.path)
    if known is not None:
        return known
    raw = file.raw
    parsed = parse(file.path, raw, repo.limits)
    repo.cache.put(file.id, parsed, len(raw))
    return parsed


def _read(repo: Repo, document: Document, findings: list[Finding]) -> Entry | None:
    """The document as an entry; None, with findings, where it does not fit."""
    data = document.data
    if not isinstance(data, dict):
        findings.append(_document_finding(repo, document, "it is not a mapping", _KIND_HINT))
        return None
    kind, name = data.get("kind"), data.get("name")
    if not isinstance(kind, str) or kind not in schemas.KINDS:
        findings.append(_unknown_kind(repo, document, kind))
        return None
    try:
        if document.odd:
            raise schemas.Misfit
        value = schemas.reader(kind)(data)
    except schemas.Misfit:
        repo.misfits.append((kind, document))
        if isinstance(name, str):
            repo.broken.setdefault(kind, set()).add(name)
        else:
            repo.blind = True
        most = repo.limits.findings
        findings += explain(kind, _subject(kind, name), repo.positioned(document), most)
        return None
    return Entry(kind, value.name, document, value)


def _define(repo: Repo, entry: Entry, findings: list[Finding]) -> None:
    known = repo.entries.setdefault(entry.kind, {})
    first = known.get(entry.name)
    if first is None:
        known[entry.name] = entry
        return
    message = f"the name is defined twice: here and at {first.where}"
    findings.append(repo.finding(entry, ("name",), message, "rename or remove one of them"))


_KIND_HINT = f"a document starts with 'kind:', one of {', '.join(schemas.KINDS)}"


def _unknown_kind(repo: Repo, document: Document, kind: object) -> Finding:
    if kind is None:
        near = nearest("kind", (k for k in document.data if isinstance(k, str)))
        hint = near.replace("did you mean", "is it").replace("?", " that is meant?") or _KIND_HINT
        return _document_finding(repo, document, "'kind' is missing", hint)
    known = list(schemas.KINDS)
    hint = nearest(str(kind), known) or f"kinds are {', '.join(known)}"
    message = f"{quoted(kind)} is no kind of document"
    return _document_finding(repo, document, message, hint, ("kind",))


def _subject(kind: str, name: object) -> str:
    return f"{kind.lower()} {safe_name(name)}".rstrip()


def _document_finding(
    repo: Repo, document: Document, message: str, hint: str, path: tuple[str | int, ...] = ()
) -> Finding:
    placed = repo.positioned(document)
    line, column = (placed.positions or {}).get(path, (placed.line, placed.column))
    name = placed.data.get("name") if isinstance(placed.data, dict) else None
    subject = f"document {safe_name(name) or document.index + 1}"
    reason = Reason.SCHEMA_FAILED
    return Finding(document.file, line, column, dotted(path), subject, message, hint, reason)


def _empty(file: str) -> Finding:
    """A file that was cut off, or whose lines are all comments, takes away what it defined."""
    hint = "is it cut off? remove it, if what it defined is to go"
    message = "it holds no document"
    return Finding(file, 1, 1, "", "", message, hint, Reason.PARSE_FAILED, warning=True)


def _file_finding(file: str, message: str, hint: str, reason: Reason) -> Finding:
    return Finding(file, 0, 0, "", "", message, hint, reason)


# --- profiles ---------------------------------------------------------------------------------


def _resolve_profiles(repo: Repo, findings: list[Finding]) -> None:
    """Replace each profile by what it is with its bases, and drop the values of abstract ones."""
    profiles = repo.entries.get("Profile", {})
    documents = {name: entry.document.data for name, entry in profiles.items()}
    budget = repo.limits.total_values
    for name, entry in profiles.items():
        data = documents[name]
        if "extends" in data:
            budget = _resolve(repo, entry, documents, findings, budget)
        if entry.value is not None and data.get("abstract"):
            entry.value = None
        elif entry.value is not None:
            findings += _incomplete(repo, entry)


def _resolve(
    repo: Repo,
    entry: Entry,
    documents: dict[str, dict[str, object]],
    findings: list[Finding],
    budget: int,
) -> int:
    at = ("extends",)
    try:
        bases = chain(entry.name, documents)
    except Cycle as error:
        _fail(
            repo,
            entry,
            findings,
            f"it extends itself: {' → '.join(error.args[0])}",
            "cut one of them",
        )
        return budget
    except TooLong as error:
        message = f"the chain has more than {len(error.args[0]) - 1} profiles"
        _fail(repo, entry, findings, message, "let profiles build on fewer others")
        return budget
    last = bases[-1]
    if last not in documents:
        # Told once, by the profile that names it; those that build on that one are only dropped.
        if len(bases) == 1 and not repo.maybe("Profile", last):
            hint = repo.choices(last, "profiles", documents)
            findings.append(repo.finding(entry, at, f"profile {quoted(last)} does not exist", hint))
        _drop(repo, entry)
        return budget
    entry.bases = tuple(repo.of("Profile")[base] for base in bases)
    chained = [entry.document, *(base.document for base in entry.bases)]
    key = tuple(map(id, chained))
    if key in repo.memory.profiles:
        entry.value = repo.memory.profiles[key][1]
        return budget
    data: dict[str, object] = {}
    for name in (*reversed(bases), entry.name):
        data = merged(data, documents[name])
    budget -= size(data)
    if budget < 0:
        message = f"profiles inherit more than {repo.limits.total_values} values in all"
        _fail(repo, entry, findings, message, "extend smaller profiles")
        return 0
    try:
        entry.value = schemas.reader("Profile")(data)
        repo.memory.profiles[key] = (chained, entry.value)
    except schemas.Misfit:
        _fail(repo, entry, findings, "together with its bases it is too large", "extend less")
    return budget


def _fail(repo: Repo, entry: Entry, findings: list[Finding], message: str, hint: str) -> None:
    findings.append(repo.finding(entry, ("extends",), message, hint))
    _drop(repo, entry)


def _drop(repo: Repo, entry: Entry) -> None:
    entry.value = None
    repo.broken.setdefault("Profile", set()).add(entry.name)


def _incomplete(repo: Repo, entry: Entry) -> Iterable[Finding]:
    for name in ("engine", "model"):
        if not getattr(entry.value, name):
            hint = "give it, or say 'abstract: true' where others only extend it"
            if name == "model" and _runs_without_weights(entry.value.engine):
                hint = "name a Model, which gives the served names: one without 'path' is enough"
            yield repo.finding(entry, (), f"'{name}' is missing", hint, reason=Reason.SCHEMA_FAILED)


def _runs_without_weights(engine: str) -> bool:
    return engine in engines.names() and not engines.get(engine).loads_weights


def _one_fleet(repo: Repo, findings: list[Finding]) -> None:
    fleets = list(repo.of("Fleet").values())
    if not fleets and not repo.broken.get("Fleet") and not repo.blind:
        message = "the repo has no document of kind Fleet"
        hint = "write fleet.yaml; 'reconcile init' makes one"
        findings.append(_file_finding("fleet.yaml", message, hint, Reason.REFERENCE_FAILED))
    for second in fleets[1:]:
        message = f"a second Fleet; the first is at {fleets[0].where}"
        hint = "a repo describes one fleet: remove one of them"
        findings.append(repo.finding(second, ("kind",), message, hint))
