"""A streamed response: items open and close in the order in which the model writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from trivet.errors import TrivetError
from trivet.text.tool_calls.events import CallArguments, CallBroken, CallStart, Content, Event, Reasoning
from trivet_web.answers.sse import Chunks
from trivet_web.api.chat import ChatAnswer
from trivet_web.api.logprobs import TextLogprobs
from trivet_web.api.openai_objects import TokenLogprob
from trivet_web.api.responses_objects import (
    FunctionCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseEvent,
    ResponseObject,
)
from trivet_web.api.whole_answer import Completed
from trivet_web.engines.mailbox import Arrival
from trivet_web.error_objects import error_body
from trivet_web.stored_objects import new_id

IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"
# What an item's text is called in its events; the part that holds it, if it is in one.
_NAMES: dict[type[Any], tuple[str, Callable[[str], OutputText | ReasoningText] | None]] = {
    MessageItem: ("output_text", OutputText),
    ReasoningItem: ("reasoning_text", ReasoningText),
    FunctionCallItem: ("function_call_arguments", None),
}


class Output:
    """The items so far, and the events that tell of them."""

    def __init__(self, logprobs: TextLogprobs) -> None:
        self.items: list[OutputItem] = []
        self.logprobs = logprobs
        self._events: list[ResponseEvent] = []
        self._open: OutputItem | None = None
        self._texts: list[str] = []  # of the open one
        self._scores: list[TokenLogprob] = []  # likewise
        self._number = 0

    def tell(self, kind: str, **fields: Any) -> None:
        self._events.append(ResponseEvent(type=kind, sequence_number=self._number, **fields))
        self._number += 1

    def take(self) -> list[ResponseEvent]:
        events, self._events = self._events, []
        return events

    def add(self, event: Event, call_id: Callable[[], str]) -> None:
        """A piece of what the model wrote."""
        if isinstance(event, CallBroken):  # the client has the beginning
            self.end(INCOMPLETE)
        if isinstance(event, CallStart):
            self._begin(FunctionCallItem(new_id("fc"), call_id(), event.name, "", IN_PROGRESS))
        elif isinstance(event, CallArguments):
            self._append(event.text)
        elif isinstance(event, Reasoning):
            if not isinstance(self._open, ReasoningItem):
                self._begin(ReasoningItem(new_id("rs"), [], status=IN_PROGRESS))
            self._append(event.text)
        elif isinstance(event, Content):
            if not isinstance(self._open, MessageItem):
                self._begin(MessageItem(new_id("msg"), [], IN_PROGRESS))
            self._append(event.text)

    def end(self, status: str = COMPLETED) -> None:
        """Of the open item."""
        item, place = self._open, self._place
        if item is None:
            return
        name, make_part = _NAMES[type(item)]
        text = "".join(self._texts)
        if make_part is None:
            assert isinstance(item, FunctionCallItem)
            self.tell(f"response.{name}.done", **place, arguments=text, name=item.name)
            done: OutputItem = msgspec.structs.replace(item, arguments=text, status=status)
        else:
            part, more = make_part(text), {}
            if isinstance(part, OutputText):
                part, more = msgspec.structs.replace(part, logprobs=self._scores), {"logprobs": self._scores}
            self.tell(f"response.{name}.done", **place, content_index=0, text=text, **more)
            self.tell("response.content_part.done", **place, content_index=0, part=part)
            done = msgspec.structs.replace(item, content=[part], status=status)
        self.items[-1] = done
        self.tell("response.output_item.done", output_index=place["output_index"], item=done)
        self._open = None

    def cut(self) -> None:
        """The tokens did not suffice. A call that is still open is whole: it would have broken else."""
        self.end(COMPLETED if isinstance(self._open, FunctionCallItem) else INCOMPLETE)

    @property
    def _place(self) -> dict[str, Any]:
        item = self._open
        return {} if item is None else {"output_index": len(self.items) - 1, "item_id": item.id}

    def _begin(self, item: OutputItem) -> None:
        self.end()
        self._open, self._texts, self._scores = item, [], []
        self.items.append(item)
        place = self._place
        self.tell("response.output_item.added", output_index=place["output_index"], item=item)
        make_part = _NAMES[type(item)][1]
        if make_part is not None:
            self.tell("response.content_part.added", **place, content_index=0, part=make_part(""))

    def _append(self, text: str) -> None:
        if self._open is None:
            return
        self._texts.append(text)
        name, make_part = _NAMES[type(self._open)]
        more: dict[str, Any] = {} if make_part is None else {"content_index": 0}
        if isinstance(self._open, MessageItem):
            more["logprobs"] = self.logprobs.take(text)
            self._scores += more["logprobs"]
        self.tell(f"response.{name}.delta", **self._place, delta=text, **more)


class ResponseChunks(Chunks):
    """Events of one response. `finish` makes the whole object of the items and what was counted."""

    end = b""

    def __init__(
        self,
        answer: ChatAnswer,
        begun: ResponseObject,
        finish: Callable[[list[OutputItem], Completed], ResponseObject],
    ) -> None:
        self._answer = answer
        self._output = Output(TextLogprobs(answer.exchange.target.model.tokenizer, answer.params.logprobs))
        self._finish = finish
        self._done = Completed()
        self._output.tell("response.created", response=begun)
        self._output.tell("response.in_progress", response=begun)

    def event(self, value: msgspec.Struct) -> bytes:
        assert isinstance(value, ResponseEvent)
        return b"event: " + value.type.encode() + b"\n" + super().event(value)

    def failed(self, error: TrivetError) -> bytes:
        told = error_body(error).error
        self._output.tell("error", code=told.code, message=told.message, param=told.param)
        return b"".join(map(self.event, self._output.take()))

    def of(self, arrivals: list[Arrival]) -> Iterable[ResponseEvent]:
        joined = Completed()
        for arrival in arrivals:
            joined.add(arrival)
        self._output.logprobs.add(joined.logprobs)
        for event in self._answer.readers[0].events(joined):
            self._output.add(event, self._answer.form.new_call_id)
        if arrivals:
            self._done = joined
        return self._output.take()

    def last(self) -> Iterable[ResponseEvent]:
        self._output.cut() if self._done.finish_reason == "length" else self._output.end()
        response = self._finish(self._output.items, self._done)
        self._output.tell(f"response.{response.status}", response=response)
        return self._output.take()
