"""Puts each launch together from what all its nodes said, and says what of it cannot be seen.

A record names every rank's place, so one rank in sight tells of the others. A rank on a node that
does not answer is silent; that is not dead (ranks), and never absent.

Nothing in here knows what is wanted beyond the names of nodes, and nothing judges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reconciler.core.catalog import Catalog, parse_replica
from reconciler.core.fast import made
from reconciler.core.fingerprint import method_known
from reconciler.core.looks import Looks
from reconciler.core.model import Desired
from reconciler.core.observed import FORMAT, Observed, Place, Record, Shard
from reconciler.core.ranks import DeadRank, dead_ranks, rank_ready
from reconciler.core.verdict import LaunchView

MAJOR = int(FORMAT.partition(".")[0])


class Sighting(NamedTuple):
    """A launch with what only diff needs to know of it."""

    view: LaunchView
    ordinal: int = -1
    """-1: no replica can be named for it."""
    silence: str = ""
    """Why it cannot be seen whole; empty: it can."""
    damage: str = ""
    """Why its record cannot be relied on; empty: it can."""
    dead: tuple[DeadRank, ...] = ()
    leader: str = ""
    """Node of rank 0, where known."""
    whole: bool = False
    """Seen whole, alive on every rank, and nobody has asked it to stop."""

    @property
    def ended(self) -> bool:
        """Nothing of it runs, and all of it is seen."""
        return not self.view.alive and not self.silence


@dataclass(frozen=True)
class Sightings:
    """All launches of this fleet, by name, and whom else the nodes showed."""

    launches: tuple[Sighting, ...] = ()
    strangers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    """Node → why what it runs is not seen. `lost` ones are not silent: a person spoke for them."""
    blind: frozenset[str] = frozenset()
    """Silent ones of which not even a last look is at hand."""


def gather(
    desired: Desired, observed: Observed, catalog: Catalog, *, shortcut: bool = True
) -> Sightings:
    """Every launch of this fleet that any node shows or showed. Linear in shards."""
    looks = Looks(desired, observed)
    found: dict[str, list[tuple[str, Shard]]] = {}
    remembered: dict[str, list[tuple[str, Shard]]] = {}
    strangers: dict[str, list[str]] = {}
    fleet = desired.fleet.id
    for name, answer in sorted(looks.shown.items(), key=lambda item: item[0] in looks.renamed):
        into = remembered if name in looks.silent else found
        today = looks.renamed.get(name, name)
        for shard in answer.shards:
            record = shard.record
            if record is not None and record.fleet != fleet:
                strangers.setdefault(name, []).append(shard.launch)
                continue
            shown = into.setdefault(shard.launch, [])
            if today == name or all(node != today for node, _ in shown):
                shown.append((today, shard))
    launches = []
    for launch, shown in found.items():
        known = shortcut and launch not in remembered
        plain = _whole(launch, shown, looks, catalog) if known else None
        launches.append(
            plain or _assemble(launch, shown, remembered.pop(launch, []), looks, catalog)
        )
    launches += [_assemble(n, [], shown, looks, catalog) for n, shown in remembered.items()]
    return Sightings(
        tuple(launches),
        {node: tuple(sorted(names)) for node, names in sorted(strangers.items())},
        dict(sorted(looks.silent.items())),
        frozenset(n for n in looks.silent if n not in looks.shown),
    )


Shown = list[tuple[str, Shard]]


def _whole(launch: str, shown: Shown, looks: Looks, catalog: Catalog) -> Sighting | None:
    """The usual case in short: every rank in its place, alive, and nothing to think about.

    None where anything needs a second thought. Where it answers, `_assemble` would say the same.
    """
    record = shown[0][1].record
    if record is None or len(record.places) != len(shown):
        return None
    fingerprint, shards = record.fingerprint, {}
    ready = ever_ready = True
    for node, shard in shown:
        own = shard.record
        if own is None or own.format != FORMAT or own.fingerprint != fingerprint:
            return None
        rank = own.rank
        place = own.places[rank] if 0 <= rank < len(own.places) else None
        if place is None or place.rank != rank or place.node != node or rank in shards:
            return None
        if looks.sound.get(node) != (place.machine_id, shard.boot_id):
            return None
        if not shard.alive or shard.stop_asked or shard.exit is not None:
            return None
        if shard.serves:
            ready = ready and shard.fresh and shard.health.ok
            ever_ready = ever_ready and shard.ever_ready
        shards[rank] = shard
    leader = shards[0]
    labels, record = leader.labels, leader.record
    if labels is None or not labels.replica or not labels.placement or record is None:
        return None
    if not leader.serves or not method_known(fingerprint):
        return None
    placement = labels.placement
    view = made(
        LaunchView,
        {
            "launch": launch,
            "replica": labels.replica,
            "placement": placement,
            "seq": record.seq,
            "places": record.places,
            "shards": shards,
            "fingerprint": fingerprint,
            "restart": record.restart,
            "profile": catalog.recorded(placement, fingerprint, record.profile),
            "alive": True,
            "ready": ready,
            "ever_ready": ever_ready,
            "seen_nodes": (shown[0][0],) if len(shown) == 1 else tuple(sorted(n for n, _ in shown)),
        },
    )
    return Sighting(view, labels.ordinal, leader=record.places[0].node, whole=True)


def _judged(shards: Mapping[int, Shard], remembered: Shown, wanted: int) -> Sequence[Shard]:
    """Those that tell whether the launch was ever ready: what has been so stays so, also where it
    is out of sight.

    A rank that serves nothing is ready as soon as it runs, so it tells nothing for a leader whose
    record is gone or not seen: only where every rank is known, and none serves.
    """
    known = {(s.record.rank if s.record else s.rank): s for _, s in remembered} | dict(shards)
    serving = [shard for shard in known.values() if shard.serves]
    return serving or (list(known.values()) if len(known) >= wanted else [])


def _assemble(
    launch: str, found: Shown, remembered: Shown, looks: Looks, catalog: Catalog
) -> Sighting:
    told = _first_record(found) or _first_record(remembered)
    if told is not None and told.places:
        places = tuple(looks.today(p) for p in told.places)
    else:
        places = ()
    found, damage = _own_shards(found, places)
    shards, seen_at = _by_rank(found, places)
    silence = {p.node: why for p in places if (why := looks.silence(p))}
    for node, shard in remembered:
        if node not in silence and not places:
            silence[node] = looks.silent[node]
        elif node in silence and not shard.alive and shard.exit is not None:
            # What has ended never starts again, so the last look at it still holds.
            del silence[node]
        elif shard.alive and (shard.record.rank if shard.record else shard.rank) not in shards:
            silence.setdefault(node, looks.silent[node])
    over = {node for node, shard in remembered if node not in silence}
    dead = dead_ranks(places, shards, silence, over, dict(remembered), looks)
    alive = any(s.alive for s in shards.values())
    stop_asked = any(s.stop_asked for s in shards.values())
    judged = _judged(shards, remembered, len(places))
    replica, placement, ordinal = _belongs(launch, told, shards, remembered)
    if told is None or not told.places:
        damage = damage or _damage_of(launch, found or remembered)
    else:
        damage = damage or next((d for _, s in found if (d := _damage(s.record, s))), "")
    fingerprint = told.fingerprint if told else ""
    view = LaunchView(
        launch=launch,
        replica=replica,
        placement=placement,
        seq=told.seq if told else 0,
        places=places,
        shards=shards,
        silent_nodes=tuple(sorted(silence)),
        fingerprint=fingerprint,
        restart=told.restart if told else "",
        profile=catalog.recorded(placement, fingerprint, told.profile) if told else None,
        alive=alive,
        ready=bool(places)
        and not silence
        and not dead
        and not stop_asked
        and all(rank_ready(shards.get(p.rank)) for p in places),
        ever_ready=bool(judged) and all(s.ever_ready for s in judged),
        stop_asked=stop_asked,
        seen_nodes=tuple(sorted(seen_at)),
    )
    return Sighting(
        view,
        ordinal,
        "; ".join(silence[n] for n in sorted(silence)),
        damage,
        dead,
        next((p.node for p in places if p.rank == 0), next(iter(sorted(seen_at)), "")),
    )


def _first_record(shown: Shown) -> Record | None:
    """The record of the lowest rank; all ranks of a launch have the same places."""
    records = [s.record for _, s in shown if s.record is not None]
    if len(records) < 2:
        return records[0] if records else None
    return min(records, key=lambda r: (r.rank, r.fingerprint == "", r.seq))


def _own_shards(found: Shown, places: tuple[Place, ...]) -> tuple[Shown, str]:
    """Without folders that were copied to another machine: they prove nothing unless alive."""
    if not places:
        return found, ""
    at = {p.node for p in places}
    own = [(node, s) for node, s in found if node in at]
    astray = [(node, s) for node, s in found if node not in at and s.alive]
    if not astray:
        return own, ""
    return own + astray, f"its record names other nodes than {astray[0][0]}, where it runs"


def _by_rank(found: Shown, places: tuple[Place, ...]) -> tuple[dict[int, Shard], set[str]]:
    rank_at = {p.node: p.rank for p in places}
    shards: dict[int, Shard] = {}
    for node, shard in found:
        rank = rank_at.get(node)
        if rank is None:
            rank = shard.record.rank if shard.record else shard.rank
        if rank in shards or (places and node not in rank_at):
            # Beyond all ranks that have a place: it must not speak for another node's rank.
            rank = max([rank, *rank_at.values(), *shards]) + 1
        shards[rank] = shard
    return shards, {node for node, _ in found}


def _belongs(
    launch: str, told: Record | None, shards: Mapping[int, Shard], remembered: Shown
) -> tuple[str, str, int]:
    """Replica, placement and ordinal: the leader's labels, then the record, then the name."""
    labels = next((shards[r].labels for r in sorted(shards) if shards[r].labels), None)
    labels = labels or next((s.labels for _, s in remembered if s.labels), None)
    if labels is not None and labels.replica and labels.placement:
        return labels.replica, labels.placement, labels.ordinal
    name = (labels.replica if labels else "") or (told.replica if told else "")
    name = name or launch.rpartition("-")[0]
    parsed = parse_replica(name)
    return (name, *parsed) if parsed else ("", "", -1)


def _damage_of(launch: str, shown: Shown) -> str:
    return next((d for _, s in shown if (d := _damage(s.record, s))), "its record names no place")


def _damage(record: Record | None, shard: Shard) -> str:
    if record is None:
        why = shard.record_error or "absent"
        return "its record is absent" if why == "absent" else f"its record is damaged: {why}"
    if record.format != FORMAT and not _readable(record.format):
        return f"its record has format {record.format or 'none'}, this build reads {MAJOR}.x"
    if method_known(record.fingerprint):
        return ""
    if not record.fingerprint:
        return "its record has no fingerprint"
    return f"its fingerprint is of another method ({record.fingerprint.partition(':')[0][:16]})"


def _readable(form: str) -> bool:
    major = form.partition(".")[0]
    return major.isascii() and major.isdecimal() and int(major) <= MAJOR
