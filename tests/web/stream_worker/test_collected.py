"""When a request is complete enough for a thread. (The worker: test_server.py, test_streams.py.)"""

from __future__ import annotations

import pytest

from trivet_web.api.request_body import MAX_BODY_BYTES
from trivet_web.stream_worker.collected import (
    FREE_BYTES,
    MAX_HEAD_BYTES,
    MAX_SWALLOWED_BYTES,
    Allowance,
    Collected,
)

GET = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /v1 HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
CHUNKED = b"POST /v1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def collected(data: bytes, piece: int = 1 << 20) -> Collected:
    one = Collected()
    for start in range(0, len(data), piece):
        one.add(data[start : start + piece])
    return one


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    "request_bytes",
    [
        GET,
        POST % 5 + b"12345",
        POST % 0,
        CHUNKED + b"0\r\n\r\n",
        CHUNKED + b"5\r\n12345\r\n0\r\n\r\n",
        CHUNKED + b"5\r\n12345\r\n00;last\r\nX-Sum: 1\r\nX-End: 2\r\n\r\n",
        CHUNKED + b"6\r\n10\r\n\r\n\r\n0\r\n\r\n",
    ],
)
def test_request_is_complete_with_its_last_byte_and_not_before(request_bytes: bytes, piece: int) -> None:
    assert collected(request_bytes, piece).is_complete
    assert not collected(request_bytes[:-1], piece).is_complete
    assert bytes(collected(request_bytes, piece).data) == request_bytes


@pytest.mark.parametrize(
    "request_bytes", [GET, POST % 5 + b"12345", CHUNKED + b"5\r\n12345\r\n0\r\nX-Sum: 1\r\n\r\n"]
)
def test_what_follows_a_request_does_not_hold_it_up(request_bytes: bytes) -> None:
    one = collected(request_bytes + GET[:9])
    assert one.is_complete
    assert bytes(one.data) == request_bytes + GET[:9]


@pytest.mark.parametrize("rest", [b"zz\r\n", b"-1\r\n", b"\r\n", b"0" * 5000, b"0\r\n" + b"X: y\r\n" * 1000])
def test_what_is_no_chunk_is_given_to_the_parser_that_refuses_it(rest: bytes) -> None:
    assert collected(CHUNKED + rest, piece=7).is_complete


def test_only_what_is_beyond_a_small_request_is_charged_and_all_is_given_back() -> None:
    allowance = Allowance(100)
    small, large = collected(b"x" * FREE_BYTES), collected(b"x" * (FREE_BYTES + 60))
    assert (small.charged_bytes, large.charged_bytes) == (0, 60)
    assert allowance.take(large.charged_bytes)
    assert not allowance.take(large.charged_bytes)
    allowance.give_back(60)
    assert allowance.left_bytes == 100


def test_header_names_may_be_written_in_any_case() -> None:
    assert not collected(b"POST / HTTP/1.1\r\ncontent-LENGTH:  3\r\n\r\n").is_complete
    assert not collected(b"POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n").is_complete


def test_text_of_a_body_is_no_header() -> None:
    assert collected(POST % 40 + b"\r\nContent-Length: 99999\r\n".ljust(40)).is_complete


def test_who_asks_before_it_sends_a_body_says_so_in_the_head() -> None:
    asks = b"\r\nExpect: 100-continue\r\n"
    assert collected(POST.replace(b"\r\nHost: a\r\n", asks) % 40).asks_first
    assert not collected(POST % 40 + asks).asks_first


def test_head_without_end_is_given_to_the_parser_that_refuses_it() -> None:
    assert collected(b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES).is_complete


def test_body_over_the_limit_is_swallowed_to_its_end_and_not_kept() -> None:
    size = MAX_BODY_BYTES + 3
    one = collected(POST % size + b"x" * (size - 1))
    assert one.is_too_large
    assert not one.is_complete
    one.add(b"x")
    assert one.is_complete
    assert len(one.data) <= (1 << 20) + 100


def test_body_far_over_the_limit_is_not_waited_for() -> None:
    assert collected(POST % (MAX_SWALLOWED_BYTES + 1)).is_complete


@pytest.mark.parametrize("length", [b"9" * 14, b"9" * 5000, b"0" * 5000 + b"9" * 14])
def test_a_length_of_any_number_of_digits_is_read(length: bytes) -> None:
    one = collected(GET[:-2] + b"Content-Length: " + length + b"\r\n\r\n12345")
    assert one.is_complete
    assert one.has_rest, "gunicorn would wait 5 s for it, and hold a thread"


@pytest.mark.parametrize("size", [b"f" * 16, b"ffffffff", b"%x" % (2 * MAX_BODY_BYTES)])
def test_a_thread_begins_with_a_large_chunk_when_it_finds_enough_to_refuse_it(size: bytes) -> None:
    one = collected(CHUNKED + size + b"\r\n" + b"x" * MAX_BODY_BYTES)
    assert not one.is_complete, "it would wait for the client"
    one.add(b"x")
    assert one.is_complete
    assert one.has_rest


def test_small_chunks_count_by_what_they_carry() -> None:
    chunks = (b"1000\r\n" + b"x" * 0x1000 + b"\r\n") * (MAX_BODY_BYTES // 0x1000)
    one = collected(CHUNKED + chunks)
    assert not one.is_complete
    one.add(b"1\r\nx\r\n")
    assert one.is_complete
    whole = collected(CHUNKED + chunks + b"0\r\n\r\n")
    assert whole.is_complete
    assert not whole.has_rest


def test_large_file_is_read_by_its_view_and_a_small_one_collected_like_all_else() -> None:
    upload = b"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    one = collected(upload % (MAX_BODY_BYTES + 1) + b"x" * 100)
    assert one.is_complete
    assert one.is_upload
    assert not one.is_too_large
    assert one.data.endswith(b"x" * 100), "what has come is not lost"
    assert not collected(upload % 5 + b"1234").is_complete
    assert collected((POST % (MAX_BODY_BYTES + 1)).replace(b"/v1 ", b"/v1/filesystem ")).is_too_large
