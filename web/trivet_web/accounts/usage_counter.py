"""Adds up tokens by key, user, model and day; writes the sums every two seconds and at the end.

A request counts when it ends, however it ends. A process that is killed loses what it has not written: at
most `FLUSH_S` of requests. While the registry cannot be written, sums wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError

from trivet.errors import Conflict
from trivet_registry.account_tables import ApiKey, LoginSession
from trivet_registry.database import Database
from trivet_registry.tables import utc_now
from trivet_registry.usage_store import Tokens, UsageKey, add_usage
from trivet_web.accounts.credentials import Credentials
from trivet_web.accounts.principal import Principal

logger = logging.getLogger(__name__)
FLUSH_S = 2.0
SEEN_EVERY = 15  # flushes between two times that the last use of keys and sessions is written


class UsageCounter:
    """One a web process; `close` writes the rest. Thread-safe."""

    def __init__(
        self, database: Database, credentials: Credentials, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._database = database
        self._credentials = credentials
        self._now = now
        self._lock = threading.Lock()
        self._sums: dict[UsageKey, Tokens] = {}
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
        self._thread.start()

    def add(self, principal: Principal, model: str, tokens: Tokens) -> None:
        """One request has ended."""
        day = self._now().astimezone(UTC).date()
        key = UsageKey(day, principal.key_id, principal.user_id, model)
        with self._lock:
            self._sums.setdefault(key, Tokens()).add(tokens)

    def flush(self) -> None:
        """Write what there is; what cannot be written stays."""
        with self._lock:
            sums, self._sums = self._sums, {}
        if not sums:
            return
        is_written = False
        try:
            with self._database.session() as session:
                add_usage(session, sums)
            is_written = True
        except (SQLAlchemyError, Conflict) as error:
            logger.warning("usage is not written yet: %s", getattr(error, "orig", error))
        finally:
            if not is_written:
                self._put_back(sums)

    def write_seen(self) -> None:
        """When keys and sessions were used last."""
        seen = sorted(self._credentials.take_seen())
        if not seen:
            return
        now = utc_now()
        try:
            with self._database.session() as session:
                for start in range(0, len(seen), 500):
                    part = seen[start : start + 500]
                    session.execute(update(ApiKey).where(ApiKey.hash.in_(part)).values(last_used_at=now))
                    session.execute(
                        update(LoginSession).where(LoginSession.hash.in_(part)).values(last_seen_at=now)
                    )
        except (SQLAlchemyError, Conflict) as error:
            logger.warning("last uses are not written: %s", getattr(error, "orig", error))

    def close(self) -> None:
        """Idempotent."""
        if not self._is_closed.is_set():
            self._is_closed.set()
            self._thread.join()
            self.flush()
            self.write_seen()

    def _run(self) -> None:
        turns = 0
        while not self._is_closed.wait(FLUSH_S):
            turns += 1
            try:
                self.flush()
                if turns % SEEN_EVERY == 0:
                    self.write_seen()
            except SQLAlchemyError as error:  # a full disk, a registry that is away
                logger.warning("usage is not written yet: %s", error)
            except Exception:  # a border like a loop's: without this thread nothing would be written any more
                logger.exception("usage is not written")

    def _put_back(self, sums: dict[UsageKey, Tokens]) -> None:
        with self._lock:
            for key, tokens in sums.items():
                self._sums.setdefault(key, Tokens()).add(tokens)
