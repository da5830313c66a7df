"""Which addresses may be listened on, and the management token."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from trivet.access import (
    check_bind,
    check_users,
    is_loopback,
    management_token,
    new_management_token,
    setup_code,
)
from trivet.config import Settings
from trivet.errors import ConfigError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_consent(host: str) -> None:
    assert is_loopback(host)
    check_bind(Settings(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_other_addresses_need_consent_and_the_reason_is_told(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match=r"in the clear.*--insecure"):
        check_bind(Settings(host=host))
    check_bind(Settings(host=host, insecure=True))


def test_an_address_that_others_reach_needs_users_or_consent() -> None:
    public = Settings(host="192.168.1.4")
    with pytest.raises(ConfigError, match=r"192\.168\.1\.4.*no users.*trivet users add.*--insecure"):
        check_users(public, has_users=False)
    check_users(public, has_users=True)
    check_users(Settings(host="192.168.1.4", insecure=True), has_users=False)
    check_users(Settings(), has_users=False)


def test_the_setup_code_follows_from_the_token_and_not_the_token_from_it() -> None:
    assert setup_code("a") == setup_code("a") != setup_code("b")
    assert len(setup_code("a")) == 32


def test_no_consent_opens_a_site_without_any_authentication() -> None:
    with pytest.raises(ConfigError, match=r"auth is off"):
        check_bind(Settings(host="0.0.0.0", insecure=True, auth="off"))


def test_an_unknown_kind_of_auth_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'maybe'.*auto, required, off"):
        check_bind(Settings(auth="maybe"))


def test_the_token_is_made_once_and_closed_to_others(tmp_path: Path) -> None:
    file = tmp_path / "token"
    token = management_token(file)
    assert len(token) == 43, "256 bits in base 64"
    assert management_token(file) == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_all_that_ask_at_once_get_the_same_token(tmp_path: Path) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(management_token(tmp_path / "token"))) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert found[0]


def test_another_token_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "token"
    first = management_token(file)
    second = new_management_token(file)
    assert (len(second), second != first, management_token(file)) == (43, True, second)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]
