"""What one web process holds, made after the fork and passed to the views through the application."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from flask import current_app

from trivet.access import management_token
from trivet.client.results import Plan
from trivet.config import Settings
from trivet.engine.measured_peaks import PeakStore
from trivet.errors import TrivetError, Unavailable
from trivet.launching import PlacesOnHosts
from trivet.models.description import ModelFiles
from trivet.plugins import PluginHost, load_plugins
from trivet.prober import Prober
from trivet_registry.database import Database, open_database
from trivet_registry.deployment_changes import wake_deployment
from trivet_registry.model_store.store import ModelStore
from trivet_web.accounts.limits import FILE as LIMITS_FILE
from trivet_web.accounts.limits import Limits
from trivet_web.accounts.site_accounts import SiteAccounts
from trivet_web.accounts.usage_counter import UsageCounter
from trivet_web.answers.request_log import LENGTH, RequestEnded, RequestLog
from trivet_web.answers.shared_requests import REQUESTS_FOLDER, SharedRequests
from trivet_web.batch.stored_batch import Shelf
from trivet_web.engines.engine_link import EngineView
from trivet_web.engines.known_devices import KnownDevices
from trivet_web.engines.registry_view import table_reader
from trivet_web.engines.relay import Relay
from trivet_web.engines.routing import Router, Table
from trivet_web.engines.supervisor_link import SupervisorLink
from trivet_web.engines.waking import Waker
from trivet_web.metrics.bucket_history import BucketHistory
from trivet_web.metrics.engine_totals import TOTALS_FOLDER, EngineTotals
from trivet_web.metrics.history import History
from trivet_web.metrics.metric_families import samples
from trivet_web.metrics.quantiles import WINDOW_S, quantile_samples
from trivet_web.metrics.web_metrics import WebMetrics
from trivet_web.models.launch_plan import plan_launch
from trivet_web.models.prompt_encoder import PromptEncoder
from trivet_web.models.pulling import Puller
from trivet_web.models.servable import open_new
from trivet_web.models.served_models import ServedModel, ServedModels, load_served_model
from trivet_web.stored_objects import StoredObjects
from trivet_web.stream_worker.hang_up import HangUpWatcher
from trivet_web.stream_worker.slots import Slots

if TYPE_CHECKING:
    from trivet_web.batch.runner import BatchRunner
    from trivet_web.console.event_feed import EventFeed

logger = logging.getLogger(__name__)
T = TypeVar("T", bound=msgspec.Struct)
EXTENSION = "trivet"
METRICS_FOLDER = "web-metrics"  # in the run directory
SAMPLE_INTERVAL_S = 1.0
BATCHES_END_S = 2.0  # for lines that have been ended; what is not written down by then is asked again
SHUTDOWN_NOTICE_S = 1.0  # before the drain deadline: time to write an error event and close properly
KILL_MARGIN_S = 2  # past it, until gunicorn's master kills a worker: a busy machine may need more time


class WebProcess:
    """Threads and sockets of a web process; `close` ends them.

    `read_table` and `load_model` are for tests that have no registry or model files.
    """

    def __init__(
        self,
        settings: Settings,
        read_table: Callable[[], Table] | None = None,
        load_model: Callable[[str], ServedModel] = load_served_model,
    ) -> None:
        self.settings = settings
        settings.paths.create()
        self.token = management_token(settings.paths.token_file)
        self.database: Database = open_database(settings.resolved_database_url)
        self.accounts = SiteAccounts.of(settings, self.database, lambda: self.token)
        self.limits = Limits(settings.paths.run / LIMITS_FILE)
        self.usage = UsageCounter(self.database, self.accounts.credentials)
        self.metrics = WebMetrics(settings.paths.run / METRICS_FOLDER if settings.web_workers > 1 else None)
        # With a table of its caller's it is alone, and its home may be gone by now (batch.offline_site).
        self.engine_totals = EngineTotals(settings.paths.run / TOTALS_FOLDER if read_table is None else None)
        self.history = History()
        self.buckets = BucketHistory()
        self.requests = RequestLog()
        shared = settings.paths.run / REQUESTS_FOLDER if settings.web_workers > 1 else None
        self.shared_requests = SharedRequests(shared)
        self._published = 0  # of `requests.num_changes`
        self.relay = Relay(settings.paths.run)
        self.models = ServedModels(load_model)
        self.prompts = PromptEncoder()
        self.router = Router(read_table or table_reader(self.database), self.relay.view, self._follow)
        self.supervisor = SupervisorLink(settings.paths)
        self.waker = Waker(self.router, self._wake, self.relay.tell)
        self.hang_up = HangUpWatcher()
        self.slots = Slots(num_slots(settings.web_threads))
        self._plugins: PluginHost | None = None
        self._plugins_lock = threading.Lock()
        self.store = ModelStore(settings.paths.models)
        self.puller = Puller(settings, self.database, self.open_new, self.plan)
        self.is_checking = threading.Lock()  # held while a doctor looks at the host
        self.is_draining = False
        self._drained_s = 0.0  # CLOCK_MONOTONIC, until when open requests may go on
        self.shelf = Shelf.of(settings)
        self._stored: dict[str, StoredObjects[Any]] = {}  # by folder
        self._batches: BatchRunner | None = None
        self.console_feed: EventFeed | None = None
        self._is_closed = threading.Event()
        self._sampler = threading.Thread(target=self._sample_often, name="sampler", daemon=True)
        self._sampler.start()

    @property
    def plugins(self) -> PluginHost:
        """Loaded on first use: only plans need them. Raises: PluginError."""
        with self._plugins_lock:
            if self._plugins is None:
                self._plugins = load_plugins()
            return self._plugins

    def stored(self, folder: str, kind: type[T]) -> StoredObjects[T]:
        """The objects of one kind: one for all requests, so that it knows when it was last swept."""
        if folder not in self._stored:  # two at once: one of them stays
            made = StoredObjects(self.settings.paths.stored / folder, kind, self.settings.retention_days)
            self._stored.setdefault(folder, made)
        return self._stored[folder]

    def open_new(self, path: Path) -> ModelFiles:
        """Model files that came from elsewhere. Raises: ModelFilesError."""
        return open_new(path, self.plugins)

    def plan(
        self, path: Path, settings: Mapping[str, str], backend: str = "auto", device: str | None = None
    ) -> Plan:
        """What a launch would take. Raises: as `plan_launch`."""
        peaks = PeakStore(self.settings.paths.peaks)
        return plan_launch(self.database, self.plugins, self.prober, path, settings, backend, device, peaks)

    @cached_property
    def prober(self) -> Prober:
        """Of the devices that a launch gets. Raises: ConfigError, PluginError."""
        elsewhere = isinstance(self.plugins.launcher(self.settings), PlacesOnHosts)
        return KnownDevices(self.database) if elsewhere else Prober()

    def engine_view(self, instance_id: str) -> EngineView | None:
        """What the instance's own beats say; None until it is known."""
        self.router.table()  # which follows new instances
        return self.relay.view(instance_id)

    def _follow(self, table: Table) -> None:
        rows = [row for deployed in table.values() for row in deployed.instances]
        self.relay.locate({row.id: row.endpoints for row in rows if row.endpoints is not None})
        self.relay.watch([row.id for row in rows])
        self.models.follow([deployed.files for deployed in table.values()])

    def _wake(self, deployment: str) -> None:
        with self.database.session() as session:
            is_news = wake_deployment(session, deployment)
        if is_news:
            self.supervisor.wake()

    def begin_drain(self, timeout_s: float) -> None:
        """Say not ready at once; end what is still open just before the deadline, with an error event."""
        self.is_draining = True
        left_s = max(0.0, timeout_s - SHUTDOWN_NOTICE_S)
        self._drained_s = time.monotonic() + left_s
        threads: list[threading.Thread] = [threading.Timer(left_s, self._end_open_requests)]
        if self.console_feed is not None:  # which waits for its thread, and that for the registry
            threads.append(threading.Thread(target=self.console_feed.close, name="console-end"))
        try:
            for thread in threads:
                thread.daemon = True
                thread.start()
        except RuntimeError as error:  # a limit of threads: what is open goes on, and is cut at the deadline
            logger.warning("drain=without_notice error=%s", error)

    def _end_open_requests(self) -> None:
        error = Unavailable("the web server is shutting down; send the request again")
        self.waker.end_all(error)  # first: whoever stops waiting goes to the relay
        self.relay.end_all(error)

    def _sample_often(self) -> None:
        """Body of a thread: what is not seen in this second is in no history."""
        while not self._is_closed.wait(SAMPLE_INTERVAL_S):
            try:
                now_s, totals = time.time(), self.metrics.totals()
                self.buckets.observe(now_s, totals)
                _, spreads = self.buckets.spread(WINDOW_S, now_s, totals)
                self.history.append(now_s, [*samples(self), *quantile_samples(spreads)])
            except TrivetError as error:
                logger.debug("sample=none reason=%s", error)  # the registry was never read
            except Exception:  # a border, as below
                logger.exception("no sample is taken")
            try:
                self._share_requests()
            except Exception:  # a border: histories and ends need this thread
                logger.exception("requests are not shared")

    def _share_requests(self) -> None:
        """Tell the other web processes of those here, and end those that they were asked to end."""
        if self.settings.web_workers == 1:
            return
        running = self.requests.all_running()  # whoever ends one wants the oldest, mostly
        if running or self.requests.num_changes != self._published:
            self._published = self.requests.num_changes
            self.shared_requests.publish(self.requests.newest(LENGTH + len(running)))
        for request_id, reason in self.shared_requests.wanted_ends(one.id for one in running).items():
            if (entry := self.requests.running(request_id)) is not None:
                entry.stop(RequestEnded(reason))

    def serve_batches(self, runner: BatchRunner) -> None:
        """`runner` asks the application, which is made after this."""
        self._batches = runner

    def wake_batches(self) -> None:
        """There is something new for them."""
        if self._batches is not None:
            self._batches.wake()

    def end_batches(self, beat: Callable[[], None] = lambda: None) -> None:
        """Wait for their lines as long as the drain lasts; what is left is asked again at the next start.

        Args:
            beat: called about once a second meanwhile.
        """
        if self._batches is None:
            return
        self._batches.stop()
        while (left_s := self._drained_s - BATCHES_END_S - time.monotonic()) > 0 and self._batches.is_at_work:
            beat()
            self._batches.join(min(left_s, 1.0))
        self._end_open_requests()
        self._batches.join(BATCHES_END_S)

    def close(self) -> None:
        """Idempotent."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        self._sampler.join()
        if self.console_feed is not None:
            self.console_feed.close()
        self.puller.close()
        self.end_batches()
        self.relay.close()
        self.hang_up.close()
        self.metrics.close()
        self.usage.close()
        self.limits.close()
        self.database.close()


def num_slots(threads: int) -> int:
    """Threads that inference may take: some stay free, so that health and console always answer."""
    return max(1, threads - max(4, threads // 8))


def web_process() -> WebProcess:
    """The one of this application."""
    return cast("WebProcess", current_app.extensions[EXTENSION])


def now_s() -> int:
    """Seconds since the epoch, as OpenAI's `created`."""
    return int(time.time())
