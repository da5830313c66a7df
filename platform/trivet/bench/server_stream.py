"""One connection to the server under load, and what a stream tells about its request."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from trivet.bench.http_response import BadResponse, ResponseReader
from trivet.bench.timeline import Timeline

MAX_CAUSE_CHARACTERS = 160


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    """The part of a chunk that is read; everything else is skipped without making objects of it."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class ServerStream(asyncio.Protocol):
    """One connection; one request at a time, written into its timeline."""

    def __init__(self) -> None:
        self.is_open = False
        self.text: list[str] = []  # of the answer, where `keeps_text`
        self._transport: asyncio.Transport | None = None
        self._reader: ResponseReader | None = None
        self._timeline = Timeline(0.0, 0)
        self._done: asyncio.Future[None] | None = None
        self._keeps_text = False
        self._num_arrivals = 0
        self._has_end = False  # a finish reason or [DONE] has come
        self._last_choice_s: float | None = None
        self._usage: _Usage | None = None

    # ---- use ----

    def send(self, request: bytes, timeline: Timeline, *, keeps_text: bool = False) -> asyncio.Future[None]:
        """Send a request; the future is done when its timeline is."""
        assert self._transport is not None, "not connected"
        assert self._done is None, "one request at a time"
        self._timeline, self._keeps_text = timeline, keeps_text
        self.text = []
        self._num_arrivals, self._has_end = 0, False
        self._last_choice_s = self._usage = None
        self._reader = ResponseReader(self._on_data)
        self._done = asyncio.get_running_loop().create_future()
        timeline.sent_s = time.perf_counter()
        self._transport.write(request)
        return self._done

    def give_up(self, cause: str) -> None:
        """End the request without its answer."""
        self._timeline.fail(time.perf_counter(), cause)
        self.close()

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._reader is None:  # nothing was asked: a server that talks on its own is not used again
            self.close()
            return
        try:
            self._reader.feed(data)
        except BadResponse as error:
            self.give_up(f"no HTTP answer: {error}")
        else:
            if self._reader.is_complete:
                self._end()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._reader is not None:
            self._reader.feed_eof()
            if not self._reader.is_complete:
                said = f": {error}" if error else ""
                begun = "in the middle of the answer" if self._num_arrivals else "before any text"
                self._timeline.fail(time.perf_counter(), f"the connection was closed {begun}{said}")
            self._end()

    # ---- the answer ----

    def _on_data(self, data: bytes) -> None:
        now = time.perf_counter()
        if data == b"[DONE]":
            self._has_end = True
            return
        try:
            event = _decode(data)
        except msgspec.MsgspecError:
            self._timeline.fail(now, f"an event that is no chunk: {data[:80]!r}")
            return
        if event.error is not None:
            self._timeline.fail(now, f"error event: {_message(event.error)}")
        if event.usage is not None:
            self._usage = event.usage
        if event.choices:
            self._on_choice(event.choices[0], now)

    def _on_choice(self, choice: _Choice, now: float) -> None:
        delta = choice.delta
        text = choice.text
        if delta is not None:
            text = delta.content or delta.reasoning_content or delta.reasoning
        if text:
            self._timeline.token_times_s.append(now)
            self._num_arrivals += 1
            self._last_choice_s = now
            if self._keeps_text:
                self.text.append(text)
        if choice.finish_reason is not None:
            self._has_end = True
            self._last_choice_s = now

    def _end(self) -> None:
        reader, done = self._reader, self._done
        if reader is None or done is None:
            return
        self._reader = self._done = None
        self._conclude(reader)
        if not (reader.keeps_alive and reader.is_complete and self.is_open):
            self.close()
        if not done.done():
            done.set_result(None)

    def _conclude(self, reader: ResponseReader) -> None:
        timeline, now = self._timeline, time.perf_counter()
        if reader.status is not None and reader.status != 200:
            timeline.fail(now, f"HTTP {reader.status}: {_message_of_body(reader.body)}")
        elif reader.status is not None and not reader.is_event_stream:
            timeline.fail(now, f"no event stream but {reader.body[:80]!r}")
        elif not self._has_end:
            timeline.fail(now, "the stream ended without a finish reason or [DONE]")
        if timeline.failure is not None:
            return
        self._count(timeline)
        if timeline.num_tokens:
            timeline.finish(self._last_choice_s or now)
        else:
            timeline.fail(now, "an answer without a token")

    def _count(self, timeline: Timeline) -> None:
        """A chunk may hold several tokens or none that shows, so the server's own count is the better one."""
        usage = self._usage or _Usage()
        timeline.is_counted_by_server = usage.completion_tokens is not None
        counted = usage.completion_tokens
        timeline.num_tokens = self._num_arrivals if counted is None else counted
        if usage.prompt_tokens is not None:
            timeline.num_prompt_tokens = usage.prompt_tokens
        if usage.prompt_tokens_details is not None:
            timeline.num_cached_tokens = usage.prompt_tokens_details.cached_tokens or 0


def _message_of_body(body: bytes) -> str:
    try:
        value = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return _shortened(body.decode("utf-8", "replace"))
    return _message(value.get("error", value) if isinstance(value, dict) else value)


def _message(error: Any) -> str:
    """The words of an error object, or of what stands in its place."""
    if isinstance(error, dict) and error.get("message"):
        return _shortened(str(error["message"]))
    return _shortened(error if isinstance(error, str) else msgspec.json.encode(error).decode())


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_CAUSE_CHARACTERS else f"{line[: MAX_CAUSE_CHARACTERS - 3]}..."
