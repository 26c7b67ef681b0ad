"""Names that documents use of each other: every one must exist, and be meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reconciler.core.memberfile import MEMBERS_FILE
from reconciler.fleet.findings import MAX_VALUE, Finding, quoted
from reconciler.fleet.repo import Entry, Repo, safe_name
from reconciler.fleet.strictyaml import Document, Path


def check(repo: Repo) -> Iterator[Finding]:
    """Dangling references, and names that differ only by case."""
    pools = {node.pool: True for node in repo.values("Node").values()}
    for entry in repo.of("Model").values():
        for pool in entry.value.paths:
            yield from _pool(repo, entry, ("paths", pool), pool, pools, key=True)
    for entry in repo.of("Profile").values():
        if entry.value is not None and entry.value.model:
            yield from _named(repo, entry, ("model",), "Model", entry.value.model)
    for entry in repo.of("Placement").values():
        yield from _placement(repo, entry, pools)
    for kind in ("Model", "Profile", "Node", "Placement"):
        yield from _case_twins(repo, repo.of(kind))
    yield from _served_twice(repo)
    for kind, document in repo.misfits:
        yield from _misfit(repo, kind, document)
    yield from _twice(repo)


_REFERENCES = (
    ("Placement", "profile", "Profile"),
    ("Profile", "model", "Model"),
    ("Profile", "extends", "Profile"),
)


def _misfit(repo: Repo, kind: str, document: Document) -> Iterator[Finding]:
    """References of a document that does not fit: all mistakes are told at once."""
    for owner, key, target in _REFERENCES:
        name = document.data.get(key)
        if kind == owner and isinstance(name, str) and name and len(name) <= MAX_VALUE:
            entry = Entry(kind, safe_name(document.data.get("name")), document, None)
            yield from _named(repo, entry, (key,), target, name)


def _twice(repo: Repo) -> Iterator[Finding]:
    """Names of documents that do not fit which another document has too: mended, they would be
    refused for it. Those that fit are told apart when they are read."""
    first: dict[tuple[str, str], Entry] = {}
    for kind, document in repo.misfits:
        name = safe_name(document.data.get("name"))
        if not name or kind == "Fleet":
            continue
        entry = Entry(kind, name, document, None)
        known = repo.of(kind).get(name) or first.setdefault((kind, name), entry)
        if known is not entry:
            message = f"the name is defined twice: here and at {known.where}"
            yield repo.finding(entry, ("name",), message, "rename or remove one of them")


def _placement(repo: Repo, entry: Entry, pools: Mapping[str, bool]) -> Iterator[Finding]:
    placement = entry.value
    profile = repo.of("Profile").get(placement.profile)
    if profile is not None and profile.document.data.get("abstract"):
        message = f"profile {quoted(placement.profile)} is abstract"
        yield repo.finding(entry, ("profile",), message, "place one that extends it")
    elif profile is None:
        yield from _named(repo, entry, ("profile",), "Profile", placement.profile)
    if placement.pool and placement.pool not in pools:
        yield from _pool(repo, entry, ("pool",), placement.pool, pools)
    for index, name in enumerate(placement.nodes):
        yield from _named(repo, entry, ("nodes", index), "Node", name)
    if placement.members:
        yield from _members(repo, entry)


def _members(repo: Repo, entry: Entry) -> Iterator[Finding]:
    for index, name in enumerate(entry.value.members):
        if name == entry.name:
            message = f"{entry.subject} is a member of itself"
            hint = "a router is told of other placements; take it out"
            yield repo.finding(entry, ("members", index), message, hint)
        else:
            yield from _named(repo, entry, ("members", index), "Placement", name)
    profile = repo.of("Profile").get(entry.value.profile)
    files = profile.value.files if profile is not None and profile.value is not None else ()
    if any(file.path == MEMBERS_FILE for file in files):
        message = f"its profile renders {MEMBERS_FILE}, which `members` writes"
        yield repo.finding(entry, ("members",), message, "rename the profile's file")


def _named(repo: Repo, entry: Entry, path: Path, kind: str, name: str) -> Iterator[Finding]:
    if repo.maybe(kind, name):
        return
    yield repo.finding(
        entry,
        path,
        f"{kind.lower()} {quoted(name)} does not exist",
        repo.choices(name, f"{kind.lower()}s", repo.of(kind)),
    )


def _pool(
    repo: Repo, entry: Entry, path: Path, pool: str, pools: Mapping[str, bool], *, key: bool = False
) -> Iterator[Finding]:
    if pool in pools or repo.blind or repo.broken.get("Node"):
        return
    message = f"no node is in pool {quoted(pool)}"
    yield repo.finding(entry, path, message, repo.choices(pool, "pools", pools), key=key)


def _case_twins(repo: Repo, entries: Mapping[str, Entry]) -> Iterator[Finding]:
    if len({name.casefold() for name in entries}) == len(entries):
        return
    first: dict[str, Entry] = {}
    for name in sorted(entries):
        entry = entries[name]
        known = first.setdefault(name.casefold(), entry)
        if known is not entry:
            message = f"it differs from {quoted(known.name)} at {known.where} only by case"
            yield repo.finding(entry, ("name",), message, "rename one of them")


def _served_twice(repo: Repo) -> Iterator[Finding]:
    """Two models under one served name: clients would get either."""
    first: dict[str, Entry] = {}
    for name in sorted(repo.of("Model")):
        entry = repo.of("Model")[name]
        for served in entry.value.served_names or (entry.value.name,):
            known = first.setdefault(served, entry)
            if known is not entry:
                message = f"the name {quoted(served)} is served by {known.subject} too"
                hint = f"requests for it reach either; rename one (the other is at {known.where})"
                path: Path = ("served_names",) if entry.value.served_names else ("name",)
                yield repo.finding(entry, path, message, hint, warning=True)
