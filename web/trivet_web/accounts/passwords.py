"""Passwords: argon2id by OWASP's parameters, two at a time, and what a new one must be like."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

from trivet.counted import counted
from trivet.errors import Overloaded, RequestError

MIN_LENGTH, MIN_DIFFERENT, MAX_BYTES = 12, 5, 1024
MAX_AT_ONCE = 2  # each takes a core for 22 ms and 19 MiB: logins must not hold up streams
WAIT_S = 3.0
_hasher = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
_places = threading.BoundedSemaphore(MAX_AT_ONCE)
# Of no password: compared where there is no such user, so that both take the same time.
_DUMMY = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"


def hash_password(password: str) -> str:
    """Raises: RequestError for one that is too easy or too long; Overloaded."""
    check_new_password(password)
    with _place():
        return _hasher.hash(password)


def check_new_password(password: str) -> None:
    """Raises: RequestError for one that is too easy or too long."""
    if len(password) < MIN_LENGTH:
        raise RequestError(
            f"password has {len(password)} characters; it must have at least {MIN_LENGTH}: several words are "
            "easy to keep in mind and hard to guess",
            param="password",
        )
    if len(set(password)) < MIN_DIFFERENT:
        raise RequestError(
            f"password has {counted(len(set(password)), 'different character')}; it must have at least "
            f"{MIN_DIFFERENT}: several words are easy to keep in mind and hard to guess",
            param="password",
        )
    if len(password.encode()) > MAX_BYTES:
        raise RequestError(
            f"password has {len(password.encode())} bytes; at most {MAX_BYTES} are taken", param="password"
        )


def is_password(password: str, password_hash: str | None) -> bool:
    """`password_hash` None: no such user; it takes as long. Raises: Overloaded."""
    if len(password.encode()) > MAX_BYTES:
        return False
    with _place():
        try:
            _hasher.verify(password_hash or _DUMMY, password)
            return password_hash is not None
        except (VerifyMismatchError, VerificationError, InvalidHashError):
            return False


def is_outdated(password_hash: str) -> bool:
    """Whether it was made with other parameters than today's."""
    return _hasher.check_needs_rehash(password_hash)


@contextmanager
def _place() -> Iterator[None]:
    if not _places.acquire(timeout=WAIT_S):
        raise Overloaded("too many logins at once; try again in a few seconds", retry_after_s=5)
    try:
        yield
    finally:
        _places.release()
