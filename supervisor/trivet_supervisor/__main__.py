"""`python -m trivet_supervisor [--parent-fd N]`: the supervisor process, started by `trivet serve`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from contextlib import closing

import zmq
from sqlalchemy.exc import SQLAlchemyError

from trivet.config import inherited_environment, load_settings
from trivet.engine.measured_peaks import PeakStore
from trivet.errors import TrivetError
from trivet.launching import PlacesOnHosts
from trivet.plugins import load_plugins
from trivet_registry.database import Database, open_database
from trivet_registry.events_store import record_event
from trivet_registry.supervision import claim_supervision
from trivet_supervisor.device_refresh import refreshing
from trivet_supervisor.devices import DeviceTable
from trivet_supervisor.engine_wire import ZmqWire
from trivet_supervisor.means import Means
from trivet_supervisor.orphans import end_orphans
from trivet_supervisor.parent_pipe import CANNOT_START, watch_pipe
from trivet_supervisor.placement import Placer
from trivet_supervisor.reconcile import Reconciler
from trivet_supervisor.server import Server
from trivet_supervisor.supervisor_process import SupervisorProcess, leave_on_signals

logger = logging.getLogger(__name__)

LOCK_PATIENCE_S = 3.0  # for who holds the registry: engines may end meanwhile, and somebody asks how it is
PREDECESSOR_S = 15.0  # for the supervisor of a serve that was killed: a probe may hold its loop for 10 s


def main(argv: list[str] | None = None) -> int:
    """Entry of the process."""
    parser = argparse.ArgumentParser(prog="python -m trivet_supervisor")
    parser.add_argument("--parent-fd", type=int, help="pipe whose end means that the parent is gone")
    given = parser.parse_args(argv)
    settings = load_settings()
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        run(given.parent_fd)
    except TrivetError as error:
        logger.error("%s", error)
        return CANNOT_START
    return 0


def run(parent_fd: int | None) -> None:
    """Raises: Conflict where another supervisor manages this registry, or does by now; ConfigError."""
    settings = load_settings()
    settings.paths.create()
    host = load_plugins()
    for problem in host.failures.values():
        logger.error("%s", problem)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    patience_s = 0.0 if parent_fd is None else PREDECESSOR_S
    with (
        closing(
            open_database(settings.resolved_database_url, is_durable=False, patience_s=LOCK_PATIENCE_S)
        ) as database,
        claim_supervision(database, f"the supervisor with pid {os.getpid()}", patience_s) as claim,
        closing(ZmqWire(context, settings.paths.engine_keys_file)) as wire,
        closing(Server(context, settings.paths.supervisor_socket())) as server,
    ):
        launcher = host.launcher(settings)
        elsewhere = launcher if isinstance(launcher, PlacesOnHosts) else None
        devices = DeviceTable(host.backends, failures=host.failures, elsewhere=elsewhere)
        means = Means(
            database=database,
            settings=settings,
            launcher=launcher,
            wire=wire,
            clock=time.monotonic,
            inherited=inherited_environment(),
            check_claim=claim.check,
            memory_holders=devices.holders,
        )
        _tell_start(database)
        if elsewhere is None:
            end_orphans(means)  # before anything is placed; of other hosts as soon as they answer
        placer = Placer(host, devices, PeakStore(settings.paths.peaks))
        process = SupervisorProcess(means, Reconciler(means, placer), wire, server)
        leave_on_signals(process)
        if parent_fd is not None:
            watch_pipe(parent_fd, process.leave)
        logger.info("pid=%d home=%s", os.getpid(), settings.paths.home)
        with refreshing(means, devices):
            process.run()
    context.term()


def _tell_start(database: Database) -> None:
    """By these events one sees that supervisors died, also where no engine had to be adopted."""
    try:
        with database.session() as session:
            record_event(session, "supervisor", f"supervisor started, pid {os.getpid()}")
    except SQLAlchemyError as error:  # a full disk: what runs must be watched all the same
        logger.warning("the start cannot be written down: %s", error)


if __name__ == "__main__":
    sys.exit(main())
