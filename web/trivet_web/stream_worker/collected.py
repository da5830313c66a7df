"""The bytes of one request while they come in, and how many of them the process holds for strangers.

Nobody knows yet who sends them. A connection keeps `FREE_BYTES` for nothing, so that small requests always
pass; what is beyond comes out of one allowance for the whole process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from trivet_web.api.request_body import MAX_BODY_BYTES

MAX_HEAD_BYTES = 64 << 10
MAX_LINE_BYTES = 4 << 10  # of a chunk's size, or of all trailers
MAX_SWALLOWED_BYTES = 64 << 20  # of a body over the limit; beyond it the connection is broken
FREE_BYTES = 16 << 10
ALLOWANCE_BYTES = 256 << 20  # of a process: 32 of the largest bodies, or 400 KB of each of 640
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*0*(\d+)[ \t]*\r\n", re.IGNORECASE)
_EXPECT = re.compile(rb"\r\nexpect:[ \t]*100-continue[ \t]*\r\n", re.IGNORECASE)
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]+)[ \t]*(?:;[^\r\n]*)?")
_LENGTH_DIGITS = 18  # more are too many bytes whatever they say
_TLS_GREETING = b"\x16\x03"  # the type of the record, and the first half of its version
_UPLOAD = re.compile(rb"POST /v1/files(?:\?[^ ]*)? HTTP/")
_PROBE = re.compile(rb"GET /health(?:/live|/ready)? ")
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)


@dataclass(slots=True)
class Allowance:
    """Bytes that may still be taken. Of one thread."""

    left_bytes: int = ALLOWANCE_BYTES

    def take(self, size_bytes: int) -> bool:
        """False where there is not so much left; nothing was taken then."""
        if size_bytes > self.left_bytes:
            return False
        self.left_bytes -= size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        self.left_bytes += size_bytes


@dataclass(slots=True)
class Collected:
    """The bytes of one request so far, head first. A body over the limit is counted and thrown away."""

    data: bytearray = field(default_factory=bytearray)
    num_dropped: int = 0
    head_bytes: int = 0  # 0: the head is not complete
    body_bytes: int | None = 0  # None: chunked
    asks_first: bool = False  # it waits for `100 Continue` before it sends the body (curl: a large one)
    is_upload: bool = False  # a large file: a thread reads its body as it comes (api/files.py bounds them)
    _next_chunk: int = 0  # where its size stands, or will
    _chunk_bytes: int = 0  # of the chunks before that, some of the last of which may be missing

    def add(self, new: bytes) -> None:
        if self.is_too_large:
            self.num_dropped += len(new)
            return
        self.data += new
        if not self.head_bytes:
            self._read_head()

    @property
    def is_complete(self) -> bool:
        """Whether a thread can go through the request without waiting for the client.

        It only decides when a thread begins: parsing is gunicorn's. An error here costs time, not safety.
        """
        if not self.head_bytes:
            return len(self.data) > MAX_HEAD_BYTES  # gunicorn refuses it
        if self.body_bytes is None:
            return self._has_last_chunk() or self._has_too_many_chunks
        if self.is_upload or self.body_bytes > MAX_SWALLOWED_BYTES:
            return True
        return len(self.data) + self.num_dropped >= self.head_bytes + self.body_bytes

    @property
    def is_tls(self) -> bool:
        """A client that greets in TLS, where there is none, sends no more until it is answered."""
        return self.data.startswith(_TLS_GREETING)

    @property
    def is_probe(self) -> bool:
        """Whether it asks for the server's health."""
        return _PROBE.match(self.data) is not None

    @property
    def is_too_large(self) -> bool:
        """The view refuses it by its length; a client sees that only when it has sent everything."""
        return (self.body_bytes or 0) > MAX_BODY_BYTES and not self.is_upload

    @property
    def has_rest(self) -> bool:
        """Whether bytes of its body may follow that nobody reads: the connection carries no other request."""
        return self.is_too_large or self.is_upload or (self.body_bytes is None and self._has_too_many_chunks)

    @property
    def coming_bytes(self) -> int:
        """Of an upload, that have not been collected; a client sends them, whatever it is answered."""
        return max(0, self.head_bytes + (self.body_bytes or 0) - len(self.data)) if self.is_upload else 0

    @property
    def _has_too_many_chunks(self) -> bool:
        """The view finds as many bytes as it needs to refuse them: it waits for none."""
        missing_bytes = max(0, self._next_chunk - 2 - len(self.data))
        return self._chunk_bytes - missing_bytes > MAX_BODY_BYTES

    @property
    def charged_bytes(self) -> int:
        """What comes out of the allowance."""
        return max(0, len(self.data) - FREE_BYTES)

    def _read_head(self) -> None:
        end = self.data.find(b"\r\n\r\n")
        if end < 0:
            return
        self.head_bytes = end + 4
        head = bytes(self.data[: end + 2])
        self.asks_first = _EXPECT.search(head) is not None
        if _CHUNKED.search(head):
            self.body_bytes = None
        elif length := _LENGTH.search(head):
            self.body_bytes = int(length[1][:_LENGTH_DIGITS])
            self.is_upload = self.body_bytes > MAX_BODY_BYTES and _UPLOAD.match(head) is not None
        self._next_chunk = self.head_bytes

    def _has_last_chunk(self) -> bool:
        """Goes on where it stopped. What is no chunk counts as the last: gunicorn refuses it."""
        while True:
            end = self.data.find(b"\r\n", self._next_chunk)
            if end < 0:
                return len(self.data) > self._next_chunk + MAX_LINE_BYTES
            size = _CHUNK_SIZE.fullmatch(self.data, self._next_chunk, end)
            if size is None:
                return True
            if int(size[1], 16) == 0:
                return self._has_trailers(end)
            self._next_chunk = end + 2 + int(size[1], 16) + 2
            self._chunk_bytes += int(size[1], 16)
            if self._next_chunk > len(self.data):
                return False

    def _has_trailers(self, start: int) -> bool:
        """Lines which nobody reads, and an empty one; `start` is the end of the last chunk's size."""
        return self.data.find(b"\r\n\r\n", start) >= 0 or len(self.data) > start + MAX_LINE_BYTES
