"""`trivet serve` and `trivet demo`: the parent, and what happens when it is up."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from trivet.access import check_bind, check_users, local_url, new_management_token
from trivet.config import Settings, service_socket
from trivet.errors import TrivetError
from trivet_registry.database import Database, open_database
from trivet_registry.devices_store import list_devices
from trivet_registry.tables import Device
from trivet_registry.users_store import count_users
from trivet_supervisor.demo import NAME, chat_once, launch_demo
from trivet_supervisor.parent import Parent
from trivet_supervisor.serve_checks import check_host, serve_lock, with_free_port
from trivet_supervisor.service.notify import tell_service_manager
from trivet_supervisor.startup_box import startup_box

logger = logging.getLogger(__name__)

PREDECESSOR_S = 20.0  # its grace is 10 s
DEVICES_TIMEOUT_S = 2.0  # the supervisor probes as it starts


def serve(settings: Settings, *, launches_demo: bool = False, chats: bool = False, once: bool = False) -> int:
    """Run until told to stop. Returns the exit code.

    Raises: ConfigError for an address that is unsafe or taken, or a registry that cannot be opened; Conflict
    where this home is served already; Unavailable where supervisor or web cannot be brought up.
    """
    started_s = time.monotonic()
    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stderr)
    check_host(settings.host)
    check_bind(settings)
    settings.paths.create()
    # The registry is opened here first: one that cannot be is told in a sentence, and nothing is started.
    with serve_lock(settings.paths), closing(open_database(settings.resolved_database_url)) as database:
        with database.reading() as session:
            has_users = count_users(session) > 0
        check_users(settings, has_users)
        # The url file outlives a serve that was killed, whose web server is about to leave the port.
        was_killed = settings.paths.url_file.exists()
        settings = with_free_port(settings, PREDECESSOR_S if was_killed else 0.0)
        token = new_management_token(settings.paths.token_file)  # engines that are adopted do not know it
        parent = Parent(settings)
        show = _Show(settings, token, parent, once) if launches_demo else None

        def on_up() -> None:
            took_s = time.monotonic() - started_s
            print(startup_box(settings, token, _devices(database), took_s, has_users), flush=True)
            tell_service_manager(service_socket(), f"READY=1\nSTATUS=serves at {local_url(settings)}")
            if show is not None:
                show.start(chats)

        _tell_commands(settings)
        try:
            parent.run(on_up)
        finally:
            settings.paths.url_file.unlink(missing_ok=True)
            settings.paths.cert_file.unlink(missing_ok=True)
        if show is not None:
            show.join()
    if parent.has_left_engines:
        return 1
    print("stopped")
    return 0 if show is None else show.exit_code


def _tell_commands(settings: Settings) -> None:
    """Where commands of this home find the server, and by which certificate they know it."""
    try:
        if settings.tls_cert is not None:
            settings.paths.cert_file.write_text(str(Path(settings.tls_cert).expanduser().absolute()))
        settings.paths.url_file.write_text(local_url(settings))
    except OSError as error:  # a full disk: what can be served is served
        settings.paths.url_file.unlink(missing_ok=True)  # half of an address is worse than none
        logger.warning("%s; commands need --url %s", error, local_url(settings))


class _Show:
    """The demo, on a thread: the main thread keeps the children."""

    def __init__(self, settings: Settings, token: str, parent: Parent, once: bool) -> None:
        from trivet.client import Client  # and the HTTP library that it brings

        self.exit_code = 0
        self._client = Client(local_url(settings), token)
        self._parent = parent
        self._once = once
        self._thread: threading.Thread | None = None

    def start(self, chats: bool) -> None:
        self._thread = threading.Thread(target=self._run, args=(chats,), name="demo", daemon=True)
        self._thread.start()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(timeout=10)
        self._client.close()

    def _run(self, chats: bool) -> None:
        try:
            is_new = launch_demo(self._client, sys.stdout)
            if chats:
                chat_once(self._client, sys.stdout)
                if self._once and is_new:  # else the next serve would start it
                    self._client.deployments.stop(NAME)
                if not self._once and not self._parent.is_stopping:
                    print("\nit goes on serving; ask more with: trivet chat", flush=True)
        except TrivetError as error:
            if not self._parent.is_stopping:
                print(f"trivet demo: {error}", file=sys.stderr, flush=True)
                self.exit_code = 1
        except OSError:  # nobody reads what it prints
            self.exit_code = 1
        finally:
            if self._once:
                self._parent.request_stop()


def _devices(database: Database) -> Sequence[Device]:
    deadline_s = time.monotonic() + DEVICES_TIMEOUT_S
    while True:
        with database.reading() as session:
            found = list_devices(session)
        if found or time.monotonic() > deadline_s:
            return found
        time.sleep(0.05)
