"""Which endpoints are published: what is ready, and what was and has not been seen to end.

The list that was published before is the only memory. An entry leaves on evidence alone: a stop
that was asked or is about to be, an end that was seen, a health path that refuses the node's own
question. What is out of sight or not understood stays, marked, because a balancer that drops what
the *reconciler* cannot reach turns a cut control network into an outage. Without that memory
nothing wrong is published, only less: nodes that were silent meanwhile are named in `unseen`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from engines import serving
from reconciler.core.looks import Looks
from reconciler.core.model import Desired, NodeState, ResolvedProfile
from reconciler.core.observed import LookError, NodeAnswer, Observed, Place, Shard
from reconciler.core.verdict import Diff, JudgedLaunch, Verdict

DEFAULT_WEIGHT = 100


class State(StrEnum):
    """What is known of an endpoint now."""

    READY = "ready"
    UNREACHABLE = "unreachable"
    """Its node is silent; it may serve all the same."""
    UNKNOWN = "unknown"
    """Its node answers, but whether it serves cannot be told."""


@dataclass(frozen=True)
class Endpoint:
    """One rank that serves HTTP."""

    launch: str
    rank: int
    replica: str
    placement: str
    node: str
    address: str
    """Without brackets, also where it is IPv6."""
    port: int
    names: tuple[str, ...] = ()
    """Served names that the engine answers to, sorted."""
    engine: str = ""
    metrics_path: str = ""
    """Empty: the engine has none that is known."""
    weight: int = DEFAULT_WEIGHT
    """The placement's, today."""
    state: State = State.READY
    since: str = ""
    """RFC 3339: when it was first seen in this state; empty while it is ready."""
    why: str = ""
    """As it was first seen, so that the text does not change with each pass."""


@dataclass(frozen=True)
class Endpoints:
    """All of one fleet."""

    fleet: str
    entries: tuple[Endpoint, ...] = ()
    """In order of placement, replica, launch and rank."""
    names: tuple[str, ...] = ()
    """Served names that the revision wants, also those that have no entry now."""
    unseen: Mapping[str, str] = field(default_factory=dict)
    """Node → address: silent ever since there is no memory of what they serve. Whoever renders
    this for a balancer must not drop what it already has there."""


def endpoints(
    desired: Desired,
    observed: Observed,
    judged: Diff,
    before: Endpoints | None,
    *,
    leaving: Collection[str] = (),
    now: str,
) -> Endpoints:
    """What is to be published now. `leaving`: launches that are about to be asked to stop.

    `before` is what was published last, None where that is not known. `now` is RFC 3339.
    """
    return _Pass(desired, observed, before, frozenset(leaving), now).publish(judged)


@dataclass(frozen=True)
class _Pass:
    desired: Desired
    observed: Observed
    before: Endpoints | None
    leaving: frozenset[str]
    now: str

    def publish(self, judged: Diff) -> Endpoints:
        memory = {(e.launch, e.rank): e for e in self.before.entries} if self.before else {}
        entries = []
        for replica, placement, launch in _launches(judged):
            for place in launch.view.places:
                old = memory.pop((launch.view.launch, place.rank), None)
                entries.append(self._judged(replica, placement, launch, place, old))
        entries += [self._not_judged(old, _found(judged, old)) for old in memory.values()]
        kept = sorted((e for e in entries if e is not None), key=_order)
        return Endpoints(self.desired.fleet.id, tuple(kept), self._names(), self._unseen())

    # --- Launches that the diff knows ---------------------------------------------------------

    def _judged(
        self,
        replica: str,
        placement: str,
        launch: JudgedLaunch,
        place: Place,
        old: Endpoint | None,
    ) -> Endpoint | None:
        state = self._state(launch, place, old)
        if state is None:
            return None
        made = self._describe(replica, placement, launch, place, old)
        return made and self._marked(made, *state, old)

    def _state(
        self, launch: JudgedLaunch, place: Place, old: Endpoint | None
    ) -> tuple[State, str] | None:
        """What it is published as; None: it is not."""
        view, shard = launch.view, launch.view.shards.get(place.rank)
        if self._gone(launch, place, shard):
            return None
        if shard is None:
            known = old is not None or self._last_served(view.launch, place)
            return (State.UNREACHABLE, self._why(place.node)) if known else None
        if not shard.serves:
            return None
        serving_now = shard.fresh and shard.health.ok
        if view.ready and serving_now:
            unknown = launch.verdict is Verdict.UNKNOWN
            return (State.UNKNOWN, launch.reason) if unknown else (State.READY, "")
        if view.silent_nodes and (old is not None or (self.before is None and serving_now)):
            return State.UNREACHABLE, self._why(view.silent_nodes[0])
        if old is None:
            return None
        if serving_now:
            return State.UNKNOWN, "it answers, but not all of its ranks are known to be ready"
        return State.UNKNOWN, "nothing on its node has asked its health of late"

    def _gone(self, launch: JudgedLaunch, place: Place, shard: Shard | None) -> bool:
        """The evidence. Everything else keeps an entry."""
        view = launch.view
        if view.launch in self.leaving or view.stop_asked or launch.verdict in _ENDING:
            return True
        node = self.desired.nodes.get(place.node)
        if node is not None and node.state is NodeState.LOST:
            return True
        if shard is None:
            return place.node not in view.silent_nodes and self._answers_without(view.launch, place)
        return not shard.alive or shard.exit is not None or _refuses(shard)

    def _last_served(self, launch: str, place: Place) -> bool:
        """Whether it served at the last look: what counts where there is no memory."""
        look = self.observed.nodes.get(place.node)
        if self.before is not None or look is None or look.last is None:
            return False
        shard = next((s for s in look.last.shards if s.launch == launch), None)
        return (
            shard is not None
            and shard.alive
            and shard.serves
            and shard.health.ok
            and not shard.stop_asked
        )

    def _describe(
        self,
        replica: str,
        placement: str,
        launch: JudgedLaunch,
        place: Place,
        old: Endpoint | None,
    ) -> Endpoint | None:
        view = launch.view
        port = place.ports.get("http") or (old.port if old else 0)
        node = self.desired.nodes.get(place.node)
        address = place.address or (node.address if node else "") or (old.address if old else "")
        if not port or not address:
            return old
        profile = view.profile
        if profile is None and old is None:
            return None
        made = Endpoint(
            launch=view.launch,
            rank=place.rank,
            replica=replica or (old.replica if old else ""),
            placement=placement or (old.placement if old else ""),
            node=place.node,
            address=address,
            port=port,
            names=old.names if old else (),
            engine=old.engine if old else "",
            metrics_path=old.metrics_path if old else "",
            weight=old.weight if old else DEFAULT_WEIGHT,
        )
        if profile is None:
            return made
        told = serving.in_flight(profile.profile.engine)
        return replace(
            made,
            names=_served_names(profile),
            engine=profile.profile.engine,
            metrics_path=told.path if told and not profile.profile.listens else "",
        )

    # --- Launches of which no node shows anything any more ------------------------------------

    def _not_judged(self, old: Endpoint, launch: JudgedLaunch | None) -> Endpoint | None:
        if old.launch in self.leaving or (launch is not None and launch.view.stop_asked):
            return None
        node = self.desired.nodes.get(old.node)
        if node is None or node.state is NodeState.LOST:
            # A node leaves the revision's own only once it was seen empty (NodeNotEmpty before).
            return None
        if launch is not None:
            return self._damaged(old, launch)
        if old.node in self._looks.silent:
            return self._marked(old, State.UNREACHABLE, self._why(old.node), old)
        return None

    def _damaged(self, old: Endpoint, launch: JudgedLaunch) -> Endpoint | None:
        """Seen, but its record no longer tells its places."""
        view = launch.view
        shard = next(iter(view.shards.values()), None)
        if shard is None:
            return self._marked(old, State.UNREACHABLE, self._why(old.node), old)
        if not view.alive or launch.verdict in _ENDING or _refuses(shard):
            return None
        return self._marked(old, State.UNKNOWN, launch.reason, old)

    # --- Parts --------------------------------------------------------------------------------

    @cached_property
    def _looks(self) -> Looks:
        return Looks(self.desired, self.observed)

    def _marked(self, made: Endpoint, state: State, why: str, old: Endpoint | None) -> Endpoint:
        weight = made.weight
        if made.placement in self.desired.placements:
            weight = self.desired.placements[made.placement].weight
        since, text = self.now, why
        if old is not None and old.state is state:
            since, text = old.since, old.why
        if state is State.READY:
            since, text = "", ""
        return replace(made, weight=weight, state=state, since=since, why=text)

    def _answer(self, node: str) -> NodeAnswer | None:
        look = self.observed.nodes.get(node)
        return look.answer if look else None

    def _answers_without(self, launch: str, place: Place) -> bool:
        answer = self._answer(place.node)
        if answer is None or answer.shards_error:
            return False
        return all(s.launch != launch or not s.alive for s in answer.shards)

    def _why(self, node: str) -> str:
        """From a closed list: the details change from pass to pass."""
        look = self.observed.nodes.get(node)
        if look is not None and look.error is not None:
            return look.error.value
        if look is not None and look.answer is not None:
            damaged = bool(look.answer.shards_error)
            return LookError.DAMAGED.value if damaged else LookError.MACHINE_ID.value
        return LookError.UNREACHABLE.value

    def _names(self) -> tuple[str, ...]:
        desired = self.desired
        wanted = {desired.placements[name].profile for name in desired.placements}
        found: set[str] = set()
        for profile in wanted:
            own = desired.profiles.get(profile)
            if own is not None and own.model in desired.models:
                found.update(_served_names(ResolvedProfile(own, desired.models[own.model])))
        return tuple(sorted(found))

    def _unseen(self) -> dict[str, str]:
        """Without memory: every silent node. Then: those of them that are silent still."""
        found = {}
        for name, node in sorted(self.desired.nodes.items()):
            look = self.observed.nodes.get(name)
            if node.state is NodeState.LOST or (look is not None and look.answer is not None):
                continue
            remembered = look is not None and look.last is not None
            if self.before is not None:
                if name in self.before.unseen:
                    found[name] = self.before.unseen[name]
            elif not remembered:
                found[name] = node.management.address or node.address
        return found


_ENDING = frozenset({Verdict.STOPPING, Verdict.EXITED, Verdict.TIMED_OUT})


def _refuses(shard: Shard) -> bool:
    """The node's own supervisor asked it a moment ago, and it did not answer well."""
    return shard.serves and shard.fresh and not shard.health.ok


def _launches(judged: Diff) -> Iterator[tuple[str, str, JudgedLaunch]]:
    """Replica and placement, by their names of today, and the launch."""
    for replica in judged.replicas:
        for launch in replica.launches:
            yield replica.replica, replica.placement, launch
    for stray in judged.strays:
        yield stray.view.replica, stray.view.placement, stray


def _found(judged: Diff, old: Endpoint) -> JudgedLaunch | None:
    return next((j for _, _, j in _launches(judged) if j.view.launch == old.launch), None)


def _served_names(resolved: ResolvedProfile) -> tuple[str, ...]:
    names = resolved.model.served_names or (resolved.model.name,)
    return tuple(sorted(serving.answered_names(resolved.profile.engine, names)))


def _order(endpoint: Endpoint) -> tuple[str, int, str, str, int]:
    """`chat-2` before `chat-10`."""
    replica = endpoint.replica
    return endpoint.placement, len(replica), replica, endpoint.launch, endpoint.rank
