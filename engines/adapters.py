"""Which RDMA adapters a variable or a flag names, in its library's own syntax.

A rank that takes another fabric's adapter starts, and hangs in its first collective. What a profile
says itself is therefore compared with the inventory, before anything starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from engines import checks, flags

PREFIXES = "NCCL_IB_HCA"
"""NCCL's: names are prefixes, unless the whole list begins with `=`."""

ENV = (PREFIXES, "UCX_NET_DEVICES", "NVSHMEM_HCA_LIST", "NVSHMEM_HCA_PE_MAPPING")
FLAGS: Mapping[str, tuple[str, ...]] = {
    "sglang": ("--disaggregation-ib-device", "--mooncake-ib-device"),
}
"""By engine: flags whose value is a list of names, or JSON that maps GPUs to them."""

ALL = "all"
"""UCX's word for every device."""

_NAME = re.compile(r"[A-Za-z0-9_.-]+")

Port = tuple[str, int]
"""An adapter's name and the number of one of its ports."""


def named(engine: str, env: Mapping[str, str], argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each variable and flag that names adapters, with its value."""
    for variable in ENV:
        if env.get(variable):
            yield variable, env[variable]
    # Asked for every launch; whatever spelling stands for such a flag has these letters.
    for flag in FLAGS.get(engine, ()) if any("ib" in word for word in argv) else ():
        for value in checks.flag_values(flags.table(engine), argv, flag):
            yield flag, value


def taken(what: str, value: str, adapters: Iterable[Port]) -> Iterator[Port]:
    """Those of `adapters` that `value` of `what` takes. What it only excludes (`^`) takes none
    that can be told: it is warned about elsewhere."""
    if value.startswith("^"):
        return
    if what not in ENV:
        names = set(_NAME.findall(value))
        yield from (adapter for adapter in adapters if adapter[0] in names)
        return
    loose = what == PREFIXES and not value.startswith("=")
    words = [word.strip().split(":") for word in value.lstrip("=").split(",") if word.strip()]
    for name, port in adapters:
        if any(_takes(word, name, port, loose=loose) for word in words):
            yield name, port


def _takes(word: Sequence[str], name: str, port: int, *, loose: bool) -> bool:
    if list(word) == [ALL] and not loose:
        return True
    right = name == word[0] or (loose and name.startswith(word[0]))
    return right and (len(word) < 2 or word[1] in ("", str(port)))
