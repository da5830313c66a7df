"""Ends engines where no supervisor lives: this process becomes one for as long as it takes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext

import zmq
from sqlalchemy.exc import OperationalError

from trivet.config import Settings
from trivet.engine.placement import Placement
from trivet.errors import ConfigError, Unavailable
from trivet.launching import Launcher, PlacesOnHosts
from trivet.plugins import load_plugins
from trivet_registry.database import Database, open_database
from trivet_registry.deployments_store import RUNNING, list_deployments, stop_deployment
from trivet_registry.fences_store import list_fences
from trivet_registry.instance_state import PROCESS_STATES
from trivet_registry.instances_store import list_instances
from trivet_registry.supervision import claim_supervision
from trivet_supervisor.device_refresh import refreshing
from trivet_supervisor.devices import DeviceTable
from trivet_supervisor.engine_wire import ZmqWire
from trivet_supervisor.fences import why_unconfirmed
from trivet_supervisor.instance_watch import Limits
from trivet_supervisor.means import Means
from trivet_supervisor.orphans import end_handles, end_orphans
from trivet_supervisor.other_home import original_home
from trivet_supervisor.reconcile import Reconciler

logger = logging.getLogger(__name__)

LOOK_INTERVAL_MS = 50
CONFIRM_S = 10.0  # for what was given up on a host that answers
SIGTERM_S = 5.0  # for an engine whose end cannot be written down
KILL_MARGIN_S = Limits().ending_s + 2.0  # past the drain; of whoever waits for engines that end, plus turns


class EndedUnwritten(Unavailable):
    """The engines have ended, by signal, and the registry does not say so yet."""


class NothingIsPlaced:
    """A supervisor that only ends things starts none."""

    def place(self, *_: object) -> Placement:
        raise Unavailable("this site is being stopped")


def end_engines(
    settings: Settings, drain_timeout_s: float, is_hurried: Callable[[], bool] = lambda: False
) -> int:
    """Drain and stop every engine of the registry, and end those of this home that it does not know.

    Returns how many there were.

    As soon as `is_hurried` answers yes, running requests are waited for no longer.

    Raises: Conflict while a supervisor lives; Unavailable naming the processes that nothing ends, or that
    are on hosts that do not answer; EndedUnwritten where the registry cannot be opened or written.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    try:
        opened = open_database(settings.resolved_database_url, is_durable=False)
    except ConfigError as error:
        raise end_by_orders(settings, str(error)) from error
    with (
        closing(opened) as database,
        claim_supervision(database, f"`trivet stop --all` with pid {os.getpid()}") as claim,
        closing(ZmqWire(context, settings.paths.engine_keys_file)) as wire,
    ):
        num_engines = _num_engines(database)
        host = load_plugins(check_backends=False)
        launcher = host.launcher(settings)
        elsewhere = launcher if isinstance(launcher, PlacesOnHosts) else None
        devices = DeviceTable(host.backends, failures=host.failures, elsewhere=elsewhere)
        means = Means(
            database,
            settings,
            launcher,
            wire,
            time.monotonic,
            check_claim=claim.check,
            memory_holders=devices.holders,
        )
        reconciler = Reconciler(means, NothingIsPlaced())
        reconciler.shut_down(drain_timeout_s)
        deadline_s = time.monotonic() + drain_timeout_s + KILL_MARGIN_S
        try:
            num_engines += end_orphans(means)
            with refreshing(means, devices) if num_engines else nullcontext():
                while reconciler.waits_for_engines():
                    if is_hurried():
                        reconciler.shut_down(0.0)
                        deadline_s = min(deadline_s, time.monotonic() + KILL_MARGIN_S)
                    if time.monotonic() > deadline_s:
                        raise Unavailable(_what_is_left(database))
                    if not reconciler.tick():
                        wire.socket.poll(LOOK_INTERVAL_MS)
        except OperationalError as error:  # a full disk: what cannot be written down must end all the same
            engines = _known(database, settings)
            why = f"the registry cannot be written: {error.orig}"
            raise _end_unwritten(launcher, engines, why) from error
        with database.reading() as session:
            unconfirmed = why_unconfirmed(list_fences(session))
    if unconfirmed:
        raise Unavailable(unconfirmed)
    return num_engines


def end_by_orders(settings: Settings, why: str) -> Unavailable:
    """End every engine of this home by signal, where no registry can be opened: it is damaged, or locked.

    Returns what is to be said of it, EndedUnwritten if all have ended.
    """
    launcher = load_plugins(check_backends=False).launcher(settings)
    return _end_unwritten(launcher, [(order.lease, "") for order in launcher.orders()], why)


def _known(database: Database, settings: Settings) -> list[tuple[str, str]]:
    """Lease and host of every engine of this home that may live."""
    with database.reading() as session:
        engines = [
            (instance.lease, instance.host or "")
            for instance in list_instances(session, states=PROCESS_STATES)
            if instance.lease and (instance.host or original_home(instance.run_dir, settings) is None)
        ]
        return engines + [(fence.lease, fence.host) for fence in list_fences(session)]


def _end_unwritten(launcher: Launcher, engines: Iterable[tuple[str, str]], why: str) -> Unavailable:
    """SIGTERM, then SIGKILL, for every engine that its lease finds. Returns what is to be said of it."""
    handles, unknown = [], set()
    for lease, host in engines:
        try:
            handle = launcher.find(lease, None, host)
        except Unavailable as error:
            unknown.add(str(error))
        else:
            handles += [] if handle is None else [handle]
    if isinstance(launcher, PlacesOnHosts):
        unknown |= {silence for silence in launcher.hosts().values() if silence}
    end_handles(handles, SIGTERM_S)
    living = [handle for handle in handles if handle.exit_code() is None]
    unknown |= {silence for handle in living if (silence := handle.unreachable())}
    left = [str(handle.identity.pid) for handle in living if not handle.unreachable()]
    if left:
        why = f"{why}; and SIGKILL does not end pid {', '.join(left)}: see dmesg"
    if unknown:
        told = "; ".join(sorted(unknown))
        why = f"{why}; what runs where nobody answers is not known to have ended ({told}): stop it again then"
    if left or unknown:
        return Unavailable(why)
    return EndedUnwritten(
        f"{why}; its engines have ended, if need be by signal, and the next `trivet serve` finds that out"
    )


def want_nothing(database: Database, drain_timeout_s: float | None) -> list[str]:
    """Mark every deployment as stopped; what drains already gets this time, too.

    Returns the names that were wanted until now.
    """
    with database.session() as session:
        names = [deployment.name for deployment in list_deployments(session, desired=RUNNING)]
        for deployment in list_deployments(session):
            stop_deployment(session, deployment.name, drain_timeout_s)
    return names


def wait_until_none(database: Database, timeout_s: float, sleep: Callable[[float], None] = time.sleep) -> int:
    """Wait for a living supervisor to end its engines. Returns how many are left at the deadline."""
    deadline_s = time.monotonic() + timeout_s
    while (left := _num_engines(database)) and time.monotonic() < deadline_s:
        sleep(LOOK_INTERVAL_MS / 1000)
    return left


def wait_until_confirmed(database: Database, sleep: Callable[[float], None] = time.sleep) -> str:
    """A moment for hosts that answer. Returns what a living supervisor could not find out; empty: nothing."""
    deadline_s = time.monotonic() + CONFIRM_S
    while True:
        with database.reading() as session:
            unconfirmed = why_unconfirmed(list_fences(session))
        if not unconfirmed or time.monotonic() > deadline_s:
            return unconfirmed
        sleep(LOOK_INTERVAL_MS / 1000)


def _what_is_left(database: Database) -> str:
    with database.reading() as session:
        left = list_instances(session, states=PROCESS_STATES)
    named = ", ".join(f"pid {i.pid} ({i.deployment.name}, {i.state})" for i in left)
    return f"{count_engines(len(left))} left, not even SIGKILL ends: {named}; a device may hang: see dmesg"


def count_engines(number: int) -> str:
    """For a sentence."""
    return f"{number} engine{'s' * (number != 1)}"


def _num_engines(database: Database) -> int:
    with database.reading() as session:
        return len(list_instances(session, states=PROCESS_STATES))
