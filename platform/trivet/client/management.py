"""The calls of `/platform/v1` beside those of `registry.py`: what shall run, what does, and how it does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trivet.client.calls import (
    ROOT,
    C,
    Call,
    Group,
    StreamCall,
    ask,
    ask_list,
    call,
    given,
    nothing,
    place,
    stream,
)
from trivet.client.fields import DeploymentChanges
from trivet.client.inference import Encoding
from trivet.client.observations import BatchView, Histograms, History, Request
from trivet.client.results import (
    Deployment,
    Device,
    Event,
    Instance,
    Node,
    Plan,
    PrefixCacheReset,
    Status,
)
from trivet.client.site_settings import SiteCheck, SiteSettings


class Deployments(Group[C]):
    """What shall run.

    >>> made = client.deployments.create(model_path, name="two", backend="null", replicas=2)
    >>> made.desired, made.replicas
    ('running', 2)
    >>> client.deployments.scale("two", 1).replicas
    1
    >>> client.deployments.update("two", {"settings": {"max_num_seqs": "4"}}).settings
    {'max_num_seqs': '4'}
    >>> client.deployments.stop("two", drain_timeout_s=5)
    >>> client.deployments.get("two").desired
    'stopped'
    """

    @call
    def create(
        self,
        model: str,
        *,
        name: str | None = None,
        backend: str = "auto",
        device: str | None = None,
        replicas: int = 1,
        settings: Mapping[str, str] | None = None,
        priority: int = 0,
        fallback: str | None = None,
    ) -> Call[Deployment]:
        """Ask for a model to be served; `get` shows when it is. Raises: Conflict if the name runs already."""
        body = given(
            model=model,
            name=name,
            backend=backend,
            device=device,
            replicas=replicas,
            settings=dict(settings or {}),
            priority=priority or None,
            fallback=fallback,
        )
        return ask("POST", f"{ROOT}/deployments", Deployment, body=body)

    @call
    def list(self) -> Call[tuple[Deployment, ...]]:
        """Running and stopped ones."""
        return ask_list(f"{ROOT}/deployments", Deployment)

    @call
    def get(self, name: str) -> Call[Deployment]:
        """Raises: NotFound."""
        return ask("GET", _deployment(name), Deployment)

    @call
    def scale(self, name: str, replicas: int) -> Call[Deployment]:
        """Raises: NotFound."""
        return ask("PATCH", _deployment(name), Deployment, body={"replicas": replicas})

    @call
    def update(self, name: str, changes: DeploymentChanges) -> Call[Deployment]:
        """Change what runs: other instances replace the running ones as they become ready.

        Raises: NotFound; Conflict where it is stopped.
        """
        return ask("PATCH", _deployment(name), Deployment, body=dict(changes))

    @call
    def stop(self, name: str, drain_timeout_s: float | None = None) -> Call[None]:
        """Take no new requests, finish the running ones until the deadline, then end. Raises: NotFound."""
        query = {"drain_timeout_s": drain_timeout_s}
        return ask("DELETE", _deployment(name), object, query=query).then(nothing)


class Instances(Group[C]):
    """What does run.

    >>> (instance,) = client.instances.list("null")
    >>> instance.state, instance.backend, instance.plan.block_size
    ('ready', 'null', 128)
    >>> client.instances.batch(instance.id).max_num_seqs
    64
    >>> client.instances.reset_prefix_cache(instance.id) >= 0
    True
    """

    @call
    def list(self, deployment: str | None = None, *, ended: bool = False) -> Call[tuple[Instance, ...]]:
        """`ended` includes those that are stopped, failed or lost."""
        query = {"deployment": deployment, "all": 1 if ended else None}
        return ask_list(f"{ROOT}/instances", Instance, query)

    @call
    def batch(self, instance_id: str) -> Call[BatchView]:
        """Which sequences its engine computes now, and who holds its KV blocks.

        Raises: NotFound; Conflict if it is not ready.
        """
        return ask("GET", f"{ROOT}/instances/{place(instance_id)}/batch", BatchView)

    @call
    def reset_prefix_cache(self, instance_id: str) -> Call[int]:
        """The engine forgets every prefix, what runs goes on. Returns how many tokens it knew.

        Raises: NotFound; Conflict if it is not ready.
        """
        path = f"{ROOT}/instances/{place(instance_id)}/reset-prefix-cache"
        return ask("POST", path, PrefixCacheReset).then(lambda reset: reset.forgotten_tokens)


class Operation(Encoding[C]):
    """How the site does: `client.status`, `.settings`, `.devices`, `.nodes`, `.events`, `.logs`, `.plan`.

    Figures are `.history`, `.histograms` and `.metrics`.

    >>> client.status().supervisor.up
    True
    >>> given = [one.name for one in client.settings().settings if one.source == "given"]
    >>> (instance,) = client.instances.list("null")
    >>> log = "".join(client.logs(instance.id, tail=20))
    >>> own = "".join(client.site_logs("supervisor", tail=20))
    >>> client.events("null", limit=1)[0].deployment
    'null'
    >>> plan = client.plan(model_path, backend="cpu", settings={"max_model_len": "1024"})
    >>> plan.fits, plan.max_model_len
    (True, 1024)
    >>> history = client.history(60, names=["num_requests_running"])
    >>> "trivet:num_requests_running" in client.metrics()
    True
    """

    @call
    def status(self) -> Call[Status]:
        """Version, and whether the supervisor lives."""
        return ask("GET", f"{ROOT}/status", Status)

    @call
    def settings(self) -> Call[SiteSettings]:
        """Those in effect and where each comes from; what is installed."""
        return ask("GET", f"{ROOT}/settings", SiteSettings)

    @call
    def checks(self) -> Call[tuple[SiteCheck, ...]]:
        """What `trivet doctor` finds out about the server's host and home; it takes seconds."""
        return ask_list(f"{ROOT}/checks", SiteCheck)

    @call
    def devices(self) -> Call[tuple[Device, ...]]:
        """As the supervisor's probe last saw them, usable or not."""
        return ask_list(f"{ROOT}/devices", Device)

    @call
    def nodes(self) -> Call[tuple[Node, ...]]:
        """The hosts of the site, with what they have and what lives there."""
        return ask_list(f"{ROOT}/nodes", Node)

    @call
    def events(
        self, deployment: str | None = None, limit: int = 100, *, instance: str | None = None
    ) -> Call[tuple[Event, ...]]:
        """The newest `limit`, oldest first; of one deployment or instance, or of all."""
        query = {"deployment": deployment, "instance": instance, "limit": limit}
        return ask_list(f"{ROOT}/events", Event, query)

    @stream
    def logs(
        self, instance: str, *, follow: bool = False, attempt: int | str | None = None, tail: int = 200
    ) -> StreamCall[str]:
        """The engine's log in pieces of text; `follow` goes on until the stream is closed.

        Args:
            attempt: a number, "first-crash", or None for the newest.
        """
        query = {"attempt": attempt, "tail": tail, "follow": int(follow)}
        return StreamCall("GET", f"{ROOT}/logs/{place(instance)}", str, query=query, is_endless=follow)

    @stream
    def site_logs(self, name: str, *, follow: bool = False, tail: int = 200) -> StreamCall[str]:
        """What "supervisor" or "web" writes, in pieces of text; `follow` as of `logs`."""
        query = {"tail": tail, "follow": int(follow)}
        return StreamCall("GET", f"{ROOT}/site-logs/{place(name)}", str, query=query, is_endless=follow)

    @call
    def history(
        self, window_s: int = 900, *, names: Iterable[str] = (), deployment: str | None = None
    ) -> Call[History]:
        """Figures of the last `window_s` seconds; `names` are those of `/metrics` without the prefix."""
        query = {"window_s": window_s, "names": ",".join(names) or None, "deployment": deployment}
        return ask("GET", f"{ROOT}/history", History, query=query)

    @call
    def requests(self, limit: int = 200, *, deployment: str | None = None) -> Call[tuple[Request, ...]]:
        """The newest requests, those that run first, of all web processes."""
        return ask_list(f"{ROOT}/requests", Request, {"limit": limit, "deployment": deployment})

    @call
    def stop_request(self, request_id: str) -> Call[None]:
        """End one that runs; its client is told so. Raises: NotFound."""
        return ask("DELETE", f"{ROOT}/requests/{place(request_id)}", object).then(nothing)

    @call
    def histograms(
        self, window_s: int = 300, *, names: Iterable[str] = (), deployment: str | None = None
    ) -> Call[Histograms]:
        """How latencies and lengths of the last `window_s` seconds are spread, by buckets."""
        query = {"window_s": window_s, "names": ",".join(names) or None, "deployment": deployment}
        return ask("GET", f"{ROOT}/histograms", Histograms, query=query)

    @call
    def plan(
        self,
        model: str,
        *,
        backend: str = "auto",
        device: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Call[Plan]:
        """What a launch would take, on the server's host. `fits` false carries the reason."""
        body = {"model": model, "backend": backend, "device": device, "settings": dict(settings or {})}
        return ask("POST", f"{ROOT}/plan", Plan, body=body)

    @call
    def metrics(self) -> Call[str]:
        """Every figure in Prometheus' text format."""
        return ask("GET", "/metrics", str)


def _deployment(name: str) -> str:
    return f"{ROOT}/deployments/{place(name)}"
