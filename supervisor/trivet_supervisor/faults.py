"""A border around each deployment: what nobody foresaw ends the work on that one alone, and is told."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import SQLAlchemyError

from trivet_registry.events_store import record_event
from trivet_registry.supervision import SupervisionLost
from trivet_supervisor.means import Means

logger = logging.getLogger(__name__)

RETRY_S = 5.0  # after a fault: not in every turn of the loop


class Faults:
    """Remembers who failed last, until it works again."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._until_s: dict[str, float] = {}
        self._told: dict[str, str] = {}

    def holds_back(self, key: str) -> bool:
        """Whether it failed a moment ago."""
        return self._means.clock() < self._until_s.get(key, 0.0)

    @contextmanager
    def border(self, key: str, deployment: str) -> Iterator[None]:
        """Log what is raised inside and record it as an event, once for the same words.

        Args: key: the instance's id or the deployment's name; it is held back for a while.

        Raises: SQLAlchemyError and SupervisionLost as they come: those concern the whole turn.
        """
        try:
            yield
        except (SQLAlchemyError, SupervisionLost):
            raise
        except Exception as error:
            self._until_s[key] = self._means.clock() + RETRY_S
            reason = f"the supervisor failed at it: {type(error).__name__}: {error}"
            if self._told.get(key) == reason:
                return
            logger.exception("deployment=%s key=%s failed; the others go on", deployment, key)
            instance = None if key == deployment else key
            with self._means.database.session() as session:
                again = f"{reason}; tried again every {RETRY_S:g} s, and the others go on"
                record_event(session, "supervisor", again, deployment=deployment, instance=instance)
            self._told[key] = reason
        else:
            self._until_s.pop(key, None)
            self._told.pop(key, None)
