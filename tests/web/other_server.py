"""The web server with another worker or smaller limits: `python other_server.py KIND HOME PORT`."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from gunicorn.workers.gthread import ThreadWorker

from trivet.config import load_settings
from trivet_web.answers import sse
from trivet_web.server import WebServer, configure_logging
from trivet_web.stored_objects import StoredObjects
from trivet_web.stream_worker import worker as worker_module
from trivet_web.stream_worker.collected import Allowance
from trivet_web.stream_worker.worker import SPARE_CONNECTIONS, StreamWorker
from trivet_web.web_process import EXTENSION


class Poor(StreamWorker):
    """A MB for the bodies of strangers, and few connections."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.allowance = Allowance(1 << 20)
        self.worker_connections = SPARE_CONNECTIONS + 8


class Standstill:
    """Takes the relay's thread for ever once it has come round for a second."""

    def __init__(self, relay: Any) -> None:
        self._fd = relay._wake
        self._begun_s = time.monotonic()

    def fileno(self) -> int:
        return int(self._fd)

    def serve_woken(self, now: float) -> None:
        pass

    def come_round(self, now: float) -> None:
        if now > self._begun_s + 1:
            time.sleep(3600)


class Stuck(StreamWorker):
    """Its relay stands still."""

    def load_wsgi(self) -> None:
        super().load_wsgi()
        relay = self.wsgi.extensions[EXTENSION].relay
        relay.host(Standstill(relay))


class Crowded(StreamWorker):
    """In the round in which it is told to end there are connections, too."""

    def _begin_drain(self) -> None:
        super()._begin_drain()
        for listener in self.sockets:
            self.accept(listener)


class Telling(StreamWorker):
    """Names the thread that stores an object, in the object's folder."""

    def load_wsgi(self) -> None:
        super().load_wsgi()
        put = StoredObjects.put

        def told(store: StoredObjects[Any], object_id: str, value: Any, **options: bool) -> None:
            put(store, object_id, value, **options)
            with (store._folder / "threads").open("a") as file:
                file.write(threading.current_thread().name + "\n")

        StoredObjects.put = told  # type: ignore[method-assign]


KINDS = {
    "gthread": ThreadWorker,
    "poor": Poor,
    "stuck": Stuck,
    "crowded": Crowded,
    "impatient": StreamWorker,
    "telling": Telling,
    "prompt": StreamWorker,  # with the head of a stream, before there is a token
}

if __name__ == "__main__":
    kind, home, port = sys.argv[1:]
    settings = load_settings({"home": home, "port": int(port)})
    configure_logging("INFO")
    server = WebServer(settings, KINDS[kind])
    if kind in ("stuck", "impatient"):
        server.cfg.set("timeout", 3)
        worker_module.STANDSTILL_S = 1.0
    if kind == "prompt":
        sse.FIRST_PIECE_WAIT_S = 0.2
    server.run()
