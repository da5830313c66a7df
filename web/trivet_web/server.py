"""The web server's process: gunicorn with our settings, worker and application."""

from __future__ import annotations

import logging
import resource
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.workers.base import Worker
from sqlalchemy.exc import SQLAlchemyError

from trivet.config import Settings
from trivet.errors import TrivetError
from trivet_registry.database import open_database
from trivet_registry.instance_state import LIVE_STATES
from trivet_registry.instances_store import list_instances
from trivet_web.answers.shared_requests import REQUESTS_FOLDER
from trivet_web.app import create_app
from trivet_web.metrics.engine_totals import TOTALS_FOLDER, join_files
from trivet_web.metrics.web_metrics import prepare_folder
from trivet_web.stream_worker.worker import StreamWorker
from trivet_web.web_process import EXTENSION, KILL_MARGIN_S, METRICS_FOLDER

logger = logging.getLogger(__name__)

EXIT_FAILED = 1
HEARTBEAT_TIMEOUT_S = 15  # of a worker's main loop, pump and relay; requests may take as long as they like
KEEPALIVE_S = 15
MAX_CONNECTIONS = 4096  # a worker; most of them idle
RESERVED_FILES = 256  # of a worker's descriptors: engines, registry, logs


class SteadyArbiter(Arbiter):  # type: ignore[misc]  # gunicorn has no types
    """Keeps to `web_workers`: counts and locks of a site are made for so many processes, by one master."""

    def handle_ttin(self) -> None:
        self._refuse("SIGTTIN")

    def handle_ttou(self) -> None:
        self._refuse("SIGTTOU")

    def handle_usr2(self) -> None:
        self._refuse("SIGUSR2")

    def _refuse(self, name: str) -> None:
        self.log.warning("signal=%s changes nothing; set web_workers and start the server again", name)


class WebServer(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    """`run` returns when the server has been told to stop and has drained."""

    def __init__(self, settings: Settings, worker_class: type[Worker] = StreamWorker) -> None:
        self._settings = settings
        self._worker_class = worker_class
        super().__init__()

    def load_config(self) -> None:
        settings = self._settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        options: dict[str, Any] = {
            "bind": f"{host}:{settings.port}",
            "workers": settings.web_workers,
            "worker_class": self._worker_class,
            "threads": settings.web_threads,
            "worker_connections": max_connections(),
            "timeout": HEARTBEAT_TIMEOUT_S,
            "graceful_timeout": int(settings.drain_timeout_s) + KILL_MARGIN_S,
            "keepalive": KEEPALIVE_S,
            "control_socket_disable": True,  # on by default, and one more door
            "forwarded_allow_ips": "",  # nobody may speak for another address
            "loglevel": settings.log_level.lower(),
            "proc_name": "trivet-web",
            "certfile": settings.tls_cert and str(Path(settings.tls_cert).expanduser()),  # so that the scheme
            "keyfile": settings.tls_key and str(Path(settings.tls_key).expanduser()),  # is https
            "on_starting": _on_starting(settings),
            "worker_exit": _on_worker_exit,
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def run(self) -> None:
        try:
            SteadyArbiter(self).run()
        except RuntimeError as error:
            logger.critical("the web server does not start: %s", error)
            sys.exit(EXIT_FAILED)

    def load(self) -> Flask:
        """Called in each worker, after the fork: threads and sockets belong to it."""
        return create_app(self._settings)


def max_connections() -> int:
    """What the limit of open files allows; it is raised as far as this account may.

    gunicorn's worker ends, and every stream with it, where there is no descriptor for a connection. The
    usual limit of 1024 is below the number of connections that it would take.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + RESERVED_FILES
    if 0 <= soft < wanted:
        soft = wanted if hard < 0 else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MAX_CONNECTIONS if soft < 0 else min(MAX_CONNECTIONS, max(soft - RESERVED_FILES, soft // 2))


def configure_logging(level: str) -> None:
    """Of the process; gunicorn has its own handlers and does not propagate."""
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s")


def _on_starting(settings: Settings) -> Any:
    def prepare(_arbiter: object) -> None:
        join_files(settings.paths.run / TOTALS_FOLDER, _living_instances(settings))
        if settings.web_workers > 1:
            prepare_folder(settings.paths.run / METRICS_FOLDER)
            prepare_folder(settings.paths.run / REQUESTS_FOLDER)

    return prepare


def _living_instances(settings: Settings) -> list[str] | None:
    """None where the registry cannot be read."""
    try:
        with (
            closing(open_database(settings.resolved_database_url)) as database,
            database.reading() as session,
        ):
            return [one.id for one in list_instances(session, states=LIVE_STATES)]
    except (TrivetError, SQLAlchemyError) as error:  # the workers say what is to be done
        logger.warning("instances=unknown error=%s", error)
        return None


def _on_worker_exit(_arbiter: object, worker: Any) -> None:
    application = getattr(worker, "wsgi", None)  # None where it failed to load
    if application is not None:
        application.extensions[EXTENSION].close()
    if pump := getattr(worker, "pump", None):
        pump.close()
