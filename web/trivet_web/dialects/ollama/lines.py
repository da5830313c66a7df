"""Streams of Ollama's form: a line of JSON each time, the last one with reason, counts and durations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET

from trivet.errors import TrivetError
from trivet.text.answer_parser import Call
from trivet.text.tool_calls.events import CallArguments, CallBroken, CallStart, Content, Event, Reasoning
from trivet_web.answers.sse import Chunks
from trivet_web.api.inference import Exchange
from trivet_web.api.whole_answer import Completed
from trivet_web.dialects.ollama.objects import CalledFunction, OllamaError, ToolCallObject
from trivet_web.engines.mailbox import Arrival
from trivet_web.error_objects import error_body
from trivet_web.json_response import NDJSON

NS = 1_000_000_000


class Lines(Chunks):
    """What streams of this form have in common."""

    media_type = NDJSON
    ping = b" "  # white space before the next line: clients parse every line that there is
    end = b""

    def event(self, value: msgspec.Struct) -> bytes:
        return msgspec.json.encode(value) + b"\n"

    def failed(self, error: TrivetError) -> bytes:
        return self.event(OllamaError(error_body(error).error.message))

    def of(self, arrivals: list[Arrival]) -> Iterable[msgspec.Struct]:
        joined = Completed()
        for arrival in arrivals:
            joined.add(arrival)
        return self.lines(joined) if arrivals else ()

    def last(self) -> Iterable[msgspec.Struct]:
        return ()

    def lines(self, joined: Completed) -> Iterable[msgspec.Struct]:
        """Of one completion: what these pieces make."""
        raise NotImplementedError


class CallBuffer:
    """A call is one object here, told when it is whole. One that broke is content, as it was written."""

    def __init__(self) -> None:
        self._open: Call | None = None
        self._num_calls = 0

    def read(self, events: Iterable[Event], *, is_last: bool) -> tuple[str, str, list[ToolCallObject]]:
        """Content, thinking and calls of these events."""
        content, thought, calls = "", "", []
        for event in events:
            if isinstance(event, Content):
                content += event.text
            elif isinstance(event, Reasoning):
                thought += event.text
            elif isinstance(event, CallArguments) and self._open is not None:
                self._open.arguments += event.text
            elif isinstance(event, CallBroken):
                self._open = None
                content += event.source
            elif isinstance(event, CallStart):
                calls += self._close()
                self._open = Call(event.name)
        if is_last:
            calls += self._close()
        return content, thought, calls

    def _close(self) -> list[ToolCallObject]:
        call, self._open = self._open, None
        if call is None:
            return []
        self._num_calls += 1
        return [called(call.name, call.arguments, self._num_calls - 1)]


def called(name: str, arguments: str, index: int) -> ToolCallObject:
    """Ollama gives arguments as an object."""
    value = json.loads(arguments or "{}")
    return ToolCallObject(CalledFunction(name, value if isinstance(value, dict) else {"value": value}, index))


def now() -> datetime:
    """With its zone."""
    return datetime.now(UTC)


def ending(exchange: Exchange, first_s: float, done: Completed) -> dict[str, Any]:
    """The fields of the last line. `first_s`: CLOCK_MONOTONIC of the first token."""
    first_s = first_s or done.last_s
    return {
        "done": True,
        "done_reason": done.finish_reason,
        "total_duration": int((done.last_s - exchange.begun_s) * NS),
        "load_duration": 0,
        "prompt_eval_count": done.prompt_tokens,
        "prompt_eval_duration": int((first_s - exchange.begun_s) * NS),
        "eval_count": done.completion_tokens,
        "eval_duration": int((done.last_s - first_s) * NS),
    }


def unless_empty(value: Any) -> Any:
    """A field that is left out where it has nothing to say."""
    return value or UNSET
