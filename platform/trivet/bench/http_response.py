"""Reads an HTTP/1.1 response as it arrives, and gives out the data of its server-sent events.

The load generator shares the cores with the server that it measures, so this does no more than it must:
one pass over the bytes and no objects but the payloads (RFC 9112 section 7.1 for the chunks; of the event
stream format, WHATWG HTML section 9.2, only the `data:` lines, of which OpenAI's API sends one an event).
"""

from __future__ import annotations

from collections.abc import Callable

MAX_HEAD_BYTES = 65_536
MAX_BODY_BYTES = 65_536  # kept of an answer that is no event stream: an error object


class BadResponse(ValueError):
    """What came is not HTTP/1.1."""


class ResponseReader:
    """One response. Feed it bytes until `is_complete`."""

    def __init__(self, on_data: Callable[[bytes], None]) -> None:
        self.status: int | None = None
        self.keeps_alive = True
        self.is_event_stream = False
        self.is_complete = False
        self.body = b""
        self._on_data = on_data
        self._head = b""
        self._line = b""  # the part of a line whose end has not come
        self._framing = b""  # the part of a chunk's size line that has come
        self._is_chunked = False
        self._left: int | None = None  # bytes of the body or of the present chunk; None: until the end
        self._is_last_chunk = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Raises: BadResponse."""
        if self.status is None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                if len(self._head) > MAX_HEAD_BYTES:
                    raise BadResponse(f"no end of headers in {MAX_HEAD_BYTES} bytes")
                return
            head, data = self._head[:end], self._head[end + 4 :]
            self._head = b""
            self._read_head(head.split(b"\r\n"))
            if self.is_complete or not data:
                return
        if self._is_chunked:
            self._feed_chunks(data)
        elif self._left is None:
            self._take(data)
        else:
            self._take(data[: self._left])
            self._left -= len(data)
            self.is_complete = self._left <= 0

    def feed_eof(self) -> None:
        """The server has closed: the end of a body that has no other."""
        if self.status is not None and not self._is_chunked and self._left is None:
            self.is_complete = True
            self.keeps_alive = False

    def _read_head(self, lines: list[bytes]) -> None:
        first = lines[0]
        parts = first.split(None, 2)
        if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
            raise BadResponse(f"the answer begins with {first[:60]!r} and not with an HTTP/1.1 status")
        self.status = int(parts[1])
        fields = (line.partition(b":") for line in lines[1:])
        headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        self.is_event_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        self.keeps_alive = parts[0] == b"HTTP/1.1" and headers.get(b"connection", b"").lower() != b"close"
        self._is_chunked = headers.get(b"transfer-encoding", b"").lower() == b"chunked"
        length = headers.get(b"content-length")
        if self._is_chunked:
            self._left = 0
        elif length is not None:
            self._left = int(length)
            self.is_complete = self._left == 0

    def _feed_chunks(self, data: bytes) -> None:
        if self._framing:
            data = self._framing + data
            self._framing = b""
        at = 0
        while at < len(data) and not self.is_complete:
            if self._left:
                at += self._feed_chunk(data, at, self._left)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self._framing = data[at:]
                return
            self._open_chunk(data[at:end])
            at = end + 2

    def _feed_chunk(self, data: bytes, at: int, left: int) -> int:
        """Take what is there of a chunk, of whose bytes the last two are its CRLF. Returns their number."""
        taken = min(left, len(data) - at)
        if left > 2:
            self._take(data[at : at + min(taken, left - 2)])
        self._left = left - taken
        self.is_complete = self._is_last_chunk and self._left == 0
        return taken

    def _open_chunk(self, size_line: bytes) -> None:
        try:
            size = int(size_line.partition(b";")[0], 16)
        except ValueError:
            raise BadResponse(f"{size_line[:60]!r} is no chunk size") from None
        self._left = size + 2
        self._is_last_chunk = size == 0  # followed by an empty line; nobody sends trailers here

    def _take(self, data: bytes) -> None:
        """Bytes of the body."""
        if not self.is_event_stream:
            self.body += data[: MAX_BODY_BYTES - len(self.body)]
            return
        lines = (self._line + data).split(b"\n")
        self._line = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._on_data(line[5:].strip())
