"""docker/nginx/trivet.conf beside the constants of the server behind it; tests/run operations runs both."""

from __future__ import annotations

import re
from pathlib import Path

from trivet_web.answers.sse import PING_S
from trivet_web.api.files import MAX_FILE_BYTES
from trivet_web.api.request_body import MAX_BODY_BYTES
from trivet_web.server import KEEPALIVE_S

CONF = (Path(__file__).parents[2] / "docker" / "nginx" / "trivet.conf").read_text()
UNITS = {"s": 1, "h": 3600, "m": 1 << 20}


def values(directive: str) -> list[int]:
    """In seconds or bytes, in the order of the file."""
    found = re.findall(rf"^ *{directive} (\d+)([smh]);", CONF, re.MULTILINE)
    assert found, directive
    return [int(number) * UNITS[unit] for number, unit in found]


def test_nginx_gives_an_idle_connection_up_before_trivet_does() -> None:
    assert values("keepalive_timeout") == [10]
    assert KEEPALIVE_S >= 10 + 5


def test_nginx_waits_longer_than_trivet_is_silent() -> None:
    assert values("proxy_read_timeout")[0] > 10 * PING_S


def test_nginx_takes_what_trivet_takes() -> None:
    whole, file = values("client_max_body_size")
    assert whole == MAX_BODY_BYTES
    assert MAX_FILE_BYTES < file < MAX_FILE_BYTES + (2 << 20)
