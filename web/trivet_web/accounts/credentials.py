"""Looks up the principal behind a secret, and remembers it while nothing about accounts has changed."""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from trivet.errors import Unavailable
from trivet_registry.account_tables import ApiKey
from trivet_registry.audit_log import accounts_version
from trivet_registry.database import Database
from trivet_registry.keys_store import MARK, find_key
from trivet_registry.tables import utc_now
from trivet_registry.users_store import count_users, find_session, hash_of
from trivet_web.accounts.principal import TOKEN, Principal, principal_of_key, principal_of_session

LOOK_S = 0.5  # how old the version may be: a revoked key is refused after so long, everywhere
TRUST_S = 30.0  # how long what is known stands while the registry cannot be read
PATIENCE_S = 2.0  # for the look of another thread, after a pause: nothing is known then that could be trusted
KEEP_S = 60.0  # then an entry is read again: sessions become idle without an act
MAX_KNOWN = 10_000
SESSION_MARK = "ts-"
_UNREADABLE = (
    "keys and logins cannot be checked, because the registry cannot be read: {}; try again when it can"
)


@dataclass(slots=True)
class _Known:
    principal: Principal
    until_s: float  # CLOCK_MONOTONIC


class Credentials:
    """Thread-safe; one a web process."""

    def __init__(
        self,
        database: Database,
        read_token: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._read_token = read_token
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._seen: set[str] = set()
        self._version = -1
        self._looked_s = float("-inf")  # when the registry answered last
        self._is_dirty = False
        self._has_users = True  # until it is known: the careful answer

    def has_users(self) -> bool:
        """Whether this site was ever set up. Raises: Unavailable."""
        self._follow()
        return self._has_users

    def find(self, secret: str) -> Principal | None:
        """None: it is nobody's, or no longer. Raises: Unavailable where the registry cannot be read."""
        if hmac.compare_digest(secret.encode(), self._read_token().encode()):
            return TOKEN
        if not secret.startswith((MARK, SESSION_MARK)):
            return None
        self._follow()
        secret_hash, now_s = hash_of(secret), self._clock()
        memory = self._known  # replaced when something changes: what was read before is then kept nowhere
        known = memory.get(secret_hash)
        if known is None or now_s > known.until_s:
            known = self._read_anew(secret, secret_hash, memory)
        if known is None or time.time() >= known.principal.expires_s:
            return None
        self._seen.add(secret_hash)
        return known.principal

    def forget_all(self) -> None:
        """Look again at once: this process has changed something, and it is committed."""
        self._is_dirty = True

    def take_seen(self) -> set[str]:
        """Hashes of what was used since it was last asked, to be written down."""
        seen, self._seen = self._seen, set()
        return seen

    def of_key(self, key_id: int) -> Principal | None:
        """As `find`, for work that goes on after its request. Raises: Unavailable."""
        with self._reading() as session:
            row = session.get(ApiKey, key_id)
            principal = None if row is None else principal_of_key(row)
        return None if principal is None or time.time() >= principal.expires_s else principal

    def _read_anew(self, secret: str, secret_hash: str, memory: dict[str, _Known]) -> _Known | None:
        """Raises: Unavailable for one that was not known before."""
        earlier = memory.get(secret_hash)
        try:
            principal = self._read(secret, secret_hash)
        except Unavailable:
            if earlier is None:
                raise
            return earlier  # `_follow` has seen that it is trusted still
        if principal is None:
            memory.pop(secret_hash, None)
            return None
        if len(memory) >= MAX_KNOWN:
            memory.clear()
        known = memory[secret_hash] = _Known(principal, self._clock() + KEEP_S)
        return known

    def _read(self, secret: str, secret_hash: str) -> Principal | None:
        with self._reading() as session:
            if secret.startswith(MARK):
                key = find_key(session, secret_hash)
                same = key is not None and hmac.compare_digest(key.hash, secret_hash)
                return principal_of_key(key) if key is not None and same else None
            row = find_session(session, secret_hash, utc_now())
            return None if row is None else principal_of_session(row)

    def _follow(self) -> None:
        """Forget everything once something has changed. Raises: Unavailable."""
        if not self._is_dirty and self._clock() - self._looked_s < LOOK_S:
            return
        is_trusted = self._clock() - self._looked_s <= TRUST_S
        if not self._lock.acquire(timeout=0 if is_trusted else PATIENCE_S):  # another thread looks
            if not is_trusted:
                raise Unavailable(_UNREADABLE.format("it does not answer"))
            return
        try:
            self._look()
        finally:
            self._lock.release()

    def _look(self) -> None:
        now_s = self._clock()
        if not self._is_dirty and now_s - self._looked_s < LOOK_S:
            return
        self._is_dirty = False  # before the look: what is changed from here on may be missed by it
        try:
            with self._database.reading() as session:
                version = accounts_version(session)
                if version != self._version:
                    self._has_users = count_users(session) > 0
        except SQLAlchemyError as error:
            self._is_dirty = True
            if now_s - self._looked_s > TRUST_S:
                raise _unavailable(error) from error
            return
        if version != self._version:
            self._known = {}
            self._version = version
        self._looked_s = now_s

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        """Raises: Unavailable."""
        try:
            with self._database.reading() as session:
                yield session
        except SQLAlchemyError as error:
            raise _unavailable(error) from error


def _unavailable(error: SQLAlchemyError) -> Unavailable:
    return Unavailable(_UNREADABLE.format(getattr(error, "orig", error)))
