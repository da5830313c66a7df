"""Responses in whatever pieces they come."""

from __future__ import annotations

import pytest

from trivet.bench.http_response import BadResponse, ResponseReader

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
STREAM = (
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    b"b\r\ndata: one\n\n\r\n"
    b"9;x=y\r\ndata: tw\n\r\n"  # a line that ends inside the chunk
    b"6\r\n: ping\r\n4\r\n\ndat\r\n8\r\na: three\r\n2\r\n\n\n\r\n"
    b"e\r\ndata: [DONE]\n\n\r\n"
    b"0\r\n\r\n"
)


def _read(*pieces: bytes) -> tuple[ResponseReader, list[bytes]]:
    events: list[bytes] = []
    reader = ResponseReader(events.append)
    for piece in pieces:
        reader.feed(piece)
    return reader, events


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
def test_events_do_not_depend_on_how_they_were_cut(size: int) -> None:
    reader, events = _read(*(STREAM[i : i + size] for i in range(0, len(STREAM), size)))
    assert events == [b"one", b"tw", b"three", b"[DONE]"]
    assert reader.is_complete
    assert reader.keeps_alive
    assert reader.status == 200


def test_an_answer_is_not_complete_before_its_last_byte() -> None:
    reader, _ = _read(STREAM[:-1])
    assert not reader.is_complete
    reader.feed(STREAM[-1:])
    assert reader.is_complete


def test_a_body_of_known_length_is_kept() -> None:
    reader, events = _read(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 5\r\n\r\nno", b"pe!")
    assert (reader.status, reader.body, reader.is_complete, events) == (400, b"nope!", True, [])


def test_a_body_may_end_with_the_connection() -> None:
    reader, events = _read(HEAD + b"Connection: close\r\n\r\ndata: a\n\n")
    assert not reader.is_complete
    reader.feed_eof()
    assert (reader.is_complete, reader.keeps_alive, events) == (True, False, [b"a"])


def test_a_chunked_body_that_is_cut_stays_incomplete() -> None:
    reader, _ = _read(STREAM[:-20])
    reader.feed_eof()
    assert not reader.is_complete


def test_an_answer_without_a_body_is_complete_with_its_head() -> None:
    assert _read(b"HTTP/1.1 503 Nope\r\nContent-Length: 0\r\n\r\n")[0].is_complete


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_no_http_is_refused(data: bytes) -> None:
    with pytest.raises(BadResponse):
        _read(data)
