"""Launch orders as files of a run directory: an engine gets its order there, a supervisor finds it there."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from trivet.engine.doors import endpoints_file
from trivet.errors import Unavailable
from trivet.messages import LaunchOrder
from trivet_supervisor.other_home import other_home

logger = logging.getLogger(__name__)


def order_file(run_dir: Path, instance_id: str) -> Path:
    """`engine-INSTANCE.json`."""
    return run_dir / f"engine-{instance_id}.json"


def write_order(order: LaunchOrder) -> Path:
    """A file of mode 0600 that is whole or absent. Raises: Unavailable where it cannot be written."""
    file = order_file(Path(order.run_dir), order.instance_id)
    scratch = file.with_suffix(".new")
    try:
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            out.write(msgspec.json.encode(order))
        scratch.rename(file)
    except OSError as error:
        raise Unavailable(f"launch order {file} cannot be written: {error.strerror}") from error
    return file


def orders_in(run_dir: Path) -> Iterator[LaunchOrder]:
    """Of every engine that was started from this run directory and not discarded; none of a copied one's."""
    orders = (order for file in run_dir.glob("engine-*.json") if (order := _read(file)) is not None)
    return (order for order in orders if other_home(order.run_dir, run_dir) is None)


def read_order(run_dir: Path, instance_id: str) -> LaunchOrder | None:
    """None where there is none, or none that can be read."""
    file = order_file(run_dir, instance_id)
    return _read(file) if file.exists() else None


def _read(file: Path) -> LaunchOrder | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=LaunchOrder)
    except (OSError, msgspec.MsgspecError) as error:
        logger.warning("order=%s cannot be read: %s", file, error)
        return None


def remove_run_files(run_dir: Path, instance_id: str) -> None:
    """The order and the sockets of an engine that is gone.

    Where they cannot be removed (a file system that became read-only) it is logged: that is no reason not to
    write down that the engine is gone, and the next order says it when it cannot be written.
    """
    sockets = [run_dir / f"engine-{instance_id}.{kind}" for kind in ("sock", "beat", "ctl")]
    for file in [order_file(run_dir, instance_id), endpoints_file(run_dir, instance_id), *sockets]:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("instance=%s file=%s cannot be removed: %s", instance_id, file, error.strerror)
