from __future__ import annotations

import threading
from datetime import date
from typing import TYPE_CHECKING

from trivet_registry.usage_store import NOBODY, Tokens, UsageKey, add_usage, list_usage

if TYPE_CHECKING:
    from trivet_registry.database import Database

MONDAY, TUESDAY = date(2026, 11, 30), date(2026, 12, 1)


def test_sums_grow_by_what_is_added(db: Database) -> None:
    mine, open_one = UsageKey(MONDAY, 3, 7, "m"), UsageKey(TUESDAY, NOBODY, NOBODY, "m")
    for _ in range(2):
        with db.session() as session:
            add_usage(session, {mine: Tokens(1, 10, 4, 5), open_one: Tokens(2, 1, 0, 1 << 40)})
    with db.reading() as session:
        first, second = list_usage(session, MONDAY, TUESDAY)
        assert (first.requests, first.prompt_tokens, first.cached_tokens, first.completion_tokens) == (
            *(2, 20, 8),
            10,
        )
        assert (second.key_id, second.completion_tokens) == (0, 1 << 41)
        assert list_usage(session, MONDAY, MONDAY) == [first]
        assert list_usage(session, MONDAY, TUESDAY, user_id=7) == [first]
        assert list_usage(session, MONDAY, TUESDAY, key_id=0) == [second]
        assert list_usage(session, MONDAY, TUESDAY, user_id=8) == []


def test_nothing_is_lost_when_many_add_at_once(db: Database) -> None:
    keys = [UsageKey(MONDAY, number, 0, "m") for number in range(5)]

    def add(order: int) -> None:
        for _ in range(10):
            with db.session() as session:
                add_usage(session, {key: Tokens(1, 1, 1, 1) for key in keys[::order]})

    threads = [threading.Thread(target=add, args=(order,)) for order in (1, -1, 1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with db.reading() as session:
        assert [row.requests for row in list_usage(session, MONDAY, MONDAY)] == [40] * 5
