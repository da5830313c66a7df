"""Keeps the table of devices, and what the registry says of them, fresh on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from trivet_registry.claims import ledger_of
from trivet_registry.devices_store import save_devices
from trivet_registry.instance_state import PROCESS_STATES
from trivet_registry.instances_store import list_instances
from trivet_supervisor.device_users import users_of
from trivet_supervisor.devices import DeviceTable
from trivet_supervisor.means import Means

logger = logging.getLogger(__name__)

DEVICES_INTERVAL_S = 10.0
ASKED_INTERVAL_S = 0.3
END_TIMEOUT_S = 1.0  # for a look in progress; one that hangs in a driver is left


@contextmanager
def refreshing(means: Means, devices: DeviceTable) -> Iterator[None]:
    """The table is fresh until the block ends."""
    is_ending = threading.Event()
    refresher = threading.Thread(
        target=refresh_devices, args=(means, devices, is_ending), name="devices", daemon=True
    )
    refresher.start()
    try:
        yield
    finally:
        is_ending.set()
        devices.is_asked.set()
        refresher.join(END_TIMEOUT_S)


def refresh_devices(means: Means, devices: DeviceTable, is_ending: threading.Event) -> None:
    """Body of the thread: a probe may take seconds, and the loop must not wait for it."""
    while True:
        devices.is_asked.clear()  # before it is looked whether to end: who ends it sets both
        if is_ending.is_set():
            return
        try:
            found, usage = devices.all(max_age_s=0), devices.usage()
            if is_ending.is_set():
                return
            with means.database.session() as session:
                instances = list_instances(session, states=PROCESS_STATES)
                users = users_of(usage, instances, found)
                save_devices(session, found, ledger_of(instances), usage, users)
        except DBAPIError as error:  # a full disk, a database that is away
            logger.warning("devices cannot be saved: %s; tried again in %g s", error.orig, DEVICES_INTERVAL_S)
        except Exception:  # a border like the loop's: a stranger's probe
            logger.exception("devices cannot be probed or saved; tried again in %g s", DEVICES_INTERVAL_S)
        if not is_ending.is_set() and devices.is_asked.wait(DEVICES_INTERVAL_S):
            is_ending.wait(ASKED_INTERVAL_S)  # a tool is not started without end for one who waits
