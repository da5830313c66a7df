from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from trivet_registry.login_throttle import (
    FIRST_BLOCK,
    FORGOTTEN,
    LONGEST_BLOCK,
    PER_ADDRESS,
    PER_NAME,
    PER_PAIR,
    WINDOW,
    begin_attempt,
    forget_attempts,
)
from trivet_registry.tables import utc_now

if TYPE_CHECKING:
    from trivet_registry.database import Database

NOW = utc_now()
SECOND = timedelta(seconds=1)


def wait(
    db: Database, name: str = "alice", address: str = "10.0.0.1", after: timedelta = 0 * SECOND
) -> float:
    with db.session() as session:
        return begin_attempt(session, name, address, NOW + after)


def test_five_attempts_then_a_wait_that_doubles(db: Database) -> None:
    assert [wait(db) for _ in range(PER_PAIR)] == [0.0] * PER_PAIR
    assert wait(db) == FIRST_BLOCK.total_seconds()
    assert wait(db, after=10 * SECOND) == FIRST_BLOCK.total_seconds() - 10
    at, blocks = FIRST_BLOCK, []
    for _ in range(8):
        for _ in range(PER_PAIR):
            assert wait(db, after=at) == 0.0
        blocks.append(wait(db, after=at))
        at += timedelta(seconds=blocks[-1])
        if at > FORGOTTEN:
            break
    assert blocks[:4] == [60.0, 120.0, 240.0, 480.0]
    assert max(blocks) <= LONGEST_BLOCK.total_seconds()


def test_names_count_alike_in_any_case_whether_or_not_they_exist(db: Database) -> None:
    for _ in range(PER_PAIR):
        wait(db, name="nobody")
    assert wait(db, name=" NoBody ") > 0


def test_a_good_login_forgets_the_failures_of_its_pair_only(db: Database) -> None:
    for _ in range(PER_PAIR):
        wait(db)
    with db.session() as session:
        forget_attempts(session, "Alice", "10.0.0.1")
    assert wait(db) == 0.0
    for number in range(PER_ADDRESS - PER_PAIR - 1):
        assert wait(db, name=f"other{number}") == 0.0
    assert wait(db, name="another") > 0, "the address has had its share"


def test_attempts_are_forgotten_after_the_window(db: Database) -> None:
    for _ in range(PER_PAIR):
        wait(db)
    assert wait(db, after=WINDOW + SECOND) == 0.0


def test_a_stranger_does_not_lock_out_the_owner_of_a_name(db: Database) -> None:
    for _ in range(PER_PAIR * 2):
        wait(db, address="6.6.6.6")
    assert wait(db, address="10.0.0.1") == 0.0


def test_guesses_from_many_addresses_are_bounded_too(db: Database) -> None:
    waits = [wait(db, address=f"10.0.{n // 4}.1") for n in range(PER_NAME + 1)]
    assert waits[:PER_NAME] == [0.0] * PER_NAME
    assert waits[PER_NAME] > 0
