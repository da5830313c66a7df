"""Reads one chat completion: its text as the message, or the deltas, that OpenAI clients expect."""

from __future__ import annotations

from msgspec import UNSET

from trivet.messages import Piece
from trivet.sampling_params import SamplingParams
from trivet.text.answer_parser import AnswerParts
from trivet.text.reasoning import END
from trivet.text.tokenizer import Tokenizer
from trivet.text.tool_calls.events import CallArguments, CallBroken, CallStart, Content, Event, Reasoning
from trivet_web.api.answer_form import AnswerForm
from trivet_web.api.openai_objects import (
    CalledFunction,
    ChatDelta,
    ChatMessage,
    FunctionDelta,
    ToolCallDelta,
    ToolCallObject,
)
from trivet_web.api.whole_answer import Completed

STOP, TOOL_CALLS = "stop", "tool_calls"


class ReasoningCount:
    """Tokens up to the mark that ends the thinking; where no token is that mark, those of its text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._end_id = tokenizer.id_of(END)
        self._num_tokens = 0
        self._is_over = False
        self._texts: list[str] = []

    def add(self, token_ids: list[int], events: list[Event], *, has_begun: bool) -> None:
        """A piece, and what it made certain."""
        if self._end_id is None:
            self._texts += [event.text for event in events if isinstance(event, Reasoning)]
        elif has_begun and not self._is_over:
            self._is_over = self._end_id in token_ids
            self._num_tokens += token_ids.index(self._end_id) + 1 if self._is_over else len(token_ids)

    @property
    def num_tokens(self) -> int:
        if self._end_id is None:
            return len(self._tokenizer.encode("".join(self._texts), add_special_tokens=False))
        return self._num_tokens


class ChatReader:
    """Of one completion, whole or in pieces."""

    def __init__(
        self, form: AnswerForm, prompt: str, params: SamplingParams, *, shows_reasoning: bool = True
    ) -> None:
        self._form = form
        self._parser = form.parser(prompt, params.structured_outputs)
        self._shows_reasoning = shows_reasoning
        self.is_plain = form.tools is None and not form.has_reasoning  # its text is all content, as it comes
        self._count = ReasoningCount(form.target.model.tokenizer)
        self._num_calls = 0  # that stand

    @property
    def reasoning_tokens(self) -> int:
        return self._count.num_tokens

    def message(self, done: Completed) -> ChatMessage:
        """The whole of it."""
        parts = AnswerParts()
        parts.add(self.events(done))
        self._num_calls = len(parts.calls)
        reasoning = parts.reasoning if parts.reasoning and self._shows_reasoning else UNSET
        calls = [
            ToolCallObject(self._form.new_call_id(), CalledFunction(call.name, call.arguments))
            for call in parts.calls
        ]
        is_empty = not parts.content and bool(calls or parts.reasoning)
        return ChatMessage(
            None if is_empty else parts.content,
            reasoning_content=reasoning,
            reasoning=reasoning,
            tool_calls=calls or UNSET,
        )

    def finish_reason(self, reason: str) -> str:
        """What a client is told: a completion that stopped after a call waits for its result."""
        return TOOL_CALLS if reason == STOP and self._num_calls else reason

    def events(self, piece: Completed | Piece) -> list[Event]:
        """What this piece makes certain, all of it where it is the last one."""
        if self.is_plain:  # most pieces of most models: 3 us for 6
            return [Content(piece.text)] if piece.text else []
        events = self._parser.push(piece.text)
        if piece.finish_reason:
            events += self._parser.finish()
        if self._form.has_reasoning:
            self._count.add(piece.token_ids, events, has_begun=self._parser.has_reasoned)
        return events

    def delta(self, event: Event) -> ChatDelta | None:
        """What it adds to the message; None: nothing that a client is told."""
        if isinstance(event, Content):
            return ChatDelta(content=event.text)
        if isinstance(event, Reasoning):
            if not self._shows_reasoning:
                return None
            return ChatDelta(reasoning_content=event.text, reasoning=event.text)
        if isinstance(event, CallStart):
            self._num_calls += 1
            call = ToolCallDelta(
                event.index, FunctionDelta("", event.name), self._form.new_call_id(), "function"
            )
            return ChatDelta(tool_calls=[call])
        if isinstance(event, CallArguments):
            return ChatDelta(tool_calls=[ToolCallDelta(event.index, FunctionDelta(event.text))])
        if isinstance(event, CallBroken):  # the client has the beginning, and no reason to carry it out
            self._num_calls -= 1
        return None
