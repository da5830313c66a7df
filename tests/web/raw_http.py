"""HTTP by hand, for what clients' libraries would not send or would hide."""

from __future__ import annotations

import re
import socket

import msgspec

HELLO = [{"role": "user", "content": "hello"}]


def chat(model: str, **fields: object) -> dict[str, object]:
    """A body."""
    return {"model": model, "messages": HELLO, **fields}


def post(path: str, body: object, version: str = "1.1", headers: str = "") -> bytes:
    """A whole request; each line of `headers` ends with CRLF."""
    data = msgspec.json.encode(body)
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


def get(path: str, headers: str = "") -> bytes:
    """A whole request."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode()


def read_until(sock: socket.socket, end: bytes, data: bytes = b"") -> bytes:
    """`data` and what follows it, up to `end` and perhaps more."""
    while end not in data:
        new = sock.recv(65536)
        assert new, f"the connection ended before {end!r}: {data[-300:]!r}"
        data += new
    return data


def read_to_end(sock: socket.socket) -> bytes:
    """Until the server closes."""
    data = b""
    while new := sock.recv(65536):
        data += new
    return data


def read_answer(sock: socket.socket, data: bytes = b"") -> tuple[bytes, bytes, bytes]:
    """Head, body without its framing, and what came after it."""
    data = read_until(sock, b"\r\n\r\n", data)
    head, _, rest = data.partition(b"\r\n\r\n")
    if b"\r\nTransfer-Encoding: chunked" in head:
        return (head, *_read_chunks(sock, rest))
    length = re.search(rb"\r\nContent-Length: (\d+)", head)
    assert length, head
    while len(rest) < int(length[1]):
        new = sock.recv(65536)
        assert new
        rest += new
    return head, rest[: int(length[1])], rest[int(length[1]) :]


def _read_chunks(sock: socket.socket, rest: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        rest = read_until(sock, b"\r\n", rest)
        size, _, rest = rest.partition(b"\r\n")
        while len(rest) < int(size, 16) + 2:
            new = sock.recv(65536)
            assert new, "the connection ended within a chunk"
            rest += new
        assert rest[int(size, 16) :].startswith(b"\r\n")
        if int(size, 16) == 0:
            return body, rest[2:]
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]


def events(body: bytes) -> list[bytes]:
    """The data of server-sent events, with what differs from request to request left out."""
    masked = re.sub(rb'"created":\d+', b'"created":0', re.sub(rb"chatcmpl-[0-9a-f]+", b"ID", body))
    assert masked.endswith(b"\n\n")
    return [one for one in masked[:-2].split(b"\n\n") if one != b": ping"]
