"""A streamed message: blocks open and close in the order in which the model writes them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from trivet.errors import TrivetError
from trivet.text.tool_calls.events import CallArguments, CallBroken, CallStart, Content, Event, Reasoning
from trivet_web.answers.sse import Chunks
from trivet_web.api.chat import ChatAnswer
from trivet_web.api.whole_answer import Completed
from trivet_web.dialects.anthropic.answer import MessageAnswer
from trivet_web.dialects.anthropic.objects import (
    AnswerBlock,
    Delta,
    MessageEvent,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    error_of,
)
from trivet_web.engines.mailbox import Arrival
from trivet_web.error_objects import error_body


class MessageChunks(Chunks):
    """Events of one message."""

    ping = b'event: ping\ndata: {"type":"ping"}\n\n'
    end = b""

    def __init__(self, answer: ChatAnswer, form: MessageAnswer) -> None:
        self._answer = answer
        self._form = form
        self._done = Completed()
        self._open: AnswerBlock | None = None
        self._index = -1  # of the open block
        self._has_begun = False
        self._num_calls = 0  # that stand

    def event(self, value: msgspec.Struct) -> bytes:
        assert isinstance(value, MessageEvent)
        return b"event: " + value.type.encode() + b"\n" + super().event(value)

    def failed(self, error: TrivetError) -> bytes:
        body = error_of(error_body(error).error, error.status, self._form.request_id)
        return b"event: error\n" + super().event(body)

    def of(self, arrivals: list[Arrival]) -> Iterable[MessageEvent]:
        joined = Completed()
        for arrival in arrivals:
            joined.add(arrival)
        if not arrivals:
            return
        self._done = joined
        if not self._has_begun:
            self._has_begun = True
            yield MessageEvent("message_start", message=self._form.begun(joined))
        for event in self._answer.readers[0].events(joined):
            yield from self._of(event)

    def last(self) -> Iterable[MessageEvent]:
        yield from self._close()
        reason, sequence = self._form.stop(self._done, has_calls=self._num_calls > 0)
        usage = self._form.usage(self._done)
        yield MessageEvent(
            "message_delta", delta=Delta(stop_reason=reason, stop_sequence=sequence), usage=usage
        )
        yield MessageEvent("message_stop")

    def _of(self, event: Event) -> Iterable[MessageEvent]:
        if isinstance(event, CallStart):
            self._num_calls += 1
            yield from self._begin(ToolUseBlock(self._answer.form.new_call_id(), event.name, {}))
        elif isinstance(event, CallArguments):
            yield self._delta(Delta(type="input_json_delta", partial_json=event.text))
        elif isinstance(event, Reasoning):
            if not isinstance(self._open, ThinkingBlock):
                yield from self._begin(ThinkingBlock(""))
            yield self._delta(Delta(type="thinking_delta", thinking=event.text))
        elif isinstance(event, Content):
            if not isinstance(self._open, TextBlock):
                yield from self._begin(TextBlock(""))
            yield self._delta(Delta(type="text_delta", text=event.text))
        elif isinstance(event, CallBroken):  # the client has the beginning, and no reason to carry it out
            self._num_calls -= 1

    def _begin(self, block: AnswerBlock) -> Iterable[MessageEvent]:
        yield from self._close()
        self._open = block
        self._index += 1
        yield MessageEvent("content_block_start", index=self._index, content_block=block)

    def _close(self) -> Iterable[MessageEvent]:
        if self._open is not None:
            self._open = None
            yield MessageEvent("content_block_stop", index=self._index)

    def _delta(self, delta: Delta) -> MessageEvent:
        return MessageEvent("content_block_delta", index=self._index, delta=delta)
