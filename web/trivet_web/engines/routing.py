"""Which instance serves a request: one that has read its beginning, else the one with least to do.

Affinity has a bound (Mirrokni et al. 2016, "Consistent Hashing with Bounded Loads"): a replica that has
read more of a prompt than the others gets it only while its outstanding tokens are at most `MAX_LOAD` times
the mean, the new request included. Among equals the fewest outstanding tokens win. A stalled replica gets
requests only if there is no other.

The table comes from the registry and is at most `MAX_AGE_S` old; the relay knows sooner when an engine
has ended, and its word counts at once. Engines live without the registry: while it cannot be read, the
last table serves.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trivet.endpoints import Endpoints
from trivet.engine_settings import NO_VALUE, parse_engine_settings
from trivet.errors import ConfigError, ModelNotFound, Unavailable
from trivet_registry.instances_store import reason_for_all
from trivet_web.engines.engine_link import EngineView
from trivet_web.engines.prefix_affinity import PrefixAffinity, span_digests
from trivet_web.engines.start_estimate import seconds_until_ready

logger = logging.getLogger(__name__)
MAX_AGE_S = 0.5
MAX_LOAD = 1.25
GIVE_BACK_TOKENS = 16  # at a time: each takes a lock, and routing need not know sooner
MAX_PLACES = 1000  # enough for requests that are being written down
RETRY_S = 2.0  # after a registry that could not be read; each attempt may wait for a timeout
READY = "ready"
NOWHERE = ""  # in place of an instance: there is none yet, and it is worth waiting for one


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """An instance as the registry has it."""

    id: str
    state: str
    reason: str = ""
    is_given_up: bool = False  # failed, and not tried again by itself
    max_model_len: int | None = None  # of its plan
    backend: str = ""  # empty until it is placed
    device: str = ""  # uids, with commas
    is_of_served_version: bool = True  # else it finishes what it has: requests are tokenised for another
    endpoints: Endpoints | None = None  # None: in the run directory of this home
    in_state_s: float = 0.0  # so long when the row was read
    loaded: float = 0.0  # share of its weights, 0 to 1


class FileSet(NamedTuple):
    """Model files as they were registered: others that came to the same path are another version."""

    path: str
    fingerprint: str = ""  # empty: not from a registry


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the registry knows of a version's files."""

    name: str
    version: int
    format: str  # "safetensors" | "gguf"
    quantization: str
    architecture: str
    size_bytes: int
    context_length: int
    fingerprint: str
    created_s: int  # seconds since the epoch
    alias: str | None = None  # that the deployment follows

    @property
    def reference(self) -> str:
        return f"{self.name}:{self.version}"

    @property
    def followed(self) -> str | None:
        return f"{self.name}:{self.alias}" if self.alias else None


@dataclass(frozen=True, slots=True)
class Deployed:
    """A deployment that shall run, or did and still drains, under the name that clients give as `model`."""

    name: str
    model_path: str
    created_s: int  # seconds since the epoch
    instances: Sequence[InstanceRow] = ()
    replicas: int = 1  # wanted
    settings: Mapping[str, str] = field(default_factory=dict)  # of its engines, as text
    fallback: str | None = None  # the deployment that answers where this one cannot
    is_asleep: bool = False  # unloaded because nobody used it
    is_leaving: bool = False  # stopped, while an instance of it is still there
    facts: ModelFacts | None = None  # None: not from a registry

    @property
    def files(self) -> FileSet:
        return FileSet(self.model_path, self.facts.fingerprint if self.facts else "")

    @property
    def serving(self) -> list[InstanceRow]:
        """Those that take requests."""
        return [i for i in self.instances if i.state == READY and i.is_of_served_version]

    @property
    def waits(self) -> bool:
        """Whether its requests wait for an instance: it is loaded when one comes."""
        may_come = self.replicas > 0 and not self.is_leaving
        is_unloaded = self.settings.get("idle_timeout_s", "").lower() not in NO_VALUE
        return may_come and (self.is_asleep or is_unloaded)

    @property
    def adapters(self) -> Mapping[str, str]:
        """Folders by name of those that its engines are told to load."""
        try:
            return parse_engine_settings(self.settings).adapters
        except ConfigError:  # its engines will say so
            return {}

    @property
    def max_model_len(self) -> int | None:
        """What every ready instance can hold; None while none says."""
        lengths = [i.max_model_len for i in self.serving if i.max_model_len]
        return min(lengths) if lengths else None


Table = Mapping[str, Deployed]  # by name


class Claim:
    """A request's share of an instance's outstanding tokens; it shrinks as tokens arrive, some at a time."""

    __slots__ = ("_router", "_tokens", "_used", "instance_id")  # one is touched for each token

    def __init__(self, router: Router, instance_id: str, tokens: int) -> None:
        self.instance_id = instance_id
        self._router = router
        self._tokens = tokens
        self._used = 0  # of them, not given back yet

    def use(self, tokens: int) -> None:
        self._used += tokens
        if self._used >= GIVE_BACK_TOKENS:
            self._give_back(min(self._used, self._tokens))

    def release(self) -> None:
        self._give_back(self._tokens)

    def _give_back(self, tokens: int) -> None:
        self._used = 0
        self._tokens -= tokens
        self._router.give_back(self.instance_id, tokens)


class Router:
    """Thread-safe."""

    def __init__(
        self,
        read_table: Callable[[], Table],
        view: Callable[[str], EngineView | None],
        follow: Callable[[Table], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_table = read_table
        self._view = view
        self._follow = follow
        self._clock = clock
        self._lock = threading.Lock()  # of what is outstanding
        self._reading = threading.Lock()  # of the table; held for as long as the registry takes
        self._table: Table | None = None  # None: never read
        self._read_s = 0.0
        self._began_s = 0.0  # to read what the table has
        self._is_stale = False  # the registry could not be read the last time
        self._outstanding: dict[str, int] = {}  # by instance, of this process's requests
        self._turn = 0
        self._affinity = PrefixAffinity()
        self._places: dict[str, tuple[str, str]] = {}  # backend and device of the last instances seen

    def table(self, *, fresh: bool = False) -> Table:
        """The deployments that shall run. Raises: Unavailable where the registry has never been read."""
        return {name: one for name, one in self._known(fresh=fresh).items() if not one.is_leaving}

    def _known(self, *, fresh: bool = False) -> Table:
        """Those that leave, too."""
        known, asked_s = self._table, self._clock()
        if self._reading.acquire(blocking=fresh or known is None):
            try:
                return self._refreshed(asked_s if fresh else None)
            finally:
                self._reading.release()
        assert known is not None
        return known  # another thread is reading

    def deployed(self, name: str) -> Deployed:
        """Raises: ModelNotFound listing what exists."""
        table = self._known()
        if name not in table:  # it may have been launched within the last half second
            table = self._known(fresh=True)
        if name in table:
            return table[name]
        known = ", ".join(sorted(self.table())) or "none; launch one with `trivet launch MODEL`"
        raise ModelNotFound(f"model {name!r} does not exist; deployed: {known}", param="model")

    def ready(self, name: str, adapter: str = "") -> Deployed:
        """The deployment, of which an instance can serve, or will when it is woken. Raises: as `choose`."""
        deployed = self.deployed(name)
        return deployed if deployed.waits else self._ready(name, frozenset(), adapter)[0]

    def served_adapters(self, deployed: Deployed) -> list[str]:
        """Names of those for which `can_serve` holds: an instance has it, or will when it is woken."""
        if deployed.is_asleep and deployed.waits:
            return sorted(deployed.adapters)
        serving = self._candidates(deployed, frozenset())
        return sorted(frozenset().union(*(self._adapters_of(deployed, one) for one in serving)))

    def known_adapters(self, deployed: Deployed) -> list[str]:
        """Those that are served, and those that an engine will have when it is there."""
        return sorted({*deployed.adapters, *self.served_adapters(deployed)})

    def choose(
        self,
        name: str,
        tokens: int,
        exclude: frozenset[str] = frozenset(),
        prompt: Sequence[int] = (),
        salt: str = "",
        adapter: str = "",
    ) -> Claim:
        """Claim `tokens` on the best instance of deployment `name`, or NOWHERE where one is to be waited for.

        Args:
            prompt: its token ids, and `salt` what keeps its KV apart from that of others (`cache_salt`).
            adapter: that the instance must have; empty: none.

        Raises: ModelNotFound; Unavailable with the state and reason of the nearest candidate.
        """
        try:
            deployed, candidates = self._ready(name, exclude, adapter)
        except Unavailable:
            deployed = self.deployed(name)
            if not deployed.waits or self.has_instance(deployed):  # to wait for one that refused it is vain
                raise
            return Claim(self, NOWHERE, tokens)
        digests = span_digests(prompt, f"{name}\0{salt}\0{adapter}") if len(deployed.instances) > 1 else []
        matched = self._affinity.matches(digests, candidates)
        with self._lock:
            self._turn += 1
            turn = self._turn % len(candidates)
            best = self._best(candidates[turn:] + candidates[:turn], matched, tokens)
            self._outstanding[best] = self._outstanding.get(best, 0) + tokens
        self._affinity.remember(digests, best)
        return Claim(self, best, tokens)

    def _best(self, candidates: Sequence[str], matched: Mapping[str, int], tokens: int) -> str:
        loads = {instance: self._tokens_of(instance) for instance in candidates}
        bound = MAX_LOAD * (sum(loads.values()) + tokens) / len(candidates)
        allowed = [instance for instance in candidates if loads[instance] <= bound]
        return min(allowed, key=lambda instance: (-matched[instance], loads[instance]))

    def claim(self, instance_id: str, tokens: int) -> Claim:
        """Claim `tokens` on an instance that has been chosen before."""
        with self._lock:
            self._outstanding[instance_id] = self._outstanding.get(instance_id, 0) + tokens
        return Claim(self, instance_id, tokens)

    def give_back(self, instance_id: str, tokens: int) -> None:
        with self._lock:
            left = self._outstanding.get(instance_id, 0) - tokens
            if left > 0:
                self._outstanding[instance_id] = left
            else:
                self._outstanding.pop(instance_id, None)

    def place_of(self, instance_id: str) -> tuple[str, str]:
        """Backend and device where it runs or ran; empty words where it was never seen."""
        return self._places.get(instance_id, ("", ""))

    def can_serve(self, deployed: Deployed) -> bool:
        """Whether a request would be answered, be it that it wakes the deployment first."""
        return (deployed.is_asleep and deployed.waits) or self.has_instance(deployed)

    def has_instance(self, deployed: Deployed) -> bool:
        return bool(self._candidates(deployed, frozenset()))

    def why_not(self, deployed: Deployed) -> str:
        """State and reason of the instance that is nearest to serving, for everybody."""
        if not deployed.instances:
            name = deployed.name
            return (
                "it has no instance yet" if deployed.replicas else f"it has 0 replicas: trivet scale {name} 1"
            )
        order = ("ready", "warming", "loading", "starting", "placing", "pending", "draining")
        rank = {state: place for place, state in enumerate(order)}
        nearest = min(deployed.instances, key=lambda i: rank.get(i.state, len(rank)))
        if nearest.state == READY and (view := self._view(nearest.id)) and not view.can_serve:
            return f"instance {nearest.id} {view.why_not}"
        reason = f": {why}" if (why := reason_for_all(nearest.reason)) else ""
        return f"instance {nearest.id} is {nearest.state}{reason}"

    def _cannot_serve(self, deployed: Deployed, adapter: str) -> Unavailable:
        name, why = deployed.name, self.why_not(deployed)
        if adapter and self.has_instance(deployed):
            why = f"no instance that serves has adapter {adapter!r}"
        if deployed.is_leaving:
            return Unavailable(
                f"model {name!r} cannot serve now: {why}; it was stopped, `trivet launch` starts it again"
            )
        if not deployed.replicas:
            return Unavailable(
                f"model {name!r} cannot serve: it was scaled to 0 replicas; an operator starts it again "
                f"with `trivet scale {name} 1`"
            )
        if deployed.instances and all(each.is_given_up for each in deployed.instances):
            return Unavailable(
                f"model {name!r} cannot serve: {why}; it is not tried again by itself: an operator has to "
                f"mend it (`trivet events {name}` tells more; `trivet update`, or stop and launch it again)"
            )
        return Unavailable(
            f"model {name!r} cannot serve now: {why}; try again later",
            retry_after_s=seconds_until_ready(deployed.instances),
        )

    def _ready(self, name: str, exclude: frozenset[str], adapter: str) -> tuple[Deployed, list[str]]:
        deployed = self.deployed(name)
        candidates = self._candidates(deployed, exclude, adapter)
        if not candidates:
            deployed = self._known(fresh=True).get(name, deployed)
            candidates = self._candidates(deployed, exclude, adapter)
        if not candidates:
            raise self._cannot_serve(deployed, adapter)
        return deployed, candidates

    def _adapters_of(self, deployed: Deployed, instance_id: str) -> frozenset[str]:
        """As its engine says; until it was heard, those that it was told to load."""
        view = self._view(instance_id)
        if view is None or view.beat is None:
            return frozenset(deployed.adapters)
        return frozenset(view.beat.adapters)

    def _candidates(self, deployed: Deployed, exclude: frozenset[str], adapter: str = "") -> list[str]:
        ready = [i.id for i in deployed.serving if i.id not in exclude]
        if adapter:
            ready = [one for one in ready if adapter in self._adapters_of(deployed, one)]
        serving = [i for i in ready if (view := self._view(i)) is None or view.can_serve]
        now = self._clock()
        moving = [i for i in serving if (view := self._view(i)) is None or not view.is_stalled(now)]
        return moving or serving

    def _tokens_of(self, instance_id: str) -> int:
        """The larger of what the engine reported and what this process has sent.

        The report covers the other web processes and is up to a beat old; a burst from this process is
        not in it yet.
        """
        view = self._view(instance_id)
        reported = view.load.num_tokens_outstanding if view else 0
        return max(reported, self._outstanding.get(instance_id, 0))

    def _refreshed(self, asked_s: float | None) -> Table:
        """Args: asked_s: when somebody asked for a fresh one; who waited meanwhile has it from the first."""
        if self._table is not None and not self._is_due(asked_s):
            return self._table
        began_s = self._clock()
        try:
            table = self._read_table()
        except Unavailable as error:
            return self._stale(error)
        if self._is_stale:
            logger.warning("registry=readable table=fresh")
        self._table, self._is_stale, self._read_s, self._began_s = table, False, self._clock(), began_s
        for row in (row for one in table.values() for row in one.instances):
            self._places.pop(row.id, None)  # who lives is the newest
            self._places[row.id] = row.backend, row.device
        while len(self._places) > MAX_PLACES:
            del self._places[next(iter(self._places))]
        self._follow(table)
        return table

    def _is_due(self, asked_s: float | None) -> bool:
        age_s = self._clock() - self._read_s
        if self._is_stale:
            return age_s >= RETRY_S
        return age_s >= MAX_AGE_S or (asked_s is not None and self._began_s <= asked_s)

    def _stale(self, error: Unavailable) -> Table:
        """Raises: `error` where there is no table yet."""
        if self._table is None:
            raise error
        if not self._is_stale:  # once for an outage
            logger.warning("registry=unreadable table=stale error=%s", error)
        self._is_stale, self._read_s = True, self._clock()
        return self._table
