"""Addresses without the logins in them."""

from __future__ import annotations

import pytest

from trivet.hidden_logins import without_logins


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://joe:hunter2@mirror.example/a", "https://...@mirror.example/a"),
        ("postgresql://h/db?user=u&password=hunter2&x=1", "postgresql://h/db?user=u&password=...&x=1"),
        ("postgresql://h/db?sslpassword=hunter2", "postgresql://h/db?sslpassword=..."),
        ('{"a": "https://h/?access_token=hunter2"}', '{"a": "https://h/?access_token=..."}'),
        ("sqlite:////home/x/registry.db", "sqlite:////home/x/registry.db"),
    ],
)
def test_logins_and_passwords_in_queries_are_left_out(address: str, shown: str) -> None:
    assert without_logins(address) == shown
