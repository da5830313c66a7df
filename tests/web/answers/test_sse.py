"""Streams whose first piece is late, or that fail in a way nobody foresaw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trivet_web.answers import sse
from trivet_web.api import chat

if TYPE_CHECKING:
    from conftest import Site
    from flask.testing import FlaskClient

BODY: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 2,
    "stream": True,
}


def test_late_first_piece_is_preceded_by_pings(
    site: Site, site_client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start_engine("--first-s", "0.5")
    monkeypatch.setattr(sse, "FIRST_PIECE_WAIT_S", 0.05)
    monkeypatch.setattr(sse, "PING_S", 0.05)
    events = site_client.post("/v1/chat/completions", json=BODY).get_data(as_text=True).split("\n\n")
    pings = [event for event in events if event == ": ping"]
    assert len(pings) >= 2
    assert events[: len(pings)] == pings
    assert events[-2] == "data: [DONE]"


def test_a_stream_of_which_nothing_is_shown_is_kept_alive_by_pings(
    site: Site, site_client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces come oftener than pings are due."""
    site.start_engine("--step-s", "0.02")
    monkeypatch.setattr(sse, "PING_S", 0.05)
    monkeypatch.setattr(chat.ChatChunks, "encoded", lambda *_: b"")
    body = {**BODY, "max_tokens": 30}
    text = site_client.post("/v1/chat/completions", json=body).get_data(as_text=True)
    assert text.count(": ping") >= 2
    assert text.endswith("data: [DONE]\n\n")


def test_a_ping_of_anthropic_s_is_an_event_of_its_own(
    site: Site, site_client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start_engine("--first-s", "0.5")
    monkeypatch.setattr(sse, "FIRST_PIECE_WAIT_S", 0.05)
    monkeypatch.setattr(sse, "PING_S", 0.05)
    events = site_client.post("/v1/messages", json=BODY).get_data(as_text=True).split("\n\n")
    assert events[0] == 'event: ping\ndata: {"type":"ping"}'
    assert events[-2].startswith("event: message_stop")


def test_unforeseen_failure_under_a_stream_is_an_error_event_and_frees_the_engine(
    site: Site, site_client: FlaskClient, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    engine = site.start_engine("--step-s", "0.02")

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(chat.ChatChunks, "of", fail)
    response = site_client.post("/v1/chat/completions", json={**BODY, "max_tokens": 400})
    text = response.get_data(as_text=True)
    response.close()
    assert '"code":"server_error"' in text
    assert "ZeroDivision" not in text
    assert "[DONE]" not in text
    reason = f'instance="{engine.instance}",model_name="demo"'
    eventually(
        lambda: f'finished_reason="abort",{reason}' in site_client.get("/metrics").get_data(as_text=True),
        what="the request is aborted",
    )
