"""Records acts that are no transaction of the registry: before they begin, and how they ended."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy.exc import SQLAlchemyError

from trivet_registry import audit_log
from trivet_registry.database import Database
from trivet_web.accounts.acts import record

logger = logging.getLogger(__name__)
STATE, BEGUN, DONE, FAILED = "state", "begun", "done", "failed"


@contextmanager
def recorded(
    database: Database, action: str, target: str = "", after: Mapping[str, object] | None = None
) -> Iterator[dict[str, object]]:
    """Two entries, around what is done within; nothing is done where the first cannot be written.

    What is put into the yielded dictionary is in the second. A `begun` one without a second is of a
    process that was killed, or of a registry that went away meanwhile.
    """
    wanted = {} if after is None else dict(after)
    with database.session() as session:
        record(session, action, target, after={**wanted, STATE: BEGUN})
    outcome: dict[str, object] = {STATE: DONE}
    try:
        yield outcome
    except BaseException as error:
        _record_failure(database, action, target, {STATE: FAILED, "reason": str(error)[:500]})
        raise
    with database.session() as session:
        record(session, action, target, after=outcome)


def _record_failure(database: Database, action: str, target: str, after: dict[str, object]) -> None:
    """The failure itself is what the caller hears of."""
    try:
        with database.session() as session:
            record(session, action, target, after=after, outcome=audit_log.FAILED)
    except SQLAlchemyError as error:
        logger.error(
            "action=%s failed and the end is not recorded: %s", action, getattr(error, "orig", error)
        )
