"""Usage is counted through failures; what is asked of it has to make sense."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.exc import TimeoutError as PoolTimeout

from trivet_registry.tables import utc_now
from trivet_registry.usage_store import Tokens, list_usage
from trivet_web.accounts.principal import TOKEN
from trivet_web.accounts.usage_counter import UsageCounter

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Accounts


def usage_of(accounts: Accounts) -> dict[str, Any]:
    """Sums that have been written, by model."""
    found: dict[str, Any] = {}
    today = utc_now().date()
    with accounts.site.database.reading() as session:
        for row in list_usage(session, today, today):
            found[row.model] = row
    return found


@pytest.mark.parametrize("error", [PoolTimeout("no connection is free"), RuntimeError("a defect")])
def test_no_failure_ends_the_counting_of_usage(
    accounts: Accounts,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., None],
    error: Exception,
) -> None:
    monkeypatch.setattr("trivet_web.accounts.usage_counter.FLUSH_S", 0.05)
    failed = threading.Event()

    def fail(*_: object) -> None:
        failed.set()
        raise error

    counter = UsageCounter(accounts.site.database, accounts.app.extensions["trivet"].accounts.credentials)
    with monkeypatch.context() as patched:
        patched.setattr("trivet_web.accounts.usage_counter.add_usage", fail)
        counter.add(TOKEN, "demo", Tokens(1, 10, 0, 5))
        assert failed.wait(20)
    eventually(lambda: "demo" in usage_of(accounts))
    assert (usage_of(accounts)["demo"].requests, usage_of(accounts)["demo"].prompt_tokens) == (1, 10)
    counter.close()


@pytest.mark.parametrize("key", ["99999999999", "x", "-1", "1.5", ""])
def test_usage_of_a_key_whose_number_is_none_is_refused(shared_accounts: Accounts, key: str) -> None:
    response = shared_accounts.with_token().get("/platform/v1/usage", query_string={"key": key})
    assert (response.status_code, response.get_json()["error"]["param"]) == (400, "key")


@pytest.mark.parametrize("query", [{"last": "0001-01-01"}, {"first": "yesterday"}, {"last": "10000-01-01"}])
def test_usage_of_days_that_are_none_is_refused(shared_accounts: Accounts, query: dict[str, str]) -> None:
    response = shared_accounts.with_token().get("/platform/v1/usage", query_string=query)
    assert (response.status_code, response.get_json()["error"]["param"]) == (400, *query)
