from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import text

from trivet_registry.login_throttle import (
    FIRST_BLOCK,
    FORGOTTEN,
    LONGEST_BLOCK,
    PER_ADDRESS,
    PER_NAME,
    PER_PAIR,
    WINDOW,
    begin_attempt,
    block_s,
    end_good_attempt,
    take_back,
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


def log_in(db: Database, name: str, address: str = "10.0.0.1", after: timedelta = 0 * SECOND) -> float:
    with db.session() as session:
        wait_s = begin_attempt(session, name, address, NOW + after)
        end_good_attempt(session, name, address, NOW + after)
    return wait_s


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


def test_a_clock_that_was_years_ahead_locks_nobody_out(db: Database) -> None:
    ahead = timedelta(days=3650)
    assert [wait(db, after=ahead) for _ in range(PER_PAIR + 1)][-1] > 0
    with db.reading() as session:
        assert block_s(session, "alice", "10.0.0.1", NOW) == 0.0
    assert [wait(db) for _ in range(PER_PAIR)] == [0.0] * PER_PAIR
    assert wait(db) == FIRST_BLOCK.total_seconds()


def test_names_count_alike_in_any_case_whether_or_not_they_exist(db: Database) -> None:
    for _ in range(PER_PAIR):
        wait(db, name="nobody")
    assert wait(db, name=" NoBody ") > 0


def test_a_good_login_forgets_the_failures_of_its_pair_only(db: Database) -> None:
    for _ in range(PER_PAIR):
        wait(db)
    log_in(db, "Alice")
    assert wait(db) == 0.0
    for number in range(PER_ADDRESS - PER_PAIR):
        assert wait(db, name=f"other{number}") == 0.0
    assert wait(db, name="another") > 0, "the address has had its share"


def test_good_logins_do_not_count(db: Database) -> None:
    for number in range(PER_ADDRESS + 1):
        assert log_in(db, f"user{number}") == 0.0
    for number in range(PER_NAME + 1):
        assert log_in(db, "popular", f"10.0.{number}.1") == 0.0
    assert wait(db, name="popular", address="10.9.9.9") == 0.0


def test_a_good_login_ends_the_doubling_of_waits(db: Database) -> None:
    for _ in range(PER_PAIR + 1):
        blocked_s = wait(db)
    log_in(db, "alice", after=FIRST_BLOCK)
    for _ in range(PER_PAIR):
        assert wait(db, after=FIRST_BLOCK) == 0.0
    assert wait(db, after=FIRST_BLOCK) == blocked_s == FIRST_BLOCK.total_seconds()


def test_a_blocked_attempt_writes_nothing(db: Database) -> None:
    for _ in range(PER_PAIR + 1):
        wait(db)

    def rows() -> list[object]:
        with db.reading() as session:
            return sorted(str(row) for row in session.execute(text("SELECT * FROM login_attempts")))

    before = rows()
    assert wait(db, after=SECOND) > 0
    for number in range(PER_ADDRESS):
        wait(db, name=f"other{number}")
    blocked = rows()
    assert wait(db, name="never seen", after=SECOND) > 0
    assert (rows(), before != blocked) == (blocked, True)
    with db.reading() as session:
        assert block_s(session, "never seen", "10.0.0.1", NOW) > 0


def test_an_attempt_that_was_not_looked_at_is_taken_back(db: Database) -> None:
    for _ in range(PER_PAIR * 2):
        assert wait(db) == 0.0
        with db.session() as session:
            take_back(session, "alice", "10.0.0.1")


def test_attempts_are_forgotten_after_the_window(db: Database) -> None:
    for _ in range(PER_PAIR):
        wait(db)
    assert wait(db, after=WINDOW + SECOND) == 0.0


def test_a_stranger_does_not_lock_out_the_owner_of_a_name(db: Database) -> None:
    for number in range(PER_NAME * 4):
        wait(db, address="6.6.6.6", after=number * SECOND)
    assert wait(db, address="10.0.0.1", after=PER_NAME * 4 * SECOND) == 0.0


def test_a_stranger_with_a_whole_network_is_one_stranger(db: Database) -> None:
    for number in range(PER_NAME + 1):
        wait(db, address=f"2001:db8:0:1::{number:x}")
    assert wait(db, address="2001:db8:0:1:ffff::1") > 0
    assert wait(db, address="2001:db8:0:2::1") == 0.0
    for _ in range(PER_PAIR + 1):
        wait(db, address="::ffff:10.0.0.7")
    assert wait(db, address="10.0.0.7") > 0
    assert wait(db, address="10.0.0.8") == 0.0


def test_strangers_everywhere_do_not_lock_the_owner_out_where_they_have_logged_in(db: Database) -> None:
    assert log_in(db, "alice", "10.7.0.1") == 0.0
    for number in range(PER_NAME + 1):
        wait(db, address=f"10.0.{number}.1")
    assert wait(db, address="10.8.0.1") > 0
    assert wait(db, name="ALICE", address="10.7.0.1") == 0.0
    assert wait(db, name="bob", address="10.7.0.1") == 0.0


def test_guesses_from_many_addresses_are_bounded_too(db: Database) -> None:
    waits = [wait(db, address=f"10.0.{n // 4}.1") for n in range(PER_NAME + 1)]
    assert waits[:PER_NAME] == [0.0] * PER_NAME
    assert waits[PER_NAME] > 0
