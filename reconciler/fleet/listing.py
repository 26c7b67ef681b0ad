"""The entries of a commit's tree and of a working tree, as one kind of list (tree.py chooses).

A working tree is looked at without following a link, opening a pipe or reading anything outside it;
a commit's tree without a checkout. Sizes are asked before a blob is inflated.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pygit2
from pygit2.enums import FileMode

from reconciler.fleet.findings import nearest
from reconciler.fleet.limits import Limits
from reconciler.fleet.tree import Sort, TreeEntry, of_interest

_SORTS = {
    FileMode.TREE: Sort.FOLDER,
    FileMode.LINK: Sort.LINK,
    FileMode.COMMIT: Sort.SUBMODULE,
}


def list_tree(
    repo: pygit2.Repository, tree: pygit2.Tree, limits: Limits
) -> tuple[list[TreeEntry], dict[str, pygit2.Oid], bool]:
    """The entries of a tree: all of the top, and all below the fleet's own folders."""
    entries: list[TreeEntry] = []
    ids: dict[str, pygit2.Oid] = {}
    seen = 0
    pending: list[tuple[str, pygit2.Tree]] = [("", tree)]
    while pending:
        above, folder = pending.pop()
        for item in folder:
            seen += 1
            if seen > limits.entries or above.count("/") > limits.depth:
                return entries, ids, False
            path = above + _name(item)
            sort = _SORTS.get(item.filemode, Sort.FILE)
            if sort is Sort.FOLDER and (above or of_interest(path) or _looks_near(path)):
                pending.append((f"{path}/", repo[item.id].peel(pygit2.Tree)))
            size = 0
            if sort is Sort.FILE and path.lower().endswith((".yaml", ".yml")):
                size = repo.odb.read_header(item.id)[1]
            ids[path] = item.id
            entries.append(TreeEntry(path, sort, size))
    return entries, ids, True


def read_blob(repo: pygit2.Repository, oid: pygit2.Oid) -> bytes:
    """The bytes of a blob."""
    return repo[oid].read_raw()


def _name(item: pygit2.Object) -> str:
    """The name of an entry; bytes that are not UTF-8 stay apart from every real name."""
    raw = item.raw_name or b""
    return raw.decode("utf-8", "backslashreplace")


def _looks_near(name: str) -> bool:
    """A folder that may be meant as one of ours: listed, so that it is not skipped in silence."""
    return bool(nearest(name.lower(), ("nodes", "catalog", "placements")))


def list_folder(folder: Path, limits: Limits) -> tuple[list[TreeEntry], bool]:
    """As `list_tree`, of a working tree; links are named and not followed."""
    entries: list[TreeEntry] = []
    pending = [""]
    while pending:
        above = pending.pop()
        with os.scandir(folder / above) as items:
            for item in items:
                name = os.fsencode(item.name).decode("utf-8", "backslashreplace")
                path = above + name
                if path == ".git" or (name.startswith(".#") and item.is_symlink()):
                    continue  # the second is Emacs's lock of a file that is being edited
                if len(entries) >= limits.entries or above.count("/") > limits.depth:
                    return entries, False
                status = item.stat(follow_symlinks=False)
                sort = _sort_of(status.st_mode)
                if sort is Sort.FOLDER and os.path.lexists(os.path.join(item.path, ".git")):
                    # Another repository: a commit would hold a link to it and none of its files.
                    sort = Sort.SUBMODULE
                if sort is Sort.FOLDER and (above or of_interest(path) or _looks_near(path)):
                    pending.append(f"{path}/")
                entries.append(TreeEntry(path, sort, status.st_size))
    return entries, True


def _sort_of(mode: int) -> Sort:
    if stat.S_ISREG(mode):
        return Sort.FILE
    if stat.S_ISDIR(mode):
        return Sort.FOLDER
    return Sort.LINK if stat.S_ISLNK(mode) else Sort.SPECIAL


def read_plain(path: Path, most: int) -> bytes:
    """The bytes of a regular file, at most one more than `most`; no link, no waiting for a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "not a regular file")
        return file.read(most + 1)
